import type { Octets } from '../base/octets.ts'
import { onlyValue, type Region } from '../base/region.ts'
import { placeText } from '../kernel/evaluate/compiled.ts'
import { beginLog, isPlaceOfList } from '../kernel/evaluate/sets.ts'
import { BeyondEvaluator, chosenOf } from '../kernel/evaluate/values.ts'
import type { Leaf, Walker } from '../kernel/evaluate/walk.ts'
import { allMeet, type Complaint, fateText, type Judging, judge, Spreads } from './judge.ts'
import { type FamilyMeaning, placeKey, portKey } from './meaning.ts'
import { addressOf, exampleOf, nameOf, type PacketClass } from './packet-class.ts'
import { ELSEWHERE, type Reads } from './reads.ts'

/** A packet that the kernel does not treat as Kubernetes says. */
export interface ProofDifference {
  /** The service port, or the kind of address. */
  readonly name: string
  readonly packet: string
  readonly expected: string
  readonly kernel: string
  /** The rule that decided; undefined where no rule did. */
  readonly rule: string | undefined
  /** The rule that kprobe cannot follow, with the reason: the packets may differ. Undefined where they do. */
  readonly doubt: string | undefined
}

/** Names the place or the node port that the packets of a class are sent to. */
export function unitOf({ at }: Pick<PacketClass, 'at'>): string {
  if (typeof at === 'string') return ELSEWHERE
  return at.ip === undefined ? nodePortUnit(portKey(at)) : placeUnit(placeKey(at))
}

export function placeUnit(key: string): string {
  return `P${key}`
}

export function nodePortUnit(key: string): string {
  return `N${key}`
}

/** Classes that are followed together: as many as keep their random numbers few. */
const CLASSES_MAX = 128
const ENDPOINTS_MAX = 4096

interface Group {
  readonly classes: PacketClass[]
  endpoints: number
}

/** Collects classes that differ in their destinations and endpoints alone. */
export class Groups {
  readonly #onNode: ReadonlySet<Octets>
  readonly #groups = new Map<string, Group>()
  readonly #numbers = new WeakMap<Region, number>()
  #count = 0
  #last: { readonly endpoints: readonly Octets[]; readonly areElsewhere: boolean } | undefined

  constructor({ localEndpoints }: FamilyMeaning) {
    this.#onNode = localEndpoints
  }

