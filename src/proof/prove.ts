import { Pauses, type Steps } from '../base/clock.ts'
import type { Octets } from '../base/octets.ts'
import { onlyValue, type Region, sizeOf } from '../base/region.ts'
import type { AnyTable, NftFamily } from '../kernel/nft/state.ts'
import { BeyondEvaluator, chosenOf } from '../kernel/nft/trace-machine.ts'
import { addressOf, type Box, classesOf, exampleOf, nameOf, type PacketClass } from './atoms.ts'
import { allMeet, type Complaint, fateText, type Judging, judge, Spreads } from './judge.ts'
import type { FamilyMeaning } from './meaning.ts'
import { newLog } from './sets.ts'
import { type Leaf, placeText, type Undecided, Walker } from './walk.ts'

/** A packet that the kernel does not treat as Kubernetes says. */
interface ProofDifference {
  /** The service port, or the kind of address. */
  readonly name: string
  readonly packet: string
  readonly expected: string
  readonly kernel: string
  /** The rule that decided; undefined where no rule did. */
  readonly rule: string | undefined
}

/** What a proof found out. */
export interface Proof {
  readonly classes: number
  /** Combinations of addresses, ports and protocols that the classes stand for. */
  readonly packets: number
  /** Classes with a difference. */
  readonly wrong: number
  /** The first differences: one of each service port and rule. */
  readonly differences: readonly ProofDifference[]
  /** What the proof does not look into, by name. */
  readonly assumptions: readonly string[]
}

export interface Question {
  readonly meanings: readonly FamilyMeaning[]
  /** Tables of all programs. */
  readonly tables: readonly AnyTable[]
  /** The name of our own tables. */
  readonly ownName: string
  /** Differences to list at most. */
  readonly limit?: number
}

const LIMIT = 20
/** What every class takes for granted: docs/proof.md. */
const ALWAYS: readonly string[] = [
  'each packet is the first of its connection, and enters with mark 0 and priority 0',
]

/** Compares every packet's fate with what the rules of the kernel do to it. */
export function* prove({ meanings, tables, ownName, limit = LIMIT }: Question): Steps<Proof> {
  const found = { classes: 0, packets: 0, wrong: 0, differences: new Map<string, ProofDifference>() }
  const undecided: Undecided[] = []
  const foreign = new Set<string>()
  const notes = new Set<string>(ALWAYS)
  for (const meaning of meanings) {
    const family: NftFamily = meaning.family === 'IPv4' ? 'ip' : 'ip6'
    const walker = new Walker(tables, { family, ownName, log: newLog(), nodeIps: meaning.nodeIps })
    for (const text of walker.ties()) notes.add(text)
    const examiner = new Examiner(meaning, walker, foreign)
    const note = (difference: ProofDifference | undefined) => {
      if (difference === undefined) return
      found.wrong++
      const key = `${difference.name} ${difference.rule}`
      if (found.differences.size < limit && !found.differences.has(key))
        found.differences.set(key, difference)
    }
    const pauses = new Pauses()
    const groups = new Groups(meaning)
    function* examineAll(classes: readonly PacketClass[]): Steps<void> {
      if (pauses.due(8)) yield
      if (classes.length > 1 && examiner.meetTogether(classes)) return
      for (const its of classes) {
        note(examiner.examine(its))
        if (pauses.due(8)) yield
      }
    }
    for (const its of classesOf(meaning)) {
      found.classes++
      found.packets += packetsIn(its.box)
      yield* examineAll(groups.add(its))
    }
    for (const classes of groups.rest()) yield* examineAll(classes)
    for (const difference of examiner.examineRemembered()) {
      note(difference)
      if (pauses.due(8)) yield
    }
    undecided.push(...walker.undecided.values())
    for (const text of examiner.notes) notes.add(text)
  }
  const { differences, ...counts } = found
  return {
    ...counts,
    differences: [...differences.values()],
    assumptions: assumptionsOf(notes, undecided, foreign),
  }
}

