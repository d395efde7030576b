import { type Family, familyOf, type Ip } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import { type Octets, readU32host, u16be, u32host } from '../../base/octets.ts'
import type { Ipset, IpsetEntry } from '../../kernel/ipset/state.ts'
import {
  destinationKey,
  type HeldIpset,
  type HeldServer,
  IP_VS_CONN_F_FWD_MASK,
  IP_VS_CONN_F_MASQ,
  type IpvsHeld,
  isPersistent,
  type RealServer,
  serverKey,
  WHOLE_ADDRESS,
} from '../../kernel/ipvs/state.ts'
import { NF_ACCEPT } from '../../kernel/nft/constants.ts'
import { descend, type Index, plant, Tree } from './field-trees.ts'
import type { ClassMachine, Effect } from './machine.ts'
import { balance, byRegion, eachRolled } from './random.ts'
import { difference, prefix, type Region, union } from './region.ts'
import { BeyondEvaluator, chosenTo, type Field, type Known, type Of, ROLLED_MAX } from './values.ts'

/** The schedulers' division of connections between real servers of different weights, for all clients together. */
const SHARES: Readonly<Record<string, 'equal' | 'by weight'>> = {
  rr: 'equal',
  lc: 'equal',
  wrr: 'by weight',
  wlc: 'by weight',
  sed: 'by weight',
  nq: 'by weight',
  sh: 'by weight',
  mh: 'by weight',
  twos: 'by weight',
}

/** Says what the proof takes for granted about virtual servers. */
export function ipvsAssumptions({ servers }: IpvsHeld): readonly string[] {
  const others = new Set(
    servers.flatMap(({ server }) => (Object.hasOwn(SHARES, server.scheduler) ? [] : [server.scheduler])),
  )
  return [
    'net.ipv4.vs.* have the values that kprobe sets, and virtual servers of marks receive nothing',
    ...[...others].map(name => `the scheduler ${name} chooses any endpoint that has a weight`),
    ...servers.flatMap(({ server }) => (server.port === 0 ? [`${serverKey(server)} receives nothing`] : [])),
    ...servers.flatMap(({ server }) =>
      isPersistent(server) && server.netmask !== WHOLE_ADDRESS[familyOf(server.ip)]
        ? [`${serverKey(server)} remembers each client by itself`]
        : [],
    ),
  ]
}

/** The sources whose packets are in a set; undefined for all sources. */
interface Member {
  readonly networks: Region | undefined
  readonly entries: readonly IpsetEntry[]
}

const MEMBER: Member = { networks: undefined, entries: [] }

/** An ipset, and trees of its entries by the dimensions that rules match. */
interface KnownSet extends HeldIpset {
  readonly indexes: Map<string, Index<Member>>
}

/** IPVS and ipsets as the packets of one family meet them. */
export class IpvsClasses {
  readonly addresses: readonly Ip[]
  readonly #servers: Index<HeldServer> = {
    fields: ['destination', 'protocol', 'destinationPort'],
    tree: new Tree(),
  }
  readonly #sets = new Map<string, KnownSet>()
  readonly #family: Family

  constructor({ servers, ipsets, addresses }: IpvsHeld, family: Family) {
    this.#family = family
    this.addresses = addresses
    for (const { set, entries } of ipsets)
      this.#sets.set(set.name, { set, entries: this.#isOfFamily(set) ? entries : [], indexes: new Map() })
    for (const held of servers) {
      const { ip, protocol, port } = held.server
      const path = [ip, String.fromCharCode(PROTOCOL_NUMBERS[protocol]), u16be(port)]
      if (familyOf(ip) === family && port !== 0) plant(this.#servers.tree, path, () => held)
    }
  }

  #isOfFamily({ type, family }: HeldIpset['set']): boolean {
    return type === 'bitmap:port' || family === this.#family
  }

  /** Matches packets with a set, as ip_set_test() does. */
  match(machine: ClassMachine, { set: name, dimensions, inverted }: Of<'ipset'>): Effect {
    const known = this.#sets.get(name)
    if (known === undefined) throw new BeyondEvaluator(`cannot trace the ipset ${name}`)
    const isIn = (its: boolean): Effect => (its === inverted ? 'break' : 'next')
    const { set } = known
    if (!this.#isOfFamily(set) || dimensions.length < set.type.split(',').length) return isIn(false)
    if (machine.masquerade && dimensions.includes('src'))
      throw new BeyondEvaluator('cannot trace the source of a masqueraded packet')
    const all = dimensions.join()
    const index = known.indexes.get(all) ?? indexOf(known, dimensions)
    known.indexes.set(all, index)
    const { fields, tree } = index
    const third = addressAt(dimensions[2])
    return descend(machine, tree, {
      fields,
      level: 0,
      found: (its, member) => {
        if (member?.networks === undefined) return isIn(member !== undefined)
        return byRegion(its, [third, member.networks], isIn)
      },
    })
  }

  /** Sends packets to a real server, as ip_vs_in() does; `next` where they are to no virtual server. */
  balance(machine: ClassMachine): Effect {
    const { fields, tree } = this.#servers
    return descend(machine, tree, {
      fields,
      level: 0,
      found: (its, held) => (held === undefined ? 'next' : schedule(its, held)),
    })
  }
}

