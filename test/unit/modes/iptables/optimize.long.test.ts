import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { FrontendTable } from '../../../../src/model/frontend.ts'
import { rulesOfService } from '../../../../src/modes/iptables/render.ts'
import { DEFAULT_IPTABLES_OPTIONS, type IptablesOptions } from '../../../../src/modes/iptables/settings.ts'
import type { TracePacket, Way } from '../../../../src/proof/evaluate/trace.ts'
import { clusterIp, EXTERNAL, ip4, ip6, nodePort, service, table } from '../../../support/frontends.ts'
import { type Drafted, draft, NODE_IP, options, shapes, worldOf } from './optimize-world.ts'

const SURROUNDINGS = { localIps: new Set([NODE_IP, ip6(0x99, 0x21)]) }
const LAST_BYTES = [0x00, 0x03, 0x13, 0x20, 0x21, 0xf0, 0xff, 0x02, 0x30]
const PORTS = [
  80, 81, 1, 8080, 29_998, 29_999, 30_000, 30_043, 30_044, 30_101, 30_172, 30_173, 32_766, 32_767, 32_768,
  65_535,
]

const packets: fc.Arbitrary<TracePacket> = fc
  .record({
    v6: fc.boolean(),
    origin: fc.constantFrom<TracePacket['origin']>('interface', 'process'),
    protocol: fc.constantFrom(6, 6, 6, 17, 132, 1),
    from: fc.constantFrom('pod', 'endpoint', 'client', 'stranger', 'node'),
    to: fc.constantFrom('cluster', 'cluster', 'vip', 'external', 'node', 'loopback', 'endpoint', 'far'),
    lastByte: fc.constantFrom(...LAST_BYTES),
    destinationPort: fc.constantFrom(...PORTS),
    interfaceName: fc.constantFrom('veth1', 'ext0'),
  })
  .map(({ v6, origin, protocol, from, to, lastByte, destinationPort, interfaceName }) => ({
    origin,
    protocol,
    source: from === 'node' ? nodeIp(v6) : v6 ? SOURCES_6[from] : SOURCES[from],
    sourcePort: 40_000,
    destination: destinationOf(to, v6, lastByte),
    destinationPort,
    ...(origin === 'interface' ? { interfaceName } : {}),
  }))

const SOURCES = {
  pod: ip4(10, 20, 0, 77),
  endpoint: ip4(10, 20, 0, 1),
  client: ip4(203, 0, 113, 5),
  stranger: ip4(198, 51, 100, 5),
}
const SOURCES_6 = { pod: ip6(0x20, 77), endpoint: ip6(20, 1), client: ip6(0x50, 5), stranger: ip6(0x51, 5) }
const PREFIXES = { cluster: 96, vip: 200, external: 201, endpoint: 21, far: 55 }

function nodeIp(v6: boolean): string {
  return v6 ? ip6(0x99, 0x21) : NODE_IP
}

function destinationOf(to: keyof typeof PREFIXES | 'node' | 'loopback', v6: boolean, last: number): string {
  if (to === 'node') return nodeIp(v6)
  if (to === 'loopback') return v6 ? `${'\0'.repeat(15)}\x01` : ip4(127, 0, 0, 1)
  return v6 ? ip6(PREFIXES[to], last) : ip4(10, PREFIXES[to], 0, last)
}

function optimized(chosen: IptablesOptions): IptablesOptions {
  return { ...chosen, optimize: true }
}

/** By what becomes of a connection: how likely that is, and how the packet is marked then. */
function outcomes(ways: readonly Way[]): ReadonlyMap<string, number> {
  return new Map(
    ways.map(({ trace: { verdict, destination, masquerade, mark }, probability }) => [
      JSON.stringify([verdict, destination, masquerade, mark]),
      probability,
    ]),
  )
}

function expectSame(plain: readonly Way[], other: readonly Way[]): void {
  const [before, after] = [outcomes(plain), outcomes(other)]
  expect([...after.keys()].sort()).toEqual([...before.keys()].sort())
  for (const [outcome, probability] of before) expect(after.get(outcome)).toBeCloseTo(probability, 9)
}