  /** Gives the classes to examine now: the class alone, a group that is full, or none. */
  add(its: PacketClass): readonly PacketClass[] {
    const { fate, box, hook } = its
    if (fate.kind !== 'endpoints' || fate.affinityS !== 0) return [its]
    if (onlyValue(box.destination) === undefined || !this.#areElsewhere(fate.endpoints)) return [its]
    const regions = [box.source, box.sourceType, box.interface, box.destinationType]
    const all = [...regions, box.protocol, box.destinationPort, box.sourcePort]
    const key = `${hook} ${fate.masquerade} ${all.map(region => this.#numberOf(region)).join()}`
    const group = this.#groups.get(key) ?? { classes: [], endpoints: 0 }
    group.classes.push(its)
    group.endpoints += fate.endpoints.length
    if (group.classes.length < CLASSES_MAX && group.endpoints < ENDPOINTS_MAX) {
      this.#groups.set(key, group)
      return []
    }
    this.#groups.delete(key)
    return group.classes
  }

  *rest(): Generator<readonly PacketClass[], void, undefined> {
    for (const { classes } of this.#groups.values()) yield classes
  }

  /** A client on this node may be an endpoint itself. Classes of one service port share their endpoints. */
  #areElsewhere(endpoints: readonly Octets[]): boolean {
    if (this.#last?.endpoints === endpoints) return this.#last.areElsewhere
    const areElsewhere = endpoints.every(endpoint => !this.#onNode.has(addressOf(endpoint)))
    this.#last = { endpoints, areElsewhere }
    return areElsewhere
  }

  /** Equal regions that are two objects only make more groups. */
  #numberOf(region: Region): number {
    const number = this.#numbers.get(region) ?? this.#count++
    this.#numbers.set(region, number)
    return number
  }
}

interface Affine {
  readonly its: PacketClass
  readonly asked: readonly string[]
  /** By written data: the endpoint. */
  readonly chosen: ReadonlyMap<Octets, Octets>
}

/** With a full map each way divides again for each endpoint. */
const FULL_MAX = 256
const WITH_ROOM = `the map of clients has room for those of service ports with more than ${FULL_MAX} endpoints and session affinity`

const IN_ONE_LIST = 'a client is in one of the lists of recent of a Service at most'

/** Judges classes with what the sets that packets fill may hold. */
export class Examiner {
  readonly #meaning: FamilyMeaning
  readonly #walker: Walker
  readonly #reads: Reads | undefined
  /** Rules of other programs that decided about packets to no Service. */
  readonly foreign = new Set<string>()
  readonly notes = new Set<string>()
  /** By unit: the places in sets that packets fill which its classes look up, and the other way. */
  readonly #asked = new Map<string, Set<string>>()
  readonly #askedBy = new Map<string, Set<string>>()
  #spreads: Spreads
  #affine: Affine[] = []

  constructor(meaning: FamilyMeaning, walker: Walker, reads: Reads | undefined) {
    this.#meaning = meaning
    this.#spreads = new Spreads(meaning)
    this.#walker = walker
    this.#reads = reads
  }

  /** Begins to examine classes again, after a change. */
  again(): void {
    this.#spreads = new Spreads(this.#meaning)
    this.#affine = []
    this.#walker.forgetLookups()
  }

  /** Gives the units whose clients are remembered at the same place. */
  unitsAt(place: string): Iterable<string> {
    return this.#askedBy.get(place) ?? []
  }

  /** Forgets what clients of a unit leave behind. Gives the units that they share it with. */
  forget(unit: string): readonly string[] {
    const places = [...(this.#asked.get(unit) ?? [])]
    const others = places.flatMap(place => [...this.unitsAt(place)])
    for (const place of places) this.#walker.log.written.delete(place)
    return others
  }

  /** Forgets which places a unit looks up. */
  leave(unit: string): void {
    for (const place of this.#asked.get(unit) ?? []) this.#askedBy.get(place)?.delete(unit)
    this.#asked.delete(unit)
  }

  /** Gives the units that share places with one that was examined. */
  sharing(unit: string): readonly string[] {
    return [...(this.#asked.get(unit) ?? [])].flatMap(place => [...this.unitsAt(place)])
  }

  #follow(classes: readonly PacketClass[]): void {
    if (this.#reads !== undefined) this.#reads.units = classes.map(unitOf)
  }

  #noteAsked(its: PacketClass, asked: readonly string[]): void {
    if (this.#reads === undefined) return
    const unit = unitOf(its)
    for (const place of asked) {
      this.#asked.set(unit, (this.#asked.get(unit) ?? new Set()).add(place))
      this.#askedBy.set(place, (this.#askedBy.get(place) ?? new Set()).add(unit))
    }
  }

  /** Whether classes meet their fates, followed together. Otherwise each of them is to be examined. */
  meetTogether(classes: readonly PacketClass[]): boolean {
    this.#begin()
    this.#follow(classes)
    try {
      const leaves = this.#walker.walkTogether(classes)
      return this.#walker.log.asked.size === 0 && allMeet(classes, leaves)
    } catch (error) {
      if (!(error instanceof BeyondEvaluator)) throw error
      return false
    }
  }

  #begin(): void {
    beginLog(this.#walker.log)
  }

  /** Judges a class whose clients are new. */
  examine(its: PacketClass): ProofDifference | undefined {
    const { log } = this.#walker
    this.#begin()
    const leaves = this.#leavesOf(its)
    if (!Array.isArray(leaves)) return leaves
    const asked = [...log.asked]
    if (asked.length > 0) {
      this.#noteAsked(its, asked)
      const chosen = new Map<Octets, Octets>()
      for (const { machine } of leaves) {
        const endpoints = machine.endpoints()
        const data = machine.written === undefined ? [] : chosenOf(machine.written.data, machine.rolled)
        for (const [index, its] of endpoints.entries()) {
          const written = data[data.length === 1 ? 0 : index]
          if (written !== undefined) chosen.set(written, its)
        }
      }
      this.#affine.push({ its, asked, chosen })
      if ([...asked].some(isPlaceOfList)) this.notes.add(IN_ONE_LIST)
    }
    const how = { isRemembered: false, remembered: undefined, isRemembering: true }
    return this.#judged(its, leaves, how) ?? this.#unread(its, leaves)
  }

  /** Finds clients that are remembered where no rule looks them up. */
  #unread(its: PacketClass, leaves: readonly Leaf[]): ProofDifference | undefined {
    const { asked, wrote } = this.#walker.log
    if ([...wrote].every(place => asked.has(place))) return undefined
    const kernel = 'clients are remembered, and no rule looks them up'
    const decidedBy = leaves[0]?.machine.decidedBy
    return this.#difference(its, { box: its.box, kernel, decidedBy, doubt: undefined })
  }

  /** Judges classes again whose clients may be remembered, once all that can be remembered is known. */
  *examineRemembered(): Generator<readonly [PacketClass, ProofDifference | undefined], void, undefined> {
    const { log } = this.#walker
    for (const { its, asked, chosen } of this.#affine) {
      if (chosen.size <= FULL_MAX) {
        log.memory = { kind: 'full' }
        yield [its, this.#again(its, undefined, false)]
      } else this.notes.add(WITH_ROOM)
      for (const data of new Set([...this.#dataAt(asked), ...chosen.keys()])) {
        log.memory = { kind: 'known', data }
        yield [its, this.#again(its, chosen.get(data), true)]
      }
    }
  }

  #again(
    its: PacketClass,
    remembered: Octets | undefined,
    isRemembered: boolean,
  ): ProofDifference | undefined {
    const leaves = this.#leavesOf(its)
    if (!Array.isArray(leaves)) return leaves
    return this.#judged(its, leaves, { isRemembered, remembered, isRemembering: false })
  }

  #dataAt(asked: readonly string[]): ReadonlySet<Octets> {
    const { log, tables } = this.#walker
    const data = new Set<Octets>()
    for (const place of asked) {
      for (const written of log.written.get(place) ?? []) data.add(written)
      for (const { sets } of tables) for (const held of sets.heldAt(place)) data.add(held)
    }
    return data
  }

  #leavesOf(its: PacketClass): Leaf[] | ProofDifference {
    this.#follow([its])
    try {
      return [...this.#walker.walk(its)]
    } catch (error) {
      if (!(error instanceof BeyondEvaluator)) throw error
      return this.#difference(its, {
        box: its.box,
        kernel: `unknown: ${error.message}`,
        decidedBy: undefined,
        doubt: undefined,
      })
    }
  }

  #judged(
    its: PacketClass,
    leaves: readonly Leaf[],
    how: Omit<Judging, 'spreads'>,
  ): ProofDifference | undefined {
    const judged = its.isOurs ? leaves : leaves.filter(leaf => this.#isOurDoing(leaf))
    const complaint = judge(its, judged, { spreads: this.#spreads, ...how })
    return complaint === undefined ? undefined : this.#difference(its, complaint)
  }

  /** What other programs do to packets that are sent to no Service is theirs. */
  #isOurDoing({ machine }: Leaf): boolean {
    const { decidedBy, isChangedByOwn } = machine
    if (decidedBy === undefined || decidedBy.isOwn || isChangedByOwn) return true
    this.foreign.add(placeText(decidedBy))
    return false
  }

  #difference(its: PacketClass, { box, kernel, decidedBy, doubt }: Complaint): ProofDifference {
    const { hook, fate } = its
    return {
      name: nameOf(its),
      packet: exampleOf(hook, box),
      expected: fateText(fate),
      kernel,
      rule: decidedBy === undefined ? undefined : placeText(decidedBy),
      doubt: doubt && `${doubt.place}: ${doubt.reason}`,
    }
  }
}
