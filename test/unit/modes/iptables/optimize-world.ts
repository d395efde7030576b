import fc from 'fast-check'
import type { Ip } from '../../../../src/base/ip.ts'
import type { XtChain } from '../../../../src/kernel/xt/scope.ts'
import type { Backend, Frontend, FrontendTable, ServiceFrontends } from '../../../../src/model/frontend.ts'
import type { Protocol } from '../../../../src/model/service.ts'
import { fixedChains, jumpsOf } from '../../../../src/modes/iptables/chains.ts'
import { rulesOfService } from '../../../../src/modes/iptables/render.ts'
import { DEFAULT_IPTABLES_OPTIONS, type IptablesOptions } from '../../../../src/modes/iptables/settings.ts'
import { type Statics, staticsOf } from '../../../../src/modes/iptables/state.ts'
import type { Tracer } from '../../../../src/proof/evaluate/trace.ts'
import {
  CLUSTER,
  clusterIp,
  DROP,
  EXTERNAL,
  EXTERNAL_LOCAL,
  ip4,
  ip6,
  LOCAL,
  nodePort,
  type PortSpec,
  REJECT,
  service,
  table,
  vip,
} from '../../../support/frontends.ts'
import { createXtTracer } from '../../../support/tracers.ts'

/** Services of which several have the same endpoints, and addresses that end alike. */

export const NODE_IP = ip4(192, 168, 0, 0x21)
const NODE_IP_6 = ip6(0x99, 0x21)

interface Shape {
  readonly v6: boolean
  readonly protocol: Protocol
  readonly endpoints: 'none' | 'few' | 'others' | 'many'
  readonly local: boolean
  readonly internal: 'Cluster' | 'Local'
  readonly external: 'none' | 'Cluster' | 'Local'
  readonly ranged: boolean
  readonly affine: boolean
  readonly twoPorts: boolean
  readonly checked: boolean
  /** Of the addresses of this Service. */
  readonly lastByte: number
  readonly nodePort: number
}

export const shapes: fc.Arbitrary<readonly Shape[]> = fc.array(
  fc.record({
    v6: fc.boolean(),
    protocol: fc.constantFrom<Protocol>('TCP', 'TCP', 'UDP', 'SCTP'),
    endpoints: fc.constantFrom('none', 'few', 'few', 'others', 'many'),
    local: fc.boolean(),
    internal: fc.constantFrom('Cluster', 'Cluster', 'Local'),
    external: fc.constantFrom('none', 'Cluster', 'Local'),
    ranged: fc.boolean(),
    affine: fc.boolean(),
    twoPorts: fc.boolean(),
    checked: fc.boolean(),
    lastByte: fc.constantFrom(0x00, 0x03, 0x13, 0x20, 0x21, 0xf0, 0xff),
    nodePort: fc.constantFrom(1, 29_999, 30_000, 30_043, 30_044, 30_172, 30_173, 32_767, 32_768, 65_535),
  }),
  { minLength: 1, maxLength: 8 },
)

export const options: fc.Arbitrary<IptablesOptions> = fc
  .record({
    masqueradeAll: fc.boolean(),
    detected: fc.boolean(),
    localhostNodePorts: fc.boolean(),
    counted: fc.boolean(),
  })
  .map(({ masqueradeAll, detected, localhostNodePorts, counted }) => ({
    ...DEFAULT_IPTABLES_OPTIONS,
    masqueradeAll,
    localhostNodePorts,
    nfacct: { invalidDropped: counted, localhostAccepted: counted },
    detector: detected
      ? {
          IPv4: { kind: 'cidr', cidr: { ip: ip4(10, 20, 0, 0), bits: 15 } },
          IPv6: { kind: 'interface-prefix', prefix: 'veth' },
        }
      : { IPv4: undefined, IPv6: undefined },
  }))

export function worldOf(all: readonly Shape[], onlyNodeIp: boolean): FrontendTable {
  const taken = new Set<string>()
  const free = ({ ip, port }: Frontend, { protocol, v6 }: Shape): boolean => {
    const key = `${protocol} ${v6} ${ip} ${port}`
    return !taken.has(key) && taken.add(key) !== undefined
  }
  return table(
    all.map((shape, index) => serviceOf(shape, index, frontend => free(frontend, shape))),
    {
      nodePorts: {
        IPv4: onlyNodeIp ? { kind: 'only', ips: [NODE_IP] } : { kind: 'all' },
        IPv6: { kind: 'all' },
      },
      localIps: [NODE_IP, NODE_IP_6],
    },
  )
}

