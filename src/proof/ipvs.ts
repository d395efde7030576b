import { type Family, familyOf, type Ip } from '../base/ip.ts'
import { type Octets, readU32host, u16be } from '../base/octets.ts'
import { difference, includes, intersection, prefix, type Region, union } from '../base/region.ts'
import type { Ipset, IpsetEntry } from '../kernel/ipset/state.ts'
import { IP_VS_CONN_F_FWD_MASK, IP_VS_CONN_F_MASQ } from '../kernel/ipvs/constants.ts'
import {
  destinationKey,
  isPersistent,
  type RealServer,
  serverKey,
  type VirtualServer,
  WHOLE_ADDRESS,
} from '../kernel/ipvs/state.ts'
import { NF_ACCEPT } from '../kernel/nft/constants.ts'
import {
  BeyondEvaluator,
  chosen,
  chosenTo,
  type Effect,
  type Field,
  type Known,
  type Machine,
  type Of,
} from '../kernel/nft/trace-machine.ts'
import { byRolled, ROLLED_MAX } from '../kernel/nft/trace-random.ts'
import { type ClassMachine, classIn } from './machine.ts'
import { NUMBERS } from './packet-class.ts'

/** What decides about packets outside of nf_tables in IPVS mode: objects of all programs. */
export interface IpvsHeld {
  readonly servers: readonly HeldServer[]
  readonly ipsets: readonly HeldIpset[]
  /** Addresses of all devices. IPVS receives packets to them. */
  readonly addresses: readonly Ip[]
}

export interface HeldServer {
  readonly server: VirtualServer
  readonly destinations: readonly RealServer[]
}

export interface HeldIpset {
  readonly set: Ipset
  readonly entries: readonly IpsetEntry[]
}

/** How often a scheduler chooses real servers of different weights, for all clients together. */
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

/** Values of fields in the order of the levels; below the last one what an entry holds. */
type Tree<T> = Map<Octets, Tree<T> | Leaf<T>>

class Leaf<T> {
  readonly value: T

  constructor(value: T) {
    this.value = value
  }
}

/** A tree and the fields of its levels. */
interface Index<T> {
  readonly fields: readonly Field[]
  readonly tree: Tree<T>
}

function plant<T>(tree: Tree<T>, path: readonly Octets[], holding: (known: T | undefined) => T): void {
  const [key, ...rest] = path
  if (key === undefined) return
  const known = tree.get(key)
  if (rest.length === 0) {
    tree.set(key, new Leaf(holding(known instanceof Leaf ? known.value : undefined)))
    return
  }
  const below: Tree<T> = known instanceof Map ? known : new Map()
  tree.set(key, below)
  plant(below, rest, holding)
}

interface Descent<T> {
  readonly fields: readonly Field[]
  readonly level: number
  readonly found: (machine: ClassMachine, value: T | undefined) => Effect
}

/** Follows packets that have the fields of entries, and those of no entry. */
function descend<T>(machine: ClassMachine, node: Tree<T> | Leaf<T> | undefined, at: Descent<T>): Effect {
  const field = at.fields[at.level]
  if (!(node instanceof Map) || field === undefined)
    return at.found(machine, node instanceof Leaf ? node.value : undefined)
  const next = { ...at, level: at.level + 1 }
  const known = machine.known(field)
  if (typeof known === 'string') return descend(machine, node.get(known), next)
  if (known === undefined) return divide(machine, node, { field, next })
  return byRolled(
    machine,
    number => (node.has(chosen(known, number)) ? chosen(known, number) : ''),
    (key, copy) => descend(classIn(copy), node.get(key), next),
  )
}

/** Divides packets by the values of a field that lead to entries. Values that lead to the same stay together. */
function divide<T>(
  machine: ClassMachine,
  node: Tree<T>,
  { field, next }: { readonly field: Field; readonly next: Descent<T> },
): Effect {
  const region = machine.region(field)
  const groups = new Map<unknown, { readonly below: Tree<T> | Leaf<T>; readonly values: Octets[] }>()
  for (const [value, below] of node) {
    if (!includes(region, value) || !isMet(machine, below, next)) continue
    const key = below instanceof Leaf ? below.value : below
    const group = groups.get(key)
    if (group === undefined) groups.set(key, { below, values: [value] })
    else group.values.push(value)
  }
  const parts = [...groups.values()].map(({ below, values }) => ({ below, part: regionOfValues(values) }))
  const rest = difference(region, union(parts.flatMap(({ part }) => part)))
  const branches = [...parts, { below: undefined, part: rest }].flatMap(({ below, part }) =>
    part.length === 0
      ? []
      : [
          {
            narrowed: [[field, part] as const],
            take: (copy: Machine) =>
              below === undefined
                ? next.found(classIn(copy), undefined)
                : descend(classIn(copy), below, next),
          },
        ],
  )
  return parts.length === 0 ? next.found(machine, undefined) : { kind: 'split', branches }
}

function regionOfValues(values: readonly Octets[]): Region {
  return union(values.map(value => ({ from: value, to: value })))
}

/** Whether some packets of a class have the fields of an entry. */
function isMet<T>(machine: ClassMachine, node: Tree<T> | Leaf<T>, at: Descent<T>): boolean {
  const field = at.fields[at.level]
  if (!(node instanceof Map) || field === undefined) return true
  const next = { ...at, level: at.level + 1 }
  const known = machine.known(field)
  if (typeof known === 'string') {
    const below = node.get(known)
    return below !== undefined && isMet(machine, below, next)
  }
  const region = known === undefined ? machine.region(field) : undefined
  for (const [value, below] of node)
    if ((region === undefined || includes(region, value)) && isMet(machine, below, next)) return true
  return false
}

