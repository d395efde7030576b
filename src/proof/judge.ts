import { append } from '../base/collections.ts'
import { formatIpPort } from '../base/ip.ts'
import { type Octets, readU16be } from '../base/octets.ts'
import { difference, intersection, onlyValue, point, type Region, sizeOf, union } from './evaluate/region.ts'
import {
  type Box,
  chosenOf,
  type Doubt,
  type Field,
  LOCAL,
  loopback,
  type RulePlace,
  regionOfIps,
} from './evaluate/values.ts'
import type { Leaf } from './evaluate/walk.ts'
import type { FamilyMeaning, Fate } from './meaning.ts'
import { addressOf, type PacketClass } from './packet-class.ts'
import { Permits } from './permits.ts'

/** Packets whose fate in the kernel differs from the required one. */
export interface Complaint {
  readonly box: Box
  readonly kernel: string
  readonly decidedBy: RulePlace | undefined
  /** The rule that may decide otherwise; undefined where the packets certainly differ. */
  readonly doubt: Doubt | undefined
}

/** The tolerance of rounded shares: docs/differences.md, large endpoint lists. */
const BIAS = 0.013
/** Lists up to this length have exact slots. */
const EXACT_MAX = 16
const ROUNDING = 1e-9
/** A slot more or less of a list whose weights are rounded: docs/balance.md. */
const SLOT = 1 / 4_096

export interface Judging {
  /** The client is remembered: all connections may reach one endpoint. */
  readonly isRemembered: boolean
  /** The endpoint of an earlier connection of the client; undefined where that is unknown. */
  readonly remembered: Octets | undefined
  readonly isRemembering: boolean
  readonly spreads: Spreads
}

/** The destinations of the packets of an end, compared with a list of endpoints. */
interface Spread {
  /** The destination of each rolled number. */
  readonly ends: readonly Octets[]
  /** Their positions in the list; -1 outside of it. */
  readonly places: readonly number[]
  readonly onNode: readonly Octets[]
}

/** Computes spreads. Classes of one service port follow each other. */
export class Spreads {
  readonly areRounded: boolean
  readonly permits: Permits
  readonly #promises: FamilyMeaning['promises']
  readonly #onNode: ReadonlySet<Octets>
  readonly #ofNode: Region
  /** The positions of the endpoints of the list that was last asked for. */
  #places: { readonly of: readonly Octets[]; readonly at: ReadonlyMap<Octets, number> } | undefined

  constructor(meaning: FamilyMeaning) {
    const { localEndpoints, promises, nodeIps, family } = meaning
    this.#ofNode = union([...regionOfIps(nodeIps), ...loopback(family === 'IPv4' ? 4 : 16)])
    this.permits = new Permits(meaning)
    this.#onNode = localEndpoints
    this.areRounded = promises.roundsShares
    this.#promises = promises
  }

  /** Tests whether an endpoint of this node sends the packets to itself and the mode promises to masquerade them. */
  masqueradesItself({ source, destination }: Box): boolean {
    const from = onlyValue(source)
    const isItself = from !== undefined && from === onlyValue(destination) && this.#onNode.has(from)
    return isItself && this.#promises.masqueradesDirectly
  }

