import { execFileSync } from 'node:child_process'
import { closeSync, openSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { finish } from '../../src/base/clock.ts'
import type { FrontendTable } from '../../src/model/frontend.ts'
import type { IptablesPlane } from '../../src/modes/iptables/plane.ts'
import type { IptablesState } from '../../src/modes/iptables/state.ts'
import { isOurChain, isServiceChain, KUBE_CHAINS } from '../../src/modes/xt-common/layout.ts'
import { savedLines, writeForeignRules } from '../support/foreign-rules.ts'
import { openIptablesPlane } from '../support/iptables-plane.ts'
import { enterNetns, freshNetns } from '../support/lab/netns.ts'
import { commitAll, IPTABLES, type PipelineConfig } from '../support/pipeline.ts'
import { runs } from '../support/runs.ts'
import { allStops, generator, type Stop, walkSettings } from '../support/walk.ts'

/*
 * A walk between the states of all scenarios on one kernel, and beside it, in another network namespace, each stop from
 * nothing: iptables-save must print the same of both. Other agents have their rules in either.
 */

const { seed: SEED, steps: STEPS } = walkSettings(process.env, runs(80, 3 / 8))

/** A network namespace that this process can come back to. */
class Place {
  readonly #file = (() => {
    freshNetns()
    writeForeignRules()
    return openSync('/proc/thread-self/ns/net', 'r')
  })()
  readonly foreign = savedLines()

  /** What is opened and started there stays there. */
  inside<T>(act: () => T): T {
    enterNetns(`/proc/self/fd/${this.#file}`)
    return act()
  }

  close(): void {
    closeSync(this.#file)
  }
}

let walked: Place
let fresh: Place

beforeAll(() => {
  walked = new Place()
  fresh = new Place()
})

afterAll(() => {
  walked.close()
  fresh.close()
})

const RULE = /^\S+ (\S+) -A (\S+) /

/** Whether a rule stands in a chain to which all Services add: these come in any order, before the jump to KUBE-NODEPORTS. */
function isShared(line: string): boolean {
  const [, table = '', chain = ''] = RULE.exec(line) ?? []
  if (table !== 'filter' && table !== 'nat') return false
  return (
    isOurChain(KUBE_CHAINS, table, chain) &&
    !isServiceChain(KUBE_CHAINS, table, chain) &&
    !line.endsWith(' -j KUBE-NODEPORTS')
  )
}

/** As iptables-save prints them, with rules of Services sorted within the place they stand at. */
function inOrder(lines: readonly string[]): readonly string[] {
  const sorted: string[] = []
  let run: string[] = []
  let chain: string | undefined
  for (const line of lines) {
    const its = isShared(line) ? line.split(' ', 4).join(' ') : undefined
    if (its !== chain) {
      sorted.push(...run.sort())
      run = []
      chain = its
    }
    if (its === undefined) sorted.push(line)
    else run.push(line)
  }
  return [...sorted, ...run.sort()]
}

/** Which state the next one is derived from, and compared with. */
type Gait =
  /** A running daemon: what it committed last. */
  | { readonly kind: 'remembered'; readonly plane: IptablesPlane; readonly state: IptablesState }
  /** A start, or a healing, perhaps after somebody emptied a chain of ours: what the kernel holds. */
  | { readonly kind: 'observed'; readonly plane: IptablesPlane; readonly emptied: number | undefined }

/** A daemon's configuration, which does not change while it runs. */
interface Setting {
  readonly config: PipelineConfig
  readonly optimize: boolean
}

async function go(gait: Gait, { computed }: Stop<IptablesState>, setting: Setting): Promise<IptablesState> {
  const { plane } = gait
  if (gait.kind === 'observed' && gait.emptied !== undefined) emptyOne(gait.emptied)
  const from = gait.kind === 'observed' ? (await plane.observe()).state : gait.state
  const { table } = computed.resolved
  const wanted = finish(plane.render(table, { base: from, without: new Set() }))
  await commitAll(plane, from, wanted)
  const { state: held } = await plane.observe()
  const again = finish(plane.diff(held, wanted))
  expect([...again.describe()]).toEqual([])
  expect(again).toMatchObject({ empty: true, changes: 0, complete: true })
  expect(inOrder(walked.inside(savedLines))).toEqual(inOrder(await anew(table, setting)))
  return wanted
}

/** The same from nothing, as a daemon's very first start. */
async function anew(table: FrontendTable, { config, optimize }: Setting): Promise<readonly string[]> {
  const { client, plane } = fresh.inside(() => openIptablesPlane(config, { optimize }))
  await plane.cleanup()
  const { state: before } = await plane.observe()
  await commitAll(plane, before, finish(plane.render(table, { base: before, without: new Set() })))
  await client.close()
  return fresh.inside(savedLines)
}

const OURS = /^(\S+) (\S+) -A (KUBE-\S+) /

/** Of our chains that have rules, the one of that number. */
function emptyOne(number: number): void {
  const chains = new Set(
    walked.inside(savedLines).flatMap(line => {
      const [, family = '', table = '', chain = ''] = OURS.exec(line) ?? []
      return chain === '' || chain === 'KUBE-FIREWALL' ? [] : [`${family} ${table} ${chain}`]
    }),
  )
  const chosen = [...chains][number % Math.max(1, chains.size)]
  if (chosen === undefined) return
  const [family, table = '', chain = ''] = chosen.split(' ')
  execFileSync(family === 'ip' ? 'iptables-nft' : 'ip6tables-nft', ['-t', table, '-F', chain])
}

interface Daemon extends ReturnType<typeof openIptablesPlane> {
  readonly setting: string
  readonly optimize: boolean
  /** That it committed last. */
  readonly state: IptablesState
}

test(`a random walk between all scenario states leaves what a fresh start would at each stop (WALK_SEED=${SEED})`, async () => {
  const random = generator(SEED)
  const stops = allStops(IPTABLES)
  let last: Daemon | undefined
  for (let step = 0; step < STEPS; step++) {
    const stop = stops[random(stops.length)]
    if (stop === undefined) continue
    const { config } = stop.computed
    const optimize = last !== undefined && random(8) > 0 ? last.optimize : random(3) === 0
    const setting = JSON.stringify({ config, optimize })
    const goesOn = last?.setting === setting
    const { client, plane } =
      last !== undefined && goesOn ? last : walked.inside(() => openIptablesPlane(config, { optimize }))
    if (!goesOn) await last?.client.close()
    const gait: Gait =
      last !== undefined && goesOn && random(3) > 0
        ? { kind: 'remembered', plane, state: last.state }
        : { kind: 'observed', plane, emptied: random(2) === 0 ? random(1_000) : undefined }
    try {
      last = { client, plane, setting, optimize, state: await go(gait, stop, { config, optimize }) }
    } catch (cause) {
      throw new Error(`WALK_SEED=${SEED}, step ${step}, ${gait.kind}, to ${stop.name}: ${cause}`, { cause })
    }
  }
  await last?.plane.cleanup()
  await last?.client.close()
  expect(walked.inside(savedLines)).toEqual(walked.foreign)
})
