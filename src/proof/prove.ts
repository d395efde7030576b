import type { Steps } from '../base/clock.ts'
import { sizeOf } from '../base/region.ts'
import type { Ownership } from '../kernel/evaluate/compiled.ts'
import { IpvsClasses } from '../kernel/evaluate/ipvs.ts'
import { newLog } from '../kernel/evaluate/sets.ts'
import type { Box } from '../kernel/evaluate/values.ts'
import { Walker } from '../kernel/evaluate/walk.ts'
import type { IpvsHeld } from '../kernel/ipvs/state.ts'
import type { AnyTable, NftFamily } from '../kernel/nft/state.ts'
import { classesOf } from './atoms.ts'
import { Examiner, Groups, type ProofDifference, unitOf } from './examine.ts'
import type { FamilyMeaning } from './meaning.ts'
import type { PacketClass } from './packet-class.ts'
import type { Reads } from './reads.ts'

/** What a proof found out. */
export interface Proof {
  readonly classes: number
  /** Combinations of addresses, ports and protocols that the classes stand for. */
  readonly packets: number
  /** Classes with a difference. */
  readonly wrong: number
  /** The first differences: one of each service port and rule. */
  readonly differences: readonly ProofDifference[]
  /** Classes that may differ: a rule of another program decides that kprobe cannot follow. */
  readonly unknown: number
  /** The first of them: one of each rule. */
  readonly unknowns: readonly ProofDifference[]
  /** What the proof does not look into, by name. */
  readonly assumptions: readonly string[]
}

export interface Question extends Ownership {
  readonly meanings: readonly FamilyMeaning[]
  /** Tables of all programs. */
  readonly tables: readonly AnyTable[]
  /** What decides outside of nf_tables; undefined where that was not read. */
  readonly ipvs?: IpvsHeld | undefined
  /** Differences to list at most. */
  readonly limit?: number
}

export const LIMIT = 20
/** What every class takes for granted: docs/proof.md. */
const ALWAYS: readonly string[] = [
  'each packet is the first of its connection, and enters with mark 0 and priority 0',
]

/** Compares every packet's fate with what the rules of the kernel do to it. */
export function* prove({ meanings, tables, ownName, owns, ipvs, limit = LIMIT }: Question): Steps<Proof> {
  const found = new Findings(limit)
  const families: FamilyProof[] = []
  for (const meaning of meanings)
    families.push(yield* FamilyProof.of(meaning, { tables, ownName, owns, ipvs, reads: undefined }))
  for (const family of families) yield* family.whole(found)
  return proofOf(found, families)
}

export function proofOf(found: Findings, families: readonly FamilyProof[]): Proof {
  const { classes, packets, wrong, differences, unknown, unknowns } = found
  const assumptions = new Set([
    ...ALWAYS,
    ...families.flatMap(({ examiner }) => [...examiner.notes]),
    ...families.flatMap(({ examiner }) =>
      [...examiner.foreign].map(
        place => `assuming that ${place} is intentional: it also matches packets that are not for Services`,
      ),
    ),
  ])
  const counts = { classes, packets, wrong, unknown }
  const lists = { differences: [...differences.values()], unknowns: [...unknowns.values()] }
  return { ...counts, ...lists, assumptions: [...assumptions] }
}

/** Counts classes, and keeps the first differences. */
export class Findings {
  classes = 0
  packets = 0
  wrong = 0
  unknown = 0
  /** By rule. */
  readonly unknowns = new Map<string, ProofDifference>()
  /** A class is counted once, although it is examined again for clients that may be remembered. */
  readonly #counted = new WeakSet<PacketClass>()
  /** By service port and rule. */
  readonly differences = new Map<string, ProofDifference>()
  readonly #limit: number

  constructor(limit: number) {
    this.#limit = limit
  }

  count({ box }: PacketClass): void {
    this.classes++
    this.packets += packetsIn(box)
  }

  add(its: PacketClass, difference: ProofDifference): void {
    const { doubt } = difference
    if (doubt !== undefined) {
      if (!this.#counted.has(its)) this.unknown++
      this.#counted.add(its)
      if (this.unknowns.size < this.#limit && !this.unknowns.has(doubt)) this.unknowns.set(doubt, difference)
      return
    }
    this.wrong++
    const key = `${difference.name} ${difference.rule}`
    if (this.differences.size < this.#limit && !this.differences.has(key))
      this.differences.set(key, difference)
  }
}

/** The proof of one family. */
export class FamilyProof {
  readonly meaning: FamilyMeaning
  readonly walker: Walker
  readonly ipvs: IpvsClasses | undefined
  readonly examiner: Examiner
  /** The units with a difference. */
  readonly wrong = new Set<string>()
  /** Those that may differ. */
  readonly unknown = new Set<string>()

  static *of(
    meaning: FamilyMeaning,
    {
      tables,
      ownName,
      owns,
      reads,
      ipvs: held,
    }: Omit<Question, 'meanings' | 'limit'> & { readonly reads: Reads | undefined },
  ): Steps<FamilyProof> {
    const family: NftFamily = meaning.family === 'IPv4' ? 'ip' : 'ip6'
    const { nodeIps } = meaning
    const ipvs = held && new IpvsClasses(held, meaning.family)
    const options = { family, ownName, owns, log: newLog(), nodeIps, reads, ipvs }
    return new FamilyProof(meaning, yield* Walker.of(tables, options), { reads, ipvs })
  }

  private constructor(
    meaning: FamilyMeaning,
    walker: Walker,
    { reads, ipvs }: { readonly reads: Reads | undefined; readonly ipvs: IpvsClasses | undefined },
  ) {
    this.meaning = meaning
    this.walker = walker
    this.ipvs = ipvs
    this.examiner = new Examiner(meaning, walker, reads)
  }

  /** Examines every class. */
  *whole(found: Findings): Steps<void> {
    yield* this.walker.fill()
    const groups = new Groups(this.meaning)
    const { refusesBehind, bindsAddresses } = this.meaning.promises
    const { examiner } = this
    const note = (its: PacketClass) => this.note(its, examiner.examine(its), found)
    function* examineAll(classes: readonly PacketClass[]): Steps<void> {
      yield
      if (classes.length > 1 && examiner.meetTogether(classes)) return
      for (const its of classes) {
        yield
        note(its)
      }
    }
    for (const its of classesOf(this.meaning)) {
      found.count(its)
      // Where chains of Services choose endpoints, classes go apart at once.
      yield* examineAll(refusesBehind || bindsAddresses ? [its] : groups.add(its))
    }
    for (const classes of groups.rest()) yield* examineAll(classes)
    yield* this.remembered(found)
  }

  /** Examines classes again whose clients may be remembered. */
  *remembered(found: Findings): Steps<void> {
    for (const [its, difference] of this.examiner.examineRemembered()) {
      this.note(its, difference, found)
      yield
    }
  }

  note(its: PacketClass, difference: ProofDifference | undefined, found: Findings, unit = unitOf(its)): void {
    if (difference === undefined) return
    if (difference.doubt === undefined) this.wrong.add(unit)
    else this.unknown.add(unit)
    found.add(its, difference)
  }
}

/** A type that is local is no further packet: `others` counts it. */
function packetsIn(box: Box): number {
  if (sizeOf(box.sourceType) === 1 || sizeOf(box.destinationType) === 1) return 0
  const fields = [box.source, box.destination, box.protocol, box.sourcePort, box.destinationPort]
  return fields.reduce((product, region) => product * sizeOf(region), 1)
}
