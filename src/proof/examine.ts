import type { Octets } from '../base/octets.ts'
import { placeText } from './evaluate/compiled.ts'
import { beginLog, isPlaceOfList } from './evaluate/sets.ts'
import { BeyondEvaluator, chosenOf } from './evaluate/values.ts'
import type { Leaf, Walker } from './evaluate/walk.ts'
import { type Complaint, fateText, type Judging, judge, Spreads } from './judge.ts'
import type { FamilyMeaning } from './meaning.ts'
import { exampleOf, nameOf, type PacketClass } from './packet-class.ts'

/** A packet whose fate in the kernel differs from the required one. */
export interface ProofDifference {
  /** The service port, or the kind of address. */
  readonly name: string
  readonly packet: string
  readonly expected: string
  readonly kernel: string
  readonly rule: string | undefined
  /** The rule that kprobe cannot follow, with the reason: the packets may differ. Undefined where they do. */
  readonly doubt: string | undefined
}

/** A class whose clients may be remembered. */
interface Affine {
  readonly its: PacketClass
  /** The places in sets that packets fill which its packets look up. */
  readonly asked: readonly string[]
  readonly chosen: ReadonlyMap<Octets, Octets>
}

/** A full map makes each way divide again for each endpoint. */
const FULL_MAX = 256
const WITH_ROOM = `the map of clients has room for those of service ports with more than ${FULL_MAX} endpoints and session affinity`

const IN_ONE_LIST = 'a client is in one of the lists of recent of a Service at most'

/** Judges classes with what the sets that packets fill may hold. */
export class Examiner {
  readonly #walker: Walker
  readonly #spreads: Spreads
  /** Rules of other programs that also match packets that are not for Services. */
  readonly foreign = new Set<string>()
  readonly notes = new Set<string>()
  readonly #affine: Affine[] = []

  constructor(meaning: FamilyMeaning, walker: Walker) {
    this.#spreads = new Spreads(meaning)
    this.#walker = walker
  }

  examine(its: PacketClass): ProofDifference | undefined {
    const { log } = this.#walker
    beginLog(log)
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
      if ([...asked].some(isPlaceOfList)) this.notes.add(IN_ONE_LIST)
    }
    const how = { isRemembered: false, remembered: undefined, isRemembering: true }
    return this.#judged(its, leaves, how) ?? this.#unread(its, leaves)
  }

  /** Finds clients that are remembered where no rule looks them up. */
  #unread(its: PacketClass, leaves: readonly Leaf[]): ProofDifference | undefined {
    const { asked, wrote } = this.#walker.log
    if ([...wrote].every(place => asked.has(place))) return undefined
    const kernel = 'no rule reads the map of clients that another rule writes'
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

  /** Effects of other programs on packets that are sent to no Service do not count. */
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