/** Where packets of some sources are in a set: undefined is everywhere. */
interface Member {
  readonly networks: Region | undefined
}

const MEMBER: Member = { networks: undefined }

/** IPVS and ipsets as the packets of one family meet them. */
export class IpvsClasses {
  readonly #servers: Index<HeldServer> = {
    fields: ['destination', 'protocol', 'destinationPort'],
    tree: new Map(),
  }
  readonly #sets = new Map<string, HeldIpset>()
  readonly #indexes = new Map<string, Index<Member>>()
  readonly #family: Family

  constructor({ servers, ipsets }: IpvsHeld, family: Family) {
    this.#family = family
    for (const ipset of ipsets) this.#sets.set(ipset.set.name, ipset)
    for (const held of servers) {
      const { ip, protocol, port } = held.server
      if (familyOf(ip) !== family || port === 0) continue
      plant(this.#servers.tree, [ip, String.fromCharCode(NUMBERS[protocol]), u16be(port)], () => held)
    }
  }

  /** Matches packets with a set, as ip_set_test() does. */
  match(machine: ClassMachine, { set: name, dimensions, inverted }: Of<'ipset'>): Effect {
    const held = this.#sets.get(name)
    if (held === undefined) throw new BeyondEvaluator(`cannot trace the ipset ${name}`)
    const isIn = (its: boolean): Effect => (its === inverted ? 'break' : 'next')
    const { type, family } = held.set
    const isOther = type !== 'bitmap:port' && family !== this.#family
    if (isOther || dimensions.length < type.split(',').length) return isIn(false)
    if (machine.masquerade && dimensions.includes('src'))
      throw new BeyondEvaluator('cannot trace the source of a masqueraded packet')
    const { fields, tree } = this.#indexOf(held, dimensions)
    const third = addressAt(dimensions[2])
    return descend(machine, tree, {
      fields,
      level: 0,
      found: (its, member) => {
        if (member?.networks === undefined) return isIn(member !== undefined)
        return isAmong(its, { field: third, networks: member.networks }, isIn)
      },
    })
  }

  #indexOf({ set, entries }: HeldIpset, dimensions: Of<'ipset'>['dimensions']): Index<Member> {
    const key = `${set.name} ${dimensions.join()}`
    const known = this.#indexes.get(key)
    if (known !== undefined) return known
    const tree: Tree<Member> = new Map()
    for (const entry of entries)
      for (const path of pathsOf(entry, set.type))
        plant(tree, path, member => memberOf(entry, set.type, member))
    const index = { fields: fieldsOf(set.type, dimensions), tree }
    this.#indexes.set(key, index)
    return index
  }

  /** Sends packets to a real server, as ip_vs_in() does; `next` where they are to no virtual server. */
  balance(machine: ClassMachine): Effect {
    return descend(machine, this.#servers.tree, {
      fields: this.#servers.fields,
      level: 0,
      found: (its, held) => (held === undefined ? 'next' : schedule(its, held)),
    })
  }
}

/** Divides packets by an address in networks. */
function isAmong(
  machine: ClassMachine,
  { field, networks }: { readonly field: Field; readonly networks: Region },
  isIn: (its: boolean) => Effect,
): Effect {
  const known = machine.known(field)
  if (known !== undefined)
    return typeof known === 'string'
      ? isIn(includes(networks, known))
      : byRolled(machine, number => includes(networks, chosen(known, number)), isIn)
  const region = machine.region(field)
  const [inside, outside] = [intersection(region, networks), difference(region, networks)]
  if (inside.length === 0 || outside.length === 0) return isIn(outside.length === 0)
  return {
    kind: 'split',
    branches: [
      { narrowed: [[field, inside]], take: () => isIn(true) },
      { narrowed: [[field, outside]], take: () => isIn(false) },
    ],
  }
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

/** A bitmap of ports matches TCP and UDP. */
const BITMAP_PROTOCOLS: readonly Octets[] = [NUMBERS.TCP, NUMBERS.UDP].map(number =>
  String.fromCharCode(number),
)
const WITH_PORTS: readonly number[] = Object.values(NUMBERS)

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

function memberOf(
  { ip2 = '', prefix2 = 0 }: IpsetEntry,
  type: Ipset['type'],
  known: Member | undefined,
): Member {
  if (type !== 'hash:ip,port,net') return MEMBER
  return { networks: union([...(known?.networks ?? []), prefix(ip2, prefix2)]) }
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
  if (known !== undefined) return machine.balance(known.ip, u16be(known.port))
  const slots = slotsOf(server.scheduler, usable)
  const choice = slots.length === 1 ? undefined : machine.roll(slots.length, 0)
  const of = (read: (its: RealServer) => Octets): Known =>
    choice === undefined ? read(first) : chosenTo(choice, number => read(slots[readU32host(number)] ?? first))
  if (isPersistent(server)) machine.remember(place, of(placeOf), server.timeoutS * 1000)
  return machine.balance(
    of(({ ip }) => ip),
    of(({ port }) => u16be(port)),
  )
}

function placeOf({ ip, port }: RealServer): Octets {
  return ip + u16be(port)
}

/** Lists real servers as often as they are chosen. */
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
