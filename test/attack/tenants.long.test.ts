import { describe, it } from 'vitest'
import { formatIp, formatIpPort, type Ip } from '../../src/base/ip.ts'
import type { Frontend, PortFrontends, ServiceFrontends } from '../../src/model/frontend.ts'
import type { TracePacket, Tracer } from '../../src/proof/evaluate/trace.ts'
import { createRandom } from '../support/apiserver/random.ts'
import { PROTOCOL_NUMBER } from '../support/lab/probe.ts'
import { type Computed, change, computeIn, ip, type Stateful } from '../support/pipeline.ts'
import {
  BY_CHAINS,
  BY_FEWER_RULES,
  BY_IPVS,
  BY_IPVS_CHAINS,
  BY_RULES,
  type Player,
} from '../support/players.ts'
import { LOCAL_IPS } from '../support/scenario.ts'
import { expectHeld, many, rounds, SEED, Tally } from './attack.ts'
import {
  type Change,
  changeBy,
  LOCAL_POD,
  NODE,
  POD_PORT,
  SERVICE_CIDR,
  type Tenant,
} from './tenant-objects.ts'

const STORIES = many(8, 600)
const STEPS = 8
/** Each tries all stories. */
const MODES = 5
const LOCAL: ReadonlySet<Ip> = new Set(LOCAL_IPS.map(ip))
const NODE_IP = ip('192.168.0.2')

/** The objects of both tenants, and those of each as if the other were not there. */
interface Worlds<State extends Stateful> {
  readonly both: Computed<State>
  readonly a: Computed<State>
  readonly b: Computed<State>
}

function opened<State extends Stateful>({ mode }: Player<State>): Worlds<State> {
  const start = change(computeIn(mode, {}, LOCAL_IPS), { objects: [NODE, SERVICE_CIDR] })
  return { both: start, a: start, b: start }
}

function after<State extends Stateful>(worlds: Worlds<State>, tenant: Tenant, its: Change): Worlds<State> {
  return { ...worlds, both: change(worlds.both, its), [tenant]: change(worlds[tenant], its) }
}

function servicesOf({ resolved }: Computed<Stateful>, tenant: Tenant): readonly ServiceFrontends[] {
  return [...resolved.table.services.values()].filter(({ service }) => service.startsWith(`${tenant}/`))
}

/** What a Service has, in words. */
function possessionsOf({ service, ports, healthCheck }: ServiceFrontends): ReadonlyMap<string, unknown> {
  const its = new Map<string, unknown>()
  if (healthCheck !== undefined) its.set(`${service} health check ${healthCheck.port}`, healthCheck)
  for (const port of ports)
    for (const frontend of port.frontends) {
      const { cluster, local, affinityTimeoutS } = port
      its.set(`${service} ${placeOf(frontend)}/${port.protocol}`, [
        frontend,
        cluster,
        local,
        affinityTimeoutS,
      ])
    }
  return its
}

function placeOf({ ip, port }: Frontend): string {
  return ip === undefined ? `${port}` : formatIpPort(ip, port)
}

function allOf(world: Computed<Stateful>, tenant: Tenant): ReadonlyMap<string, unknown> {
  return new Map(servicesOf(world, tenant).flatMap(each => [...possessionsOf(each)]))
}

/** What the first tenant has only where the second one is not. */
function taken(worlds: Worlds<Stateful>): readonly string[] {
  const now = allOf(worlds.both, 'a')
  return [...allOf(worlds.a, 'a')].flatMap(([name, value]) =>
    JSON.stringify(now.get(name)) === JSON.stringify(value) ? [] : [`${name} is no longer as it was`],
  )
}

/** What the second tenant does not get, and no refusal names. */
function unreported(worlds: Worlds<Stateful>, count: (refused: number) => void): readonly string[] {
  const now = allOf(worlds.both, 'b')
  const refusals = servicesOf(worlds.both, 'b').flatMap(its => its.refusals)
  const lost = [...allOf(worlds.b, 'b').keys()].filter(name => !now.has(name))
  count(lost.length)
  return lost.flatMap(name => {
    const [service = '', ...rest] = name.split(' ')
    const isCheck = rest[0] === 'health'
    const place = isCheck ? `${rest.at(-1)}/TCP` : (rest.at(-1) ?? '')
    const address = place.replace(/:\d+\/.*$/, '')
    const isNamed = refusals.some(
      ({ object, value, reason }) =>
        object === `Service ${service}` && [place, address].includes(value) && reason.includes('Service a/'),
    )
    return isNamed ? [] : [`${name} is gone without a refusal that names it`]
  })
}

// ---- packets

const SOURCES = ['203.0.113.9', '198.18.0.1', '8.8.8.8'] as const

function packetsTo(port: PortFrontends, frontend: Frontend): readonly TracePacket[] {
  const to = {
    protocol: PROTOCOL_NUMBER[port.protocol],
    sourcePort: 40_000,
    destination: frontend.ip ?? NODE_IP,
    destinationPort: frontend.port,
  }
  const from = (source: string, interfaceName: string) =>
    ({ ...to, origin: 'interface', source: ip(source), interfaceName }) as const
  return [
    ...SOURCES.map(source => from(source, 'ext0')),
    from('10.180.0.1', 'pod0'),
    from('10.180.9.9', 'pod0'),
    { ...to, origin: 'process', source: NODE_IP },
  ]
}

