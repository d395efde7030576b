import { execFileSync, spawnSync } from 'node:child_process'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import type { FrontendTable } from '../../src/model/frontend.ts'
import { createNftablesPlane } from '../../src/modes/nftables/plane.ts'
import { DEFAULT_NFTABLES_OPTIONS, type NftablesOptions } from '../../src/modes/nftables/settings.ts'
import type { NftablesPlan, NftablesState } from '../../src/modes/nftables/state.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Dataplane, Receipt } from '../../src/reconcile/dataplane.ts'
import { backends, clusterIp, ip4, ip6, service, table } from '../support/frontends.ts'
import { everyKind, largeService } from '../support/services.ts'

type Plane = Dataplane<NftablesState, NftablesPlan>

let client: NftClient
let plane: Plane

function planeWith(options: Partial<NftablesOptions>): Plane {
  return createNftablesPlane({ client, options: { ...DEFAULT_NFTABLES_OPTIONS, ...options } })
}

beforeAll(() => {
  client = createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock: systemClock })
  plane = planeWith({})
})

afterEach(() => nft('flush', 'ruleset'))
afterAll(() => client.close())

function nft(...args: string[]): string {
  return execFileSync('nft', args, { encoding: 'utf8', maxBuffer: 64 << 20 })
}

/** Commits what `frontends` asks for, on top of what `from` says is there, until nothing waits. */
async function program(
  frontends: FrontendTable,
  from: NftablesState,
  on: Plane = plane,
): Promise<{ state: NftablesState; receipts: Receipt[] }> {
  const wanted = finish(on.render(frontends, { base: from, without: new Set() }))
  const receipts: Receipt[] = []
  let state = from
  for (let rounds = 0; rounds < 3; rounds++) {
    const plan = finish(on.diff(state, wanted))
    if (plan.empty) return { state: wanted, receipts }
    const receipt = await on.commit(plan, {})
    receipts.push(receipt)
    expect(receipt.refusals.map(({ error }) => error.message)).toEqual([])
    expect(receipt.outcome).toBe('committed')
    state = plan.after
  }
  throw new Error('three commits were not enough')
}

/** All of that, with lists long enough to be rounded. */
function everything(v6: boolean): ReturnType<typeof service>[] {
  return [...everyKind(v6), largeService(v6)]
}

const NODE: Partial<FrontendTable> = {
  node: {
    ips: [],
    podCidrs: [
      { ip: ip4(10, 20, 0, 0), bits: 16 },
      { ip: ip6(0x20, 0), bits: 64 },
    ],
  },
  serviceCidrs: [
    { ip: ip4(10, 96, 0, 0), bits: 12 },
    { ip: ip6(0x96, 0), bits: 108 },
  ],
}
const CLUSTER = table([...everything(false), ...everything(true)], NODE)

/** nft has no JSON for statements that change a map, as those of session affinity do (docs/differences.md). */
const KNOWN_GAP = 'warning: stmt ops map have no json callback'