function serviceOf(shape: Shape, index: number, free: (frontend: Frontend) => boolean): ServiceFrontends {
  const first = portOf(shape, 80)
  const second = { ...portOf(shape, 81), name: 'more' }
  const made = service(
    `ns/s${index}`,
    [first, ...(shape.twoPorts ? [second] : [])].map(port => ({
      ...port,
      frontends: port.frontends.filter(free),
    })),
  )
  const hasCheck = shape.checked && shape.external === 'Local'
  return hasCheck ? { ...made, healthCheck: { port: 30_100 + index, local: {} } } : made
}

function portOf(shape: Shape, number: number): PortSpec {
  const { v6, protocol, affine } = shape
  const cluster = endpointsOf(shape)
  const local = cluster.filter(backend => backend.local)
  return {
    v6,
    protocol,
    affinityTimeoutS: affine ? 60 : 0,
    frontends: [
      clusterIp(addressOf(shape, 96), number, internalRoute(shape, cluster, local)),
      ...externalFrontends(shape, number, cluster),
    ],
    cluster,
    local,
  }
}

function internalRoute(
  { internal }: Shape,
  cluster: readonly Backend[],
  local: readonly Backend[],
): Frontend['route'] {
  if (cluster.length === 0) return REJECT
  if (internal === 'Cluster') return CLUSTER
  return local.length === 0 ? DROP : LOCAL
}

const RANGES = [
  { ip: ip4(203, 0, 113, 0), bits: 24 },
  { ip: ip4(10, 20, 0, 0), bits: 16 },
]
const RANGES_6 = [{ ip: ip6(0x50, 0), bits: 64 }]

function externalFrontends(shape: Shape, number: number, cluster: readonly Backend[]): readonly Frontend[] {
  if (shape.external === 'none') return []
  const route = cluster.length === 0 ? REJECT : shape.external === 'Cluster' ? EXTERNAL : EXTERNAL_LOCAL
  const ranges = shape.v6 ? RANGES_6 : RANGES
  const balanced = vip(addressOf(shape, 200), number, route, shape.ranged ? ranges : undefined)
  return [
    nodePort(shape.nodePort + (number === 80 ? 0 : -1), route),
    { ...vip(addressOf(shape, 201), number, route), kind: 'ExternalIP' },
    // As an object may list them: one of them twice.
    shape.ranged ? { ...balanced, writtenRanges: [...ranges, ...ranges] } : balanced,
  ]
}

function addressOf({ v6, lastByte }: Shape, prefix: number): Ip {
  return v6 ? ip6(prefix, lastByte) : ip4(10, prefix, 0, lastByte)
}

function endpointsOf({ v6, endpoints, local }: Shape): readonly Backend[] {
  const [from, count] = { none: [0, 0], few: [1, 2], others: [2, 3], many: [1, 7] }[endpoints]
  return Array.from({ length: count ?? 0 }, (_, at) => {
    const last = (from ?? 0) + at
    const isLocal = local && last < 3
    const prefix = isLocal ? 20 : 21
    return { ip: v6 ? ip6(prefix, last) : ip4(10, prefix, 0, last), port: 8080, local: isLocal }
  })
}

export interface Drafted {
  readonly statics: Statics
  /** With entries among the rules, by `ip nat NAME`. */
  readonly chains: ReadonlyMap<string, XtChain>
  readonly tracer: Tracer
}

export function draft(frontends: FrontendTable, chosen: IptablesOptions, large: boolean): Drafted {
  const statics = staticsOf(chosen, frontends, large)
  const chains = new Map(fixedChains(statics).map(chain => [keyOf(chain), chain]))
  const rules = [...frontends.services.values()].map(one => rulesOfService(one, statics))
  for (const chain of rules.flatMap(one => one.chains)) chains.set(keyOf(chain), chain)
  for (const { rule, ...place } of rules.flatMap(one => one.entries)) {
    const key = keyOf({ ...place, name: place.chain })
    const chain = chains.get(key)
    if (chain === undefined) throw new Error(`an entry in ${key}, which nobody asked for`)
    chains.set(key, { ...chain, rules: [...chain.rules, rule] })
  }
  const tracer = createXtTracer(() => {
    return { chains: chains.values(), jumps: jumpsOf(statics), print: rule => JSON.stringify(rule) }
  })
  return { statics, chains, tracer }
}

function keyOf({ family, table, name }: Pick<XtChain, 'family' | 'table' | 'name'>): string {
  return `${family} ${table} ${name}`
}