/** To a pod itself, at a port that Services have. */
const TO_POD: TracePacket = {
  origin: 'interface',
  interfaceName: 'pod0',
  protocol: PROTOCOL_NUMBER.TCP,
  source: ip('10.180.9.9'),
  sourcePort: 40_000,
  destination: ip(LOCAL_POD),
  destinationPort: POD_PORT,
}

function waysOf(tracer: Tracer, packet: TracePacket): string {
  const ways = tracer.ways(packet, { localIps: LOCAL }).map(({ trace, probability }) => {
    const { verdict, destination, masquerade } = trace
    const to = verdict === 'dnat' ? ` ${formatIpPort(destination.ip, destination.port)}` : ''
    return `${verdict}${to}${masquerade ? ' masqueraded' : ''} ${probability.toFixed(6)}`
  })
  return ways.sort().join(', ')
}

interface Astray {
  readonly frontend: Frontend
  readonly before: string
  readonly now: string
  readonly others: readonly ServiceFrontends[]
}

/**
 * Chains of kube-proxy know some ports by their number alone, at every address that is the node's. IPVS mode with these
 * (test/scenarios/ipvs-rules-differences.yaml): a ClusterIP's port with the number of a NodePort is masqueraded as that
 * is. iptables mode (docs/differences.md): a NodePort of that number takes what a Service at the
 * node's address refuses, without endpoints or outside its source ranges; and a health check node port is accepted.
 */
function isKnown(mode: string, { frontend, before, now, others }: Astray): boolean {
  const ports = others.flatMap(({ ports }) => ports.flatMap(port => port.frontends))
  const hasNodePort = ports.some(({ kind, port }) => kind === 'NodePort' && port === frontend.port)
  const unmasked = (ways: string) => ways.replaceAll(' masqueraded', '')
  if (mode === 'ipvs') return hasNodePort && unmasked(now) === unmasked(before)
  const isChecked = others.some(({ healthCheck }) => healthCheck?.port === frontend.port)
  return (
    mode === 'iptables' &&
    /^(reject|accept|drop) \S+$/.test(before) &&
    isLocal(frontend) &&
    (hasNodePort || isChecked)
  )
}

function isLocal({ ip }: Frontend): boolean {
  return ip === undefined || LOCAL.has(ip)
}

/** Packets to what the first tenant has, that go elsewhere when the second one is there. */
function strayed<State extends Stateful>(
  { mode, tracerOf }: Player<State>,
  { a, both }: Worlds<State>,
  traced: () => void,
): readonly string[] {
  const [alone, beside] = [tracerOf(a.state), tracerOf(both.state)]
  const toPod = waysOf(beside, TO_POD)
  if (toPod !== waysOf(alone, TO_POD)) return [`a packet to a pod of the first tenant: ${toPod}`]
  return servicesOf(a, 'a').flatMap(({ ports }) =>
    ports.flatMap(port =>
      port.frontends.flatMap(frontend =>
        packetsTo(port, frontend).flatMap(packet => {
          traced()
          const [before, now] = [waysOf(alone, packet), waysOf(beside, packet)]
          if (isKnown(mode.name, { frontend, before, now, others: servicesOf(both, 'b') })) return []
          const text = `${packet.origin} ${formatIp(packet.source)} to ${port.key} ${placeOf(frontend)}`
          return before === now ? [] : [`${text}: ${now} instead of ${before}`]
        }),
      ),
    ),
  )
}

/** One story of both tenants in one mode; gives what the first tenant lost in it. */
function story<State extends Stateful>(player: Player<State>, seed: number, tally: Tally): readonly string[] {
  const random = createRandom(seed)
  let worlds = opened(player)
  for (let step = 0; step < STEPS; step++) {
    const tenant = random.chance(0.5) ? 'a' : 'b'
    worlds = after(worlds, tenant, changeBy(tenant, random))
    const complaints = [
      ...taken(worlds),
      ...unreported(worlds, count => tally.add('claims of the second tenant refused', count)),
      ...strayed(player, worlds, () => tally.add('packets')),
    ]
    if (complaints.length > 0)
      return complaints.slice(0, 3).map(text => `story ${seed}, step ${step}: ${text}`)
  }
  return []
}

describe('two tenants that want the same addresses, ports and node ports', () => {
  function all<State extends Stateful>(player: Player<State>, tally: Tally): readonly string[] {
    const complaints: string[] = []
    for (const index of rounds('tenants', STORIES, MODES)) {
      tally.add('stories')
      complaints.push(...story(player, SEED * 100_003 + index, tally))
      if (complaints.length >= 5) break
    }
    return complaints
  }

  it('F145: nftables mode: the first keeps all it has, and each refusal of the second is named', ({
    task,
  }) => {
    expectHeld(all(BY_RULES, new Tally(task)))
  })

  it('F145: IPVS mode: the first keeps all it has, and each refusal of the second is named', ({ task }) => {
    expectHeld(all(BY_IPVS, new Tally(task)))
  })

  it('F145: IPVS mode beside chains of iptables: the same', ({ task }) => {
    expectHeld(all(BY_IPVS_CHAINS, new Tally(task)))
  })

  it('F145: iptables mode: the same', ({ task }) => {
    expectHeld(all(BY_CHAINS, new Tally(task)))
  })

  it('F145: iptables mode with --iptables-optimize: the same', ({ task }) => {
    expectHeld(all(BY_FEWER_RULES, new Tally(task)))
  })
})