function indexOf({ set, entries }: KnownSet, dimensions: Of<'ipset'>['dimensions']): Index<Member> {
  const tree = new Tree<Member>()
  for (const entry of entries)
    for (const path of pathsOf(entry, set.type)) plant(tree, path, member => memberWith(set, member, entry))
  return { fields: fieldsOf(set.type, dimensions), tree }
}

type Dimension = Of<'ipset'>['dimensions'][number]

function addressAt(dimension: Dimension | undefined): Field {
  return dimension === 'src' ? 'source' : 'destination'
}

function portAt(dimension: Dimension | undefined): Field {
  return dimension === 'src' ? 'sourcePort' : 'destinationPort'
}

function fieldsOf(type: Ipset['type'], [first, second, third]: Of<'ipset'>['dimensions']): readonly Field[] {
  switch (type) {
    case 'hash:ip':
      return [addressAt(first)]
    case 'bitmap:port':
      return ['protocol', portAt(first)]
    case 'hash:ip,port':
    case 'hash:ip,port,net':
      return [addressAt(first), 'protocol', portAt(second)]
    case 'hash:ip,port,ip':
      return [addressAt(first), 'protocol', portAt(second), addressAt(third)]
  }
}

const BITMAP_PROTOCOLS: readonly Octets[] = [PROTOCOL_NUMBERS.TCP, PROTOCOL_NUMBERS.UDP].map(number =>
  String.fromCharCode(number),
)
const WITH_PORTS: readonly number[] = Object.values(PROTOCOL_NUMBERS)

function pathsOf(
  { ip = '', protocol = 0, port = 0, ip2 = '' }: IpsetEntry,
  type: Ipset['type'],
): readonly (readonly Octets[])[] {
  const number = u16be(port)
  if (type === 'bitmap:port') return BITMAP_PROTOCOLS.map(its => [its, number])
  if (type === 'hash:ip') return [[ip]]
  if (!WITH_PORTS.includes(protocol))
    throw new BeyondEvaluator(`cannot trace an ipset with an entry of protocol ${protocol}`)
  const path = [ip, String.fromCharCode(protocol), number]
  return [type === 'hash:ip,port,ip' ? [...path, ip2] : path]
}

/** Adds an entry to those of a path. Of the networks that hold a source, the longest prefix decides. */
function memberWith({ type }: HeldIpset['set'], member: Member | undefined, entry: IpsetEntry): Member {
  if (type !== 'hash:ip,port,net') return MEMBER
  const entries = [...(member?.entries ?? []), entry]
  const sorted = entries.toSorted((a, b) => (a.prefix2 ?? 0) - (b.prefix2 ?? 0))
  let networks: Region = []
  for (const { ip2 = '', prefix2 = 0, nomatch } of sorted) {
    const its = [prefix(ip2, prefix2)]
    networks = nomatch === true ? difference(networks, its) : union([...networks, ...its])
  }
  return { networks, entries }
}

/** Chooses a real server. Those of weight 0 receive no new connections, remembered clients neither. */
function schedule(machine: ClassMachine, { server, destinations }: HeldServer): Effect {
  machine.server = server
  const usable = destinations.filter(({ weight }) => weight > 0)
  const [first] = usable
  if (first === undefined) return { kind: 'reject' }
  // The packets leave as they are, to the machine of a real server.
  if (usable.some(({ forwarding }) => (forwarding & IP_VS_CONN_F_FWD_MASK) !== IP_VS_CONN_F_MASQ))
    return { kind: 'verdict', verdict: { code: NF_ACCEPT, chain: undefined } }
  const place = `ipvs ${serverKey(server)}`
  const last = isPersistent(server) ? machine.recall(place) : undefined
  const known = usable.find(its => placeOf(its) === last)
  if (known !== undefined) return balance(machine, known.ip, u16be(known.port))
  const slots = slotsOf(server.scheduler, usable)
  const send = (its: ClassMachine, choice: Known): Effect => {
    const of = (read: (to: RealServer) => Octets): Known =>
      chosenTo(choice, number => read(slots[readU32host(number)] ?? first))
    if (isPersistent(server)) its.remember(place, of(placeOf), server.timeoutS * 1000)
    return balance(
      its,
      of(({ ip }) => ip),
      of(({ port }) => u16be(port)),
    )
  }
  const number = machine.random(slots.length)
  if (number !== undefined) return send(machine, u32host(number))
  const choice = machine.roll(slots.length, 0)
  if (machine.single === undefined) return send(machine, choice)
  return eachRolled(machine, (copy, its) => send(copy, u32host(its)))
}

function placeOf({ ip, port }: RealServer): Octets {
  return ip + u16be(port)
}

function slotsOf(scheduler: string, usable: readonly RealServer[]): readonly RealServer[] {
  const sorted = [...usable].sort((a, b) => (destinationKey(a) < destinationKey(b) ? -1 : 1))
  if (SHARES[scheduler] !== 'by weight') return sorted
  const unit = sorted.reduce((divisor, { weight }) => gcd(divisor, weight), 0)
  const slots = sorted.reduce((sum, { weight }) => sum + weight / unit, 0)
  if (slots > ROLLED_MAX) throw new BeyondEvaluator(`cannot trace weights of ${slots} in all`)
  return sorted.flatMap(its => new Array<RealServer>(its.weight / unit).fill(its))
}

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b)
}
