import { execFileSync } from 'node:child_process'
import { expect } from 'vitest'
import { finish } from '../../src/base/clock.ts'
import type { NftClient } from '../../src/kernel/nft/client.ts'
import { printRuleset } from '../../src/kernel/nft/print.ts'
import { NFT_FAMILIES } from '../../src/modes/common/tables.ts'
import type { Dataplane, Plan } from '../../src/reconcile/dataplane.ts'

/** Runs a program in the network namespace this process is in now; throws with what it writes to stderr. */
function run(program: string, args: readonly string[], input = ''): string {
  return execFileSync(program, args, {
    input,
    encoding: 'utf8',
    maxBuffer: 2 ** 28,
    stdio: ['pipe', 'pipe', 'pipe'],
  })
}

/** Runs nft in the network namespace this process is in now; throws with what it writes to stderr. */
export function nft(args: readonly string[], input = ''): string {
  return run('nft', args, input)
}

/** A way to save what the kernel holds, and to load it again. */
export interface Saver {
  readonly name: string
  /** One text for each program that loads one. */
  save(): Promise<readonly string[]>
  load(texts: readonly string[]): void
}

/** What nft lists and what kprobe prints, for nft. */
export function nftSavers(client: NftClient, tableName: string): readonly Saver[] {
  // One program for both: there are thousands of loads.
  const load = ([text = '']: readonly string[]) => void nft(['-f', '-'], `flush ruleset\n${text}`)
  const tables = NFT_FAMILIES.map(family => ({ family, name: tableName }))
  return [
    { name: 'nft', save: async () => [nft(['list', 'ruleset'])], load },
    {
      name: 'kprobe',
      save: async () => [`${[...printRuleset((await client.list(tables)).ruleset)].join('\n')}\n`],
      load,
    },
  ]
}

/**
 * Rules of one transaction: iptables-nft-restore sends it as one message, and must be privileged outside of its user
 * namespace to get a socket that takes more than 208 KiB.
 */
const RULES_PER_LOAD = 200

interface XtTable {
  readonly name: string
  readonly lines: readonly string[]
}

function xtTablesOf(text: string): readonly XtTable[] {
  return text.split(/^(?=\*)/m).flatMap(table => {
    const [name = '', ...rest] = table.split('\n').filter(line => line !== '' && !line.startsWith('#'))
    return name.startsWith('*') ? [{ name, lines: rest.filter(line => line !== 'COMMIT') }] : []
  })
}

function restore(program: string, text: string): void {
  const tables = xtTablesOf(text)
  const parts = tables.flatMap(({ name, lines }) => {
    const rules = lines.filter(line => line.startsWith('-A '))
    const chunks = Array.from({ length: Math.ceil(rules.length / RULES_PER_LOAD) }, (_, index) =>
      rules.slice(index * RULES_PER_LOAD, (index + 1) * RULES_PER_LOAD),
    )
    return [lines.filter(line => !line.startsWith('-A ')), ...chunks].map(part => ({ name, lines: part }))
  })
  const isSmall = tables.reduce((sum, { lines }) => sum + lines.length, 0) <= RULES_PER_LOAD
  for (const load of isSmall ? [tables] : parts.map(part => [part])) {
    const input = load.map(({ name, lines }) => `${[name, ...lines, 'COMMIT'].join('\n')}\n`).join('')
    run(`${program}-nft-restore`, ['--noflush'], input)
  }
}

const XT_FAMILIES = ['iptables', 'ip6tables'] as const

/** What iptables-nft-save and ip6tables-nft-save print. */
export const XT_SAVERS: readonly Saver[] = [
  {
    name: 'iptables-nft-save',
    save: async () => XT_FAMILIES.map(program => run(`${program}-nft-save`, [])),
    load: texts => {
      nft(['flush', 'ruleset'])
      for (const [index, program] of XT_FAMILIES.entries()) restore(program, texts[index] ?? '')
    },
  },
]

/**
 * Saves what the kernel holds, and loads it into an empty kernel, as a machine does that starts with the file. A daemon
 * must find nothing to change then.
 */
export async function expectLoadable<State, P extends Plan<State>>(
  savers: readonly Saver[],
  plane: Dataplane<State, P>,
  held: State,
  title: string,
): Promise<void> {
  for (const { name, save, load } of savers) {
    load(await save())
    const { state } = await plane.observe()
    const plan = finish(plane.diff(state, held))
    const { empty, complete } = plan
    expect({ changes: [...plan.describe()], empty, complete }, `${title}: saved by ${name}`).toEqual({
      changes: [],
      empty: true,
      complete: true,
    })
  }
}
