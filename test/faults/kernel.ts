import { execFileSync } from 'node:child_process'
import { finish, systemClock } from '../../src/base/clock.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { createNftablesPlane } from '../../src/modes/nftables/plane.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { change, compute, nftablesOptionsOf, openPlane, type PipelineConfig } from '../support/pipeline.ts'

const NETLINK_NETFILTER = 12

export function openNetfilter(): Transport {
  return openNetlink({ protocol: NETLINK_NETFILTER })
}

export function nft(script: string): string {
  return execFileSync('nft', ['-f', '-'], { input: script, encoding: 'utf8', maxBuffer: 256 << 20 })
}

/** What nft prints of everything, without numbers that count packets or time. */
export function listRuleset(): string {
  return execFileSync('nft', ['-s', 'list', 'ruleset'], { encoding: 'utf8', maxBuffer: 256 << 20 })
}

export function listTable(table: string): string {
  return execFileSync('nft', ['-s', 'list', 'table', ...table.split(' ')], {
    encoding: 'utf8',
    maxBuffer: 256 << 20,
  })
}

/** Names that stand beside frontends of the IPv4 table, each once. */
export function frontendNames(): ReadonlySet<string> {
  const text = execFileSync('nft', ['list', 'map', 'ip', 'kube-proxy', 'frontends'], {
    encoding: 'utf8',
    maxBuffer: 256 << 20,
  })
  return new Set([...text.matchAll(/comment "([^":]+)/g)].map(([, name]) => name ?? ''))
}

/** What would have to be done for the kernel to hold what these objects ask for; empty when it does. */
export async function differences(
  objects: readonly object[],
  config: PipelineConfig = {},
  transport: Transport = openNetfilter(),
): Promise<readonly string[]> {
  const client = createNftClient({ transport, clock: systemClock })
  const plane = createNftablesPlane({ client, options: nftablesOptionsOf(config) })
  try {
    const { state } = await plane.observe()
    const { table } = change(compute(config, []), { objects }).resolved
    const wanted = finish(plane.render(table, { base: state, without: new Set() }))
    const plan = finish(plane.diff(state, wanted))
    return [...plan.describe()].map(({ verb, object }) => `${verb} ${object}`)
  } finally {
    await client.close()
  }
}

/** What leaves one commit later than the rest, when lists shrink: no packet finds the way to it any more. */
const LATE =
  /^remove (element ip6? kube-proxy (slots|endpoints-(tcp|udp|sctp)|dispatch) |chain )|^change chain /

/**
 * Whether the kernel holds exactly what one of these lists of objects asks for, or would but for what leaves later.
 * Tables that are not there at all are as good as no objects.
 */
export async function isAtRest(versions: readonly (readonly object[])[]): Promise<boolean> {
  for (const objects of versions) {
    const left = await differences(objects)
    if (left.every(line => LATE.test(line))) return true
    if (objects.length === 0 && !listRuleset().includes('kube-proxy')) return true
  }
  return false
}

/** What the tools print of both families, in no order of chains or of Services, without counters. */
export function savedByTools(): { readonly ours: readonly string[]; readonly foreign: readonly string[] } {
  const lines = ['iptables', 'ip6tables'].flatMap(family =>
    execFileSync(`${family}-nft-save`, { encoding: 'utf8', maxBuffer: 256 << 20 })
      .split('\n')
      .filter(line => /^[:*-]/.test(line))
      .map(line => `${family} ${line.replace(/\[\d+:\d+\]/, '')}`),
  )
  const isOurs = (line: string): boolean => /KUBE-(?!KUBELET)/.test(line)
  return { ours: lines.filter(isOurs).sort(), foreign: lines.filter(line => !isOurs(line)) }
}

/** The kernel's generation: it grows with every commit by anyone. */
export async function generation(): Promise<number> {
  const { client } = openPlane({})
  try {
    return client.generation()
  } finally {
    await client.close()
  }
}