/** What nft prints of it, as text and as JSON, without a sign of not understanding. */
function listed(): string {
  const { text, warnings } = printed('list', 'ruleset')
  expect(warnings).toEqual([])
  expect(text).not.toContain('[invalid type]')
  const json = printed('-j', 'list', 'ruleset')
  const gaps = text.match(/ (?:add|update|delete) @affinity \{/g)?.length ?? 0
  expect(json.warnings.filter(line => line !== KNOWN_GAP)).toEqual([])
  // Later versions have no gap.
  expect([0, gaps]).toContain(json.warnings.length)
  const { nftables }: { readonly nftables: readonly object[] } = JSON.parse(json.text)
  const held = (kind: string) => nftables.filter(each => kind in each).length
  const counted = (pattern: RegExp) => text.match(pattern)?.length ?? 0
  for (const kind of ['table', 'set', 'map', 'chain'])
    expect(held(kind), kind).toBe(counted(new RegExp(`^\\t?${kind} `, 'gm')))
  const chains = text.match(/^\tchain [^{]*\{\n(?:\t\t.*\n)*/gm) ?? []
  const rules = chains.flatMap(chain => chain.match(/^\t\t(?!type ).*$/gm) ?? [])
  expect(held('rule')).toBe(rules.length)
  return text
}

function printed(...args: string[]): { readonly text: string; readonly warnings: readonly string[] } {
  const { status, stdout, stderr } = spawnSync('nft', args, { encoding: 'utf8', maxBuffer: 64 << 20 })
  expect(status).toBe(0)
  return { text: stdout, warnings: stderr.split('\n').filter(line => line !== '') }
}

describe('the nftables plane on the kernel', () => {
  it('programs every kind of Service in one commit, and nft lists it', async () => {
    const { receipts } = await program(CLUSTER, plane.empty)
    expect(receipts).toHaveLength(1)
    const text = listed()
    expect(text).toMatch(/10\.96\.0\.1 \. tcp \. 80 comment "ns\/plain:http" : 8[0-9a-f]{3}:[0-9a-f]+/)
    expect(text).toMatch(/"ns\/affine-6:b"/)
    expect(text).toContain('chain fw-loc-5-2 {')
    expect(text).toContain('chain aff-5-10800 {')
  })

  it('finds on the kernel what it put there: nothing to do, and nothing done', async () => {
    await program(CLUSTER, plane.empty)
    const { state, generation } = await plane.observe()
    const again = finish(plane.render(CLUSTER, { base: state, without: new Set() }))
    const plan = finish(plane.diff(state, again))
    expect([...plan.describe()]).toEqual([])
    expect(plan.empty).toBe(true)
    expect(plane.generation()).toBe(generation)
  })

  it.each([
    ['an interface', { kind: 'interface', name: 'cni0' }, 'iifname "cni0" goto'],
    [
      'the beginning of an interface name',
      { kind: 'interface-prefix', prefix: 'veth' },
      'iifname "veth*" goto',
    ],
  ] as const)('tells pods by %s, in words that nft prints', async (_, option, words) => {
    const other = planeWith({ detector: { IPv4: option, IPv6: option }, masqueradeBit: 31 })
    await program(CLUSTER, other.empty, other)
    expect(listed()).toContain(words)
    const { state } = await other.observe()
    const again = finish(other.render(CLUSTER, { base: state, without: new Set() }))
    expect([...finish(other.diff(state, again)).describe()]).toEqual([])
  })

  it('answers NodePorts on some addresses only', async () => {
    const ips = { IPv4: [ip4(192, 168, 0, 2)], IPv6: [ip6(1, 2)] }
    const nodePorts = {
      IPv4: { kind: 'only', ips: ips.IPv4 },
      IPv6: { kind: 'only', ips: ips.IPv6 },
    } as const
    const { state } = await program(CLUSTER, plane.empty)
    const some = await program({ ...CLUSTER, nodePorts }, state)
    expect(listed()).toContain('ip daddr @nodeport-ips')
    await program(CLUSTER, some.state)
    expect(listed()).not.toContain('nodeport-ips')
  })

  it('replaces a table whose sets are too small, in one commit', async () => {
    const before = await program(CLUSTER, plane.empty)
    const many = Array.from({ length: 1200 }, (_, i) =>
      service(`many/s${i}`, [
        { frontends: [clusterIp(ip4(10, 97, i >>> 8, i & 255), 80)], cluster: backends(4, { from: i }) },
      ]),
    )
    const { receipts } = await program(table([...everything(false), ...many], NODE), before.state)
    expect(receipts).toHaveLength(1)
    expect(nft('list', 'set', 'ip', 'kube-proxy', 'cluster-ips').split('\n')).toContain('\t\tsize 4096')
  })

  it('takes over the table of another proxy of the same name', async () => {
    nft(
      'add table ip kube-proxy; add set ip kube-proxy cluster-ips { type ipv4_addr; }; add chain ip kube-proxy other',
    )
    const { state } = await plane.observe()
    await program(CLUSTER, state)
    expect(listed()).not.toContain('chain other')
  })

  it('removes its own tables, twice if asked, and no others', async () => {
    await program(CLUSTER, plane.empty)
    nft('add table ip other')
    await plane.cleanup()
    await plane.cleanup()
    expect(nft('list', 'tables')).toBe('table ip other\n')
  })

  it('leaves a table alone that only has its name', async () => {
    nft('add table ip kube-proxy; add chain ip kube-proxy services')
    await plane.cleanup()
    expect(nft('list', 'tables')).toBe('table ip kube-proxy\n')
  })

  it('names the Service whose element the kernel refuses', async () => {
    const { state } = await program(CLUSTER, plane.empty)
    nft('add element ip kube-proxy frontends { 10.96.9.9 . tcp . 80 : 0x1 }')
    const extra = service('ns/extra', [
      { frontends: [clusterIp(ip4(10, 96, 9, 9), 80)], cluster: backends(1) },
    ])
    const more = table([...everything(false), ...everything(true), extra], NODE)
    const plan = finish(plane.diff(state, finish(plane.render(more, { base: state, without: new Set() }))))
    const receipt = await plane.commit(plan, {})
    expect(receipt.outcome).toBe('refused')
    expect(receipt.refusals.map(({ services }) => services)).toEqual([['ns/extra']])
    expect(receipt.refusals[0]?.error.message).toMatch(/^Service ns\/extra: .*EEXIST/)
  })
})
