import type { IpvsHeld } from '../kernel/ipvs/state.ts'
import type { AnyTable } from '../kernel/nft/state.ts'
import { classesOf } from './atoms.ts'
import type { Ownership } from './evaluate/compiled.ts'
import { IpvsClasses } from './evaluate/ipvs.ts'
import { sizeOf } from './evaluate/region.ts'
import { newLog } from './evaluate/sets.ts'
import type { Box } from './evaluate/values.ts'
import { Walker } from './evaluate/walk.ts'
import { Examiner, type ProofDifference } from './examine.ts'
import { type FamilyMeaning, placeKey } from './meaning.ts'
import type { PacketClass } from './packet-class.ts'

export interface Proof {
  readonly classes: number
  /** Combinations of addresses, ports and protocols that the classes stand for. */
  readonly packets: number
  readonly wrong: number
  /** The first differences: one of each service port and rule. */
  readonly differences: readonly ProofDifference[]
  /** Classes that may differ: a rule of another program decides that kprobe cannot follow. */
  readonly unknown: number
  /** The first of them: one of each rule. */
  readonly unknowns: readonly ProofDifference[]
  /** Destinations of these classes: addresses with a port, node ports, and all others together. */
  readonly destinations: { readonly wrong: number; readonly unknown: number }
  /** Names of the parts that the proof leaves out. */
  readonly assumptions: readonly string[]
}

export interface Question extends Ownership {
  readonly meanings: readonly FamilyMeaning[]
  readonly tables: readonly AnyTable[]
  /** The state of IPVS and ipsets; undefined where it was not read. */
  readonly ipvs?: IpvsHeld | undefined
  readonly limit?: number
}

const LIMIT = 20

/** Compares every packet's fate with what the rules of the kernel do to it. */
export function prove(question: Question): Proof {
  const run = new ProofRun(question)
  const classes = run.classes()
  while (classes.next().done !== true);
  return run.proof
}

/** A proof that its caller drives: each class that it takes of `classes` is followed, and `proof` holds what was found. */
export class ProofRun {
  readonly #question: Question
  readonly #found: Findings

  constructor(question: Question) {
    this.#question = question
    this.#found = new Findings(question.limit ?? LIMIT)
  }

  get proof(): Proof {
    return this.#found.proof
  }

  *classes(): Generator<PacketClass, void, undefined> {
    for (const meaning of this.#question.meanings) {
      const examiner = new Examiner(meaning, this.#walkerOf(meaning))
      for (const its of classesOf(meaning)) {
        this.#found.count(its)
        this.#found.add(its, examiner.examine(its))
        yield its
      }
      for (const [its, difference] of examiner.examineRemembered()) {
        this.#found.add(its, difference)
        yield its
      }
      this.#found.assume(examiner)
    }
  }

  #walkerOf({ family, nodeIps }: FamilyMeaning): Walker {
    const { tables, ownName, owns, ipvs } = this.#question
    return new Walker(tables, {
      family: family === 'IPv4' ? 'ip' : 'ip6',
      ownName,
      owns,
      log: newLog(),
      nodeIps,
      ipvs: ipvs && new IpvsClasses(ipvs, family),
    })
  }
}

class Findings {
  readonly #limit: number
  readonly #counts = { classes: 0, packets: 0, wrong: 0, unknown: 0 }
  /** Differences by service port and rule. */
  readonly #differences = new Map<string, ProofDifference>()
  readonly #unknowns = new Map<string, ProofDifference>()
  readonly #wrongDestinations = new Set<string>()
  readonly #unknownDestinations = new Set<string>()
  /** Classes that may differ: each is counted once, although those of remembered clients are examined several times. */
  readonly #doubted = new WeakSet<PacketClass>()
  readonly #assumptions = new Set([
    'each packet is the first of its connection, and enters with mark 0 and priority 0',
  ])

  constructor(limit: number) {
    this.#limit = limit
  }

  get proof(): Proof {
    return {
      ...this.#counts,
      differences: [...this.#differences.values()],
      unknowns: [...this.#unknowns.values()],
      destinations: { wrong: this.#wrongDestinations.size, unknown: this.#unknownDestinations.size },
      assumptions: [...this.#assumptions],
    }
  }

  count({ box }: PacketClass): void {
    this.#counts.classes++
    this.#counts.packets += packetsIn(box)
  }

  add(its: PacketClass, difference: ProofDifference | undefined): void {
    if (difference === undefined) return
    const { doubt, name, rule } = difference
    if (doubt === undefined) {
      this.#counts.wrong++
      this.#wrongDestinations.add(destinationOf(its))
      this.#keep(this.#differences, `${name} ${rule}`, difference)
      return
    }
    if (!this.#doubted.has(its)) this.#counts.unknown++
    this.#doubted.add(its)
    this.#unknownDestinations.add(destinationOf(its))
    this.#keep(this.#unknowns, doubt, difference)
  }

  #keep(list: Map<string, ProofDifference>, key: string, difference: ProofDifference): void {
    if (list.size < this.#limit && !list.has(key)) list.set(key, difference)
  }

  assume({ notes, foreign }: Pick<Examiner, 'notes' | 'foreign'>): void {
    for (const note of notes) this.#assumptions.add(note)
    for (const place of foreign)
      this.#assumptions.add(
        `assuming that ${place} is intentional: it also matches packets that are not for Services`,
      )
  }
}

function destinationOf({ at, box }: PacketClass): string {
  const family = box.source[0]?.from.length === 4 ? 'ip' : 'ip6'
  return `${family} ${typeof at === 'string' ? '' : placeKey(at)}`
}

/** A type that is local is no further packet: `others` counts it. */
function packetsIn(box: Box): number {
  if (sizeOf(box.sourceType) === 1 || sizeOf(box.destinationType) === 1) return 0
  const fields = [box.source, box.destination, box.protocol, box.sourcePort, box.destinationPort]
  return fields.reduce((product, region) => product * sizeOf(region), 1)
}