function assumptionsOf(
  notes: ReadonlySet<string>,
  undecided: readonly Undecided[],
  foreign: ReadonlySet<string>,
): readonly string[] {
  const unread = undecided.map(({ place, reason }) => `${place} matches no packet (${reason})`)
  const others = [...foreign].map(place => `${place} is meant: it decides about packets to no Service`)
  return [...notes, ...unread, ...others].filter((text, index, all) => all.indexOf(text) === index)
}

/** A type that is local is no further packet: `others` counts it. */
function packetsIn(box: Box): number {
  if (sizeOf(box.sourceType) === 1 || sizeOf(box.destinationType) === 1) return 0
  const fields = [box.source, box.destination, box.protocol, box.sourcePort, box.destinationPort]
  return fields.reduce((product, region) => product * sizeOf(region), 1)
}

/** Classes that are followed together: as many as keep their random numbers few. */
const CLASSES_MAX = 128
const ENDPOINTS_MAX = 4096

interface Group {
  readonly classes: PacketClass[]
  endpoints: number
}

/** Collects classes that differ in their destinations and endpoints alone. */
class Groups {
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

/** Judges classes with what the sets that packets fill may hold. */
class Examiner {
  readonly #spreads: Spreads
  readonly #walker: Walker
  readonly #affine: Affine[] = []
  readonly #foreign: Set<string>
  readonly notes = new Set<string>()

  constructor(meaning: FamilyMeaning, walker: Walker, foreign: Set<string>) {
    this.#spreads = new Spreads(meaning)
    this.#walker = walker
    this.#foreign = foreign
  }

  /** Whether classes meet their fates, followed together. Otherwise each of them is to be examined. */
  meetTogether(classes: readonly PacketClass[]): boolean {
    this.#begin()
    try {
      const leaves = this.#walker.walkTogether(classes)
      return this.#walker.log.asked.size === 0 && allMeet(classes, leaves)
    } catch (error) {
      if (!(error instanceof BeyondEvaluator)) throw error
      return false
    }
  }

  #begin(): void {
    const { log } = this.#walker
    log.memory = { kind: 'new' }
    log.asked.clear()
    log.last = undefined
  }

  /** Judges a class whose clients are new. */
  examine(its: PacketClass): ProofDifference | undefined {
    const { log } = this.#walker
    this.#begin()
    const leaves = this.#leavesOf(its)
    if (!Array.isArray(leaves)) return leaves
    const asked = [...log.asked]
    if (asked.length > 0) {
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
    }
    return this.#judged(its, leaves, { isRemembered: false, remembered: undefined, isRemembering: true })
  }

  /** Judges classes again whose clients may be remembered, once all that can be remembered is known. */
  *examineRemembered(): Generator<ProofDifference | undefined, void, undefined> {
    const { log } = this.#walker
    for (const { its, asked, chosen } of this.#affine) {
      if (chosen.size <= FULL_MAX) {
        log.memory = { kind: 'full' }
        yield this.#again(its, undefined, false)
      } else this.notes.add(WITH_ROOM)
      for (const data of this.#dataAt(asked)) {
        log.memory = { kind: 'known', data }
        yield this.#again(its, chosen.get(data), true)
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
    try {
      return [...this.#walker.walk(its)]
    } catch (error) {
      if (!(error instanceof BeyondEvaluator)) throw error
      return this.#difference(its, {
        box: its.box,
        kernel: `unknown: ${error.message}`,
        decidedBy: undefined,
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
    this.#foreign.add(placeText(decidedBy))
    return false
  }

  #difference(its: PacketClass, { box, kernel, decidedBy }: Complaint): ProofDifference {
    const { hook, fate } = its
    return {
      name: nameOf(its),
      packet: exampleOf(hook, box),
      expected: fateText(fate),
      kernel,
      rule: decidedBy === undefined ? undefined : placeText(decidedBy),
    }
  }
}