  /** Gives the destinations of packets that a process of this node receives because a device has addresses of Services. */
  caught({ machine: { box, to, server }, end }: Leaf): Region {
    const isLeft = end === 'pass' && to === undefined && server === undefined
    const isCaught = this.#promises.bindsAddresses && isLeft
    if (!isCaught || difference(box.destinationType, LOCAL).length > 0) return []
    return difference(box.destination, this.#ofNode)
  }

  of(machine: Leaf['machine'], list: readonly Octets[]): Spread {
    const ends = machine.endpoints()
    const onNode = ends.filter(end => this.#onNode.has(addressOf(end)))
    if (this.#places?.of !== list)
      this.#places = { of: list, at: new Map(list.map((endpoint, place) => [endpoint, place])) }
    const { at } = this.#places
    return { ends, places: ends.map(end => at.get(end) ?? -1), onNode }
  }
}

type Endpoints = Extract<Fate, { kind: 'endpoints' }>

type Judged = Pick<PacketClass, 'fate' | 'box' | 'at'>

/** Compares the ends of the packets of a class with their fate. Gives the first packets that differ, or that may. */
export function judge(its: Judged, leaves: readonly Leaf[], judging: Judging): Complaint | undefined {
  if (leaves.every(({ machine }) => machine.doubt === undefined)) return judgeEnds(its, leaves, judging)
  const plain = leaves.filter(({ machine }) => machine.doubt === undefined)
  const otherwise = leaves.filter(({ machine }) => machine.doubt?.isSupposed === false)
  const supposed = leaves.filter(({ machine }) => machine.doubt?.isSupposed === true)
  return judgeEnds(its, [...plain, ...otherwise], judging) ?? judgeEach(its, supposed, judging)
}

function judgeEach({ fate, at }: Judged, leaves: readonly Leaf[], judging: Judging): Complaint | undefined {
  for (const leaf of leaves) {
    const why = whyWrong(leaf, { fate, at }, judging)
    if (why === undefined) continue
    const kernel = endText(leaf, why.to, judging.spreads.caught(leaf).length > 0)
    const { decidedBy, doubt } = leaf.machine
    return { box: why.box, kernel, decidedBy, doubt }
  }
  return undefined
}

function judgeEnds(its: Judged, leaves: readonly Leaf[], judging: Judging): Complaint | undefined {
  const { fate, box } = its
  const wrong = judgeEach(its, leaves, judging)
  if (wrong !== undefined) return wrong
  if (fate.kind !== 'endpoints') return undefined
  for (const cell of cellsOf(box, whole(leaves, box))) {
    const text = unevenText(cell.leaves, fate, judging)
    if (text === undefined) continue
    const doubt = cell.leaves.find(({ machine }) => machine.doubt !== undefined)?.machine.doubt
    return { box: cell.box, kernel: text, decidedBy: cell.leaves[0]?.machine.decidedBy, doubt }
  }
  return undefined
}

interface Wrong {
  readonly box: Box
  readonly to: Octets | undefined
}

/** Gives by how much a chance may differ from a share. */
function slackOf(share: number, { endpoints, shares }: Endpoints, isRounded: boolean): number {
  if (!isRounded) return ROUNDING
  if (shares !== undefined) return share * shares.tolerance + SLOT
  return endpoints.length <= EXACT_MAX ? ROUNDING : share * BIAS
}

function whyWrong(
  leaf: Leaf,
  { fate: asked, at }: Pick<PacketClass, 'fate' | 'at'>,
  judging: Judging,
): Wrong | undefined {
  const { machine, end } = leaf
  const fate = judging.spreads.permits.fateAt(leaf, asked)
  if (fate === undefined) return undefined
  const { box, delivered, masquerade, written, ownPriority, rolled } = machine
  const all = { box, to: machine.endpoints()[0] }
  const leaves = (end === 'pass' || end === 'endpoint') && !delivered
  if (leaves && machine.isSourceElsewhere) return all
  if (leaves && ownPriority !== undefined)
    if (fate.kind === 'pass' || chosenOf(ownPriority, rolled).some(its => its !== NO_PRIORITY)) return all
  if (fate.kind !== 'endpoints') {
    const destination = fate.kind === 'pass' && typeof at === 'string' ? judging.spreads.caught(leaf) : []
    if (destination.length > 0) return { box: { ...box, destination }, to: undefined }
    const isKind = fate.kind === 'refuse' ? end === 'reject' || end === 'drop' : end === fate.kind
    const isFine =
      isKind && (fate.kind !== 'pass' || !masquerade || delivered || judging.spreads.masqueradesItself(box))
    return isFine && written === undefined ? undefined : all
  }
  if (end !== 'endpoint') return all
  if (judging.isRemembering && (written?.timeoutMs ?? 0) !== fate.affinityS * 1000) return all
  const { ends, places, onNode } = judging.spreads.of(machine, fate.endpoints)
  const stray = places.indexOf(-1)
  if (stray !== -1) return { box, to: ends[stray] }
  if (delivered) return undefined
  if (onNode.length < ends.length && masquerade !== fate.masquerade)
    return { box, to: ends.find(end => !onNode.includes(end)) }
  for (const to of onNode) {
    const source = wrongSources(machine, to, fate)
    if (source.length > 0) return { box: { ...box, source }, to }
  }
  return undefined
}

const NO_PRIORITY = '\0\0\0\0'

/**
 * Gives the sources of packets to an endpoint on this node that are masqueraded and should not be, or that should be
 * and are not: a client that is the endpoint reaches itself by an address of the node.
 */
function wrongSources({ box, masquerade }: Leaf['machine'], to: Octets, fate: Endpoints): Region {
  const own = intersection(box.source, point(addressOf(to)))
  if (masquerade !== fate.masquerade) {
    const others = own.length === 0 ? box.source : difference(box.source, own)
    if (others.length > 0) return others
  }
  return masquerade ? [] : own
}

/** Gives how endpoints are chosen where they are not chosen by their shares; undefined where they are. */
function unevenText(
  leaves: readonly Leaf[],
  fate: Endpoints,
  { isRemembered, remembered, spreads }: Judging,
): string | undefined {
  const { endpoints, shares } = fate
  const chances = new Float64Array(endpoints.length)
  for (const { machine } of leaves) {
    const { places } = spreads.of(machine, endpoints)
    for (const place of places) chances[place] = (chances[place] ?? 0) + machine.probability
  }
  const only = chances.findIndex(chance => Math.abs(chance - 1) < ROUNDING)
  if (isRemembered && only !== -1) {
    const to = endpoints[only] ?? ''
    return remembered === undefined || remembered === to
      ? undefined
      : `a remembered client of ${placeText(remembered)} goes to ${placeText(to)}`
  }
  if (remembered !== undefined) return `a remembered client of ${placeText(remembered)} may go elsewhere`
  const shareOf = (at: number) => shares?.of[at] ?? 1 / endpoints.length
  const odd = chances.findIndex(
    (chance, at) =>
      chance === 0 || Math.abs(chance - shareOf(at)) > slackOf(shareOf(at), fate, spreads.areRounded),
  )
  if (odd === -1) return undefined
  const [gets, instead] = [chances[odd] ?? 0, shareOf(odd)].map(percent)
  return `${placeText(endpoints[odd] ?? '')} gets ${gets} instead of ${instead}`
}

/** Joins ends of the same place and chance whose packets differ in their sources alone, and are all together. */
function whole(leaves: readonly Leaf[], box: Box): readonly Leaf[] {
  if (leaves.every(({ machine }) => machine.box === box)) return leaves
  const parts = new Map<string, Leaf[]>()
  const joined: Leaf[] = []
  for (const leaf of leaves) {
    const { to, rolled, probability } = leaf.machine
    if (rolled !== undefined || !differsInSource(leaf.machine.box, box)) joined.push(leaf)
    else append(parts, [to?.address, to?.port, probability].join(), leaf)
  }
  for (const its of parts.values()) {
    const [first] = its
    const region = union(its.flatMap(({ machine }) => machine.box.source))
    const isWhole = its.length > 1 && difference(box.source, region).length === 0
    const size = its.reduce((sum, { machine }) => sum + sizeOf(machine.box.source), 0)
    if (first === undefined || !isWhole || size !== sizeOf(box.source)) {
      joined.push(...its)
      continue
    }
    const machine = first.machine.copy()
    machine.box = box
    joined.push({ machine, end: first.end })
  }
  return joined
}

function differsInSource(its: Box, box: Box): boolean {
  return FIELDS.every(field => field === 'source' || its[field] === box[field])
}

interface Cell {
  readonly box: Box
  readonly leaves: readonly Leaf[]
}

function cellsOf(box: Box, leaves: readonly Leaf[]): readonly Cell[] {
  const boxes = new Set(leaves.map(({ machine }) => machine.box))
  if (boxes.size <= 1) return [{ box, leaves }]
  let cells: readonly Box[] = [box]
  for (const its of boxes) cells = cells.flatMap(cell => dividedBy(cell, its))
  return cells.flatMap(cell => {
    const its = leaves.filter(({ machine }) => isWithin(cell, machine.box))
    return its.length === 0 ? [] : [{ box: cell, leaves: its }]
  })
}

/** Gives the part of a box that is in another one, and the parts that are not. */
function dividedBy(box: Box, other: Box): readonly Box[] {
  const parts: Box[] = []
  let inside = box
  for (const field of FIELDS) {
    if (box[field] === other[field]) continue
    const common = intersection(inside[field], other[field])
    if (common.length === 0) return [box]
    const rest = difference(inside[field], other[field])
    if (rest.length > 0) parts.push({ ...inside, [field]: rest })
    inside = { ...inside, [field]: common }
  }
  return [...parts, inside]
}

function isWithin(box: Box, other: Box): boolean {
  return FIELDS.every(
    field => box[field] === other[field] || difference(box[field], other[field]).length === 0,
  )
}

const FIELDS: readonly Field[] = [
  'source',
  'sourceType',
  'interface',
  'destination',
  'destinationType',
  'protocol',
  'destinationPort',
  'sourcePort',
]

export function fateText(fate: Fate): string {
  if (fate.kind !== 'endpoints') return fate.kind === 'refuse' ? 'reject or drop' : fate.kind
  const { endpoints, masquerade, affinityS } = fate
  const [first = ''] = endpoints
  const to = endpoints.length === 1 ? placeText(first) : `one of ${endpoints.length} endpoints`
  return `${to}${masquerade ? ', masqueraded' : ''}${affinityS > 0 ? `, kept for ${affinityS} s` : ''}`
}

function endText({ machine, end }: Leaf, to: Octets | undefined, isCaught: boolean): string {
  const { masquerade, written, delivered, ownPriority } = machine
  const known = end === 'unknown' ? 'not known' : end
  const ending = isCaught ? 'this node itself: a device has the address, and no virtual server' : known
  const where =
    to === undefined ? ending : end === 'endpoint' ? placeText(to) : `${known} on the way to ${placeText(to)}`
  const how = machine.isSourceElsewhere ? ', with a source of another machine' : ', masqueraded'
  const source = masquerade && !delivered ? how : ''
  const isOwnPriority = ownPriority !== undefined && (end === 'pass' || ownPriority !== NO_PRIORITY)
  const leaving = end !== 'drop' && end !== 'reject' && isOwnPriority ? ', with a priority of the rules' : ''
  return `${where}${source}${leaving}${written === undefined ? '' : `, kept for ${written.timeoutMs / 1000} s`}`
}

function placeText(place: Octets): string {
  return formatIpPort(addressOf(place), readU16be(place, place.length - 2))
}

function percent(share: number): string {
  return `${Number((share * 100).toPrecision(3))} %`
}