describe('the optimizer', () => {
  it('changes no verdict, no destination and no masquerading, nor how likely they are', () => {
    const seen = new Set<string>()
    fc.assert(
      fc.property(
        shapes,
        options,
        fc.boolean(),
        fc.boolean(),
        fc.array(packets, { minLength: 20, maxLength: 40 }),
        (all, chosen, large, onlyNodeIp, sent) => {
          const frontends = worldOf(all, onlyNodeIp)
          const plain = draft(frontends, chosen, large).tracer
          const other = draft(frontends, optimized(chosen), large).tracer
          for (const packet of sent) {
            const before = plain.ways(packet, SURROUNDINGS)
            expectSame(before, other.ways(packet, SURROUNDINGS))
            for (const { trace } of before) seen.add(`${trace.verdict} ${trace.masquerade}`)
          }
        },
      ),
      { numRuns: 150 },
    )
    expect([...seen].sort()).toEqual([
      'accept false',
      'dnat false',
      'dnat true',
      'drop false',
      'reject false',
    ])
  })

  it('remembers clients as before', () => {
    let remembered = 0
    fc.assert(
      fc.property(
        shapes,
        options,
        fc.array(packets, { minLength: 10, maxLength: 20 }),
        (all, chosen, sent) => {
          const frontends = worldOf(
            all.map(shape => ({ ...shape, affine: true })),
            false,
          )
          const plain = draft(frontends, chosen, false).tracer
          const other = draft(frontends, optimized(chosen), false).tracer
          for (const packet of sent) {
            for (const { trace } of plain.ways(packet, SURROUNDINGS)) {
              if (trace.dynamic.size === 0) continue
              const again = { ...SURROUNDINGS, dynamic: trace.dynamic }
              const before = plain.ways(packet, again)
              expectSame(before, other.ways(packet, again))
              if (before.length === 1) remembered++
            }
          }
        },
      ),
      { numRuns: 200 },
    )
    expect(remembered).toBeGreaterThan(5)
  })

  it('begins the names of its chains in nat as kube-proxy begins those of Services, so that it removes them', () => {
    const plain = draft(table([]), DEFAULT_IPTABLES_OPTIONS, true).chains
    const { chains } = draft(table([]), optimized(DEFAULT_IPTABLES_OPTIONS), true)
    const added = [...chains].filter(([key]) => !plain.has(key)).map(([, chain]) => chain)
    const inNat = added.filter(chain => chain.table === 'nat').map(({ name }) => name)
    expect(inNat.length).toBe(2 * (1 + 16 + 256 + 2 * (1 + 16 + 64)))
    for (const name of inNat) expect(name).toMatch(/^KUBE-SVC-/)
  })

  it('leaves every entry about an address in one of 256 chains', () => {
    const { chains } = draft(many(2_560), optimized(DEFAULT_IPTABLES_OPTIONS), true)
    expect(chains.get('ip nat KUBE-SERVICES')?.rules.map(({ target }) => target)).toEqual([
      { kind: 'jump', chain: 'KUBE-SVC-IP' },
    ])
    const leaves = [...chains.values()].filter(({ name }) => /^KUBE-SVC-IP-..$/.test(name))
    const sizes = leaves.filter(({ family }) => family === 'ip').map(({ rules }) => rules.length)
    expect(sizes).toEqual(Array.from({ length: 256 }, () => 10))
    expect(chains.get('ip nat KUBE-NODEPORTS')?.rules.length).toBe(2)
    expect(entriesOfPorts(chains)).toBe(2_560)
  })

  it('has one chain for an endpoint, and one for a list of endpoints, whoever asks for it', () => {
    const names = (chosen: IptablesOptions, start: string) =>
      [...draft(many(50), chosen, false).chains.values()].filter(({ name }) => name.startsWith(start)).length
    expect(names(DEFAULT_IPTABLES_OPTIONS, 'KUBE-SEP-')).toBe(100)
    expect(names(optimized(DEFAULT_IPTABLES_OPTIONS), 'KUBE-SEP-')).toBe(2)
    const lists = [...draft(many(50), optimized(DEFAULT_IPTABLES_OPTIONS), false).chains.values()]
    expect(lists.filter(({ name }) => /^KUBE-SVC-[A-Z2-7]{16}$/.test(name)).length).toBe(1)
  })

  it('keeps a list apart that masquerades for its own address', () => {
    const chosen = { ...DEFAULT_IPTABLES_OPTIONS, masqueradeAll: true }
    const { chains } = draft(many(50), optimized(chosen), false)
    const lists = (all: Drafted['chains']) =>
      [...all.keys()].filter(key => /KUBE-SVC-[A-Z2-7]{16}$/.test(key))
    expect(lists(chains).length).toBe(50)
    expect(lists(chains).sort()).toEqual(lists(draft(many(50), chosen, false).chains).sort())
  })

  it('has a chain, and an entry, once where two ports of a Service need it', () => {
    const cluster = [{ ip: ip4(10, 21, 0, 1), port: 8080, local: false }]
    const ports = [80, 81].map(port => ({
      name: `p${port}`,
      frontends: [clusterIp(ip4(10, 96, 0, 1), port)],
      cluster,
    }))
    const checked = { ...service('ns/s', ports), healthCheck: { port: 32_000, local: {} } }
    const rules = (chosen: IptablesOptions) => {
      const { chains, entries } = rulesOfService(checked, draft(table([checked]), chosen, false).statics)
      return [chains.length, entries.filter(({ table: name }) => name === 'filter').length]
    }
    expect(rules(DEFAULT_IPTABLES_OPTIONS)).toEqual([4, 2])
    expect(rules(optimized(DEFAULT_IPTABLES_OPTIONS))).toEqual([2, 1])
  })

  it('keeps the chains of Services that remember clients', () => {
    const cluster = [1, 2].map(last => ({ ip: ip4(10, 21, 0, last), port: 8080, local: false }))
    const frontends = [clusterIp(ip4(10, 96, 0, 1), 80)]
    const affine = table([service('ns/s', [{ frontends, cluster, affinityTimeoutS: 60 }])])
    const names = (chosen: IptablesOptions) =>
      [...draft(affine, chosen, false).chains.values()]
        .map(({ name }) => name)
        .filter(name => /^KUBE-(?:SVC|SEP)-[A-Z2-7]{16}$/.test(name))
    expect(names(DEFAULT_IPTABLES_OPTIONS).length).toBe(3)
    expect(names(optimized(DEFAULT_IPTABLES_OPTIONS)).toSorted()).toEqual(
      names(DEFAULT_IPTABLES_OPTIONS).toSorted(),
    )
  })

  it('leaves out a rule that only counts, and one that is written twice', () => {
    const ranges = [
      { ip: ip4(203, 0, 113, 0), bits: 24 },
      { ip: ip4(203, 0, 113, 0), bits: 24 },
    ]
    const frontend = {
      kind: 'LoadBalancerIP',
      ip: ip4(10, 200, 0, 1),
      port: 80,
      route: EXTERNAL,
      sourceRanges: ranges,
    } as const
    const cluster = [{ ip: ip4(10, 21, 0, 1), port: 8080, local: false }]
    const frontends = table([service('ns/s', [{ frontends: [frontend], cluster }])])
    const rules = ({ chains }: Drafted) =>
      [...chains.values()].find(({ name }) => name.startsWith('KUBE-FW-'))?.rules.length
    expect(rules(draft(frontends, DEFAULT_IPTABLES_OPTIONS, false))).toBe(3)
    expect(rules(draft(frontends, optimized(DEFAULT_IPTABLES_OPTIONS), false))).toBe(1)
  })
})

/** Services with a ClusterIP and a NodePort each, and the same two endpoints. */
function many(count: number): FrontendTable {
  const cluster = [1, 2].map(last => ({ ip: ip4(10, 21, 0, last), port: 8080, local: false }))
  const services = Array.from({ length: count }, (_, n) => {
    const frontends = [clusterIp(ip4(10, 96, n >> 8, n & 255), 80), nodePort(30_000 + n, EXTERNAL)]
    return service(`ns/s${n}`, [{ frontends, cluster }])
  })
  return table(services)
}

function entriesOfPorts(chains: Drafted['chains']): number {
  return [...chains.values()]
    .filter(({ name }) => /^KUBE-SVC-TCP-/.test(name))
    .flatMap(({ rules }) => rules)
    .filter(({ target }) => target?.kind === 'jump').length
}
