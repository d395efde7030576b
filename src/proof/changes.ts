import { Pauses, type Steps } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { type Family, isLoopback } from '../base/ip.ts'
import type { CompiledTable, Ownership } from '../kernel/evaluate/compiled.ts'
import type { IpvsChange, IpvsHeld } from '../kernel/ipvs/state.ts'
import { NFT_SET_INTERVAL, NFT_TABLE_F_DORMANT } from '../kernel/nft/constants.ts'
import type { AnyTable } from '../kernel/nft/state.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { type Atoms, HOOKS, spaceOf } from './atoms.ts'
import { followChains, haveSameChains, headOf, whySets, whyTables } from './chain-changes.ts'
import { nodePortUnit, placeUnit } from './examine.ts'
import type { FamilyMeanings, TouchedMeaning } from './family-meanings.ts'
import { type MeaningConfig, placeKey, portKey } from './meaning.ts'
import { Meanings } from './meanings.ts'
import type { PacketClass } from './packet-class.ts'
import { forwardedFamilies } from './premises.ts'
import { FamilyProof, Findings, LIMIT, type Proof, proofOf } from './prove.ts'
import { type Concerned, ELSEWHERE, type Elsewhere, Reads } from './reads.ts'

/** What is proved: the objects, and the tables of all programs at the same moment. */
export interface ProofState {
  readonly snapshot: Snapshot
  readonly tables: readonly AnyTable[]
}

/** The same with what decides outside of nf_tables; undefined where that was not read. */
export interface WholeState extends ProofState {
  readonly ipvs?: IpvsHeld | undefined
}

/** The same with what changed there since the last state. */
interface ChangedState extends ProofState {
  readonly ipvs?: IpvsChange | undefined
}

/** A proof of the classes that a change touches; or why only a whole proof tells. */
export type ChangesProof =
  | { readonly kind: 'changes'; readonly proof: Proof; readonly units: ReadonlySet<string> }
  | { readonly kind: 'whole'; readonly why: string }

interface RunningProofOptions extends Ownership {
  readonly config: MeaningConfig
  /** Differences to list at most. */
  readonly limit?: number
}

/** So many more reads than a whole proof has are mostly of classes that exist no more. */
const READS_GROWTH = 2
const READS_MIN = 10_000
/** Classes with a difference are examined again with each change. */
const WRONG_MAX = 1_000

/** A proof that is kept while Services and the kernel change. */
export class RunningProof {
  readonly #options: RunningProofOptions
  #known: Known | undefined

  constructor(options: RunningProofOptions) {
    this.#options = options
  }

  /** Counts the places, node ports and other classes that may differ, by rules that kprobe cannot follow. */
  get unknown(): number {
    return (this.#known?.families ?? []).reduce((sum, { proof }) => sum + proof.unknown.size, 0)
  }

  /** The families in which this node has to forward packets. */
  get forwarded(): readonly Family[] {
    return forwardedFamilies(this.#known?.meanings.families ?? [])
  }

  /** The places, node ports and other classes with a difference, by family. */
  get wrong(): ReadonlySet<string> {
    const families = this.#known?.families ?? []
    return new Set(families.flatMap(({ name, wrong }) => [...wrong].map(unit => `${name} ${unit}`)))
  }

  /** Examines every class. */
  *whole({ snapshot, tables, ipvs }: WholeState): Steps<Proof> {
    this.#known = undefined
    const { config, ownName, owns, limit = LIMIT } = this.#options
    const meanings = yield* Meanings.of(snapshot, config, { follows: true })
    const families: FamilyChanges[] = []
    for (const meaning of meanings.families)
      families.push(yield* FamilyChanges.of(meaning, { tables, ownName, owns, ipvs }))
    const found = new Findings(limit)
    for (const { proof } of families) yield* proof.whole(found)
    const reads = families.map(family => family.reads.size)
    this.#known = { meanings, families, tables, reads }
    return proofOf(
      found,
      families.map(({ proof }) => proof),
    )
  }

  /**
   * Takes over versions of the tables that later ones share their parts with, if they hold the same: a change then costs
   * what it touches. Gives whether they do.
   */
  *share(tables: readonly AnyTable[]): Steps<boolean> {
    const known = this.#known
    if (known === undefined) return false
    for (const family of known.families) if (!(yield* family.holds(known.tables, tables))) return false
    this.#known = { ...known, tables }
    return true
  }

  /** Examines the classes that differ, or may differ, since the last state. */
  *changes({ snapshot, tables, ipvs }: ChangedState): Steps<ChangesProof> {
    const known = this.#known
    if (known === undefined) return whole('nothing is proved yet')
    const why = whyWholeProof(known, snapshot)
    if (why !== undefined) return whole(why)
    // What is interrupted is neither the state before nor the state after.
    this.#known = undefined
    const touched = yield* known.meanings.change(snapshot)
    const found = new Findings(this.#options.limit ?? LIMIT)
    const units = new Set<string>()
    for (const family of known.families) {
      const change = { touched: touched.get(family.meaning.family), ipvs }
      const wide = yield* family.follow(known.tables, tables, change)
      if (wide !== undefined) return whole(wide)
    }
    for (const family of known.families) {
      const examined = yield* family.examine(found)
      for (const unit of examined) units.add(`${family.name} ${unit}`)
    }
    this.#known = { ...known, tables }
    const proof = proofOf(
      found,
      known.families.map(its => its.proof),
    )
    return { kind: 'changes', proof, units }
  }
}

interface Known {
  readonly meanings: Meanings
  readonly families: readonly FamilyChanges[]
  readonly tables: readonly AnyTable[]
  /** Reads of the whole proof, by family. */
  readonly reads: readonly number[]
}

function whole(why: string): ChangesProof {
  return { kind: 'whole', why }
}

function whyWholeProof({ meanings, families, reads }: Known, snapshot: Snapshot): string | undefined {
  const why = meanings.whyWhole(snapshot)
  if (why !== undefined) return why
  for (const [index, { reads: now, wrong }] of families.entries()) {
    if (now.size > READS_GROWTH * (reads[index] ?? 0) + READS_MIN)
      return 'many changes were followed since the last whole proof'
    if (wrong.size > WRONG_MAX) return 'many classes differ'
  }
  return undefined
}

/** The proof of one family, and what leads from a change to its classes. */
class FamilyChanges {
  readonly meaning: FamilyMeanings
  readonly proof: FamilyProof
  readonly reads: Reads
  readonly #units = new Set<string>()
  readonly #elsewhere = new Map<string, Elsewhere>()
  /** Packets to no service port with a difference. */
  readonly #wrongElsewhere = new Map<string, Elsewhere>()

  static *of(
    meaning: FamilyMeanings,
    { ipvs, ...held }: Ownership & Omit<WholeState, 'snapshot'>,
  ): Steps<FamilyChanges> {
    // Rules of Services stand in chains of shared tables; in a table of our own, and with ipsets, elements do.
    const reads = new Reads({ followsRules: held.owns !== undefined && ipvs === undefined })
    const proof = yield* FamilyProof.of(meaning, { ...held, ipvs, reads })
    return new FamilyChanges(meaning, proof, reads)
  }

  private constructor(meaning: FamilyMeanings, proof: FamilyProof, reads: Reads) {
    this.meaning = meaning
    this.proof = proof
    this.reads = reads
  }

  get name(): 'ip' | 'ip6' {
    return this.meaning.family === 'IPv4' ? 'ip' : 'ip6'
  }

  get wrong(): ReadonlySet<string> {
    return this.proof.wrong
  }

  /** Takes over what changed. Gives why that concerns all classes, if it does. */
  *follow(
    before: readonly AnyTable[],
    after: readonly AnyTable[],
    {
      touched,
      ipvs,
    }: { readonly touched: TouchedMeaning | undefined; readonly ipvs: IpvsChange | undefined },
  ): Steps<string | undefined> {
    if (this.wrong.has(ELSEWHERE)) return 'packets to no Service differed'
    this.#units.clear()
    this.#elsewhere.clear()
    const [from, to] = [this.#tablesOf(before), this.#tablesOf(after)]
    if (from.map(headOf).join() !== to.map(headOf).join()) return whyTables(from, to)
    const concerned: Concerned = { units: this.#units, elsewhere: [], isWide: false }
    const outside = ipvs && this.#followIpvs(ipvs, concerned)
    if (outside !== undefined) return outside
    for (const [index, table] of to.entries()) {
      const [compiled, old] = [this.proof.walker.tables[index], from[index]]
      if (compiled === undefined || old === undefined) return 'the tables changed'
      const why =
        (yield* followChains({ compiled, before: old, after: table, concerned }, this.reads)) ??
        whySets(compiled, old, table) ??
        (yield* this.#followElements({ compiled, before: old, after: table, concerned }))
      if (why !== undefined) return why
    }
    for (const unit of this.wrong) this.#units.add(unit)
    for (const [key, its] of this.#wrongElsewhere) {
      this.#units.delete(key)
      this.#elsewhere.set(key, its)
    }
    for (const its of concerned.elsewhere) this.#touch(its)
    return touched === undefined
      ? this.#whyElsewhere()
      : (this.#followMeaning(touched) ?? this.#whyElsewhere())
  }

  /** Tests whether other versions of the tables hold the same, apart from what packets wrote. */
  *holds(known: readonly AnyTable[], others: readonly AnyTable[]): Steps<boolean> {
    const [from, to] = [this.#tablesOf(known), this.#tablesOf(others)]
    if (from.map(headOf).join() !== to.map(headOf).join()) return false
    for (const [index, table] of to.entries()) {
      const [compiled, old] = [this.proof.walker.tables[index], from[index]]
      if (compiled === undefined || old === undefined) return false
      if (old === table) continue
      if (!(yield* haveSameChains(compiled, old, table)) || whySets(compiled, old, table) !== undefined)
        return false
      if (!(yield* compiled.sets.holds(table.elements.values()))) return false
    }
    return true
  }

  /** The tables whose chains the packets of this family pass, in one order. */
  #tablesOf(tables: readonly AnyTable[]): readonly AnyTable[] {
    return tables.filter(
      ({ family, flags }) =>
        (family === this.name || family === 'inet') && (flags & NFT_TABLE_F_DORMANT) === 0,
    )
  }

  *#followElements({ compiled, before, after, concerned }: ElementChange): Steps<string | undefined> {
    const pauses = new Pauses()
    if (before.elements === after.elements) return undefined
    const keys = PersistentMap.changes(before.elements, after.elements)
    const groups = (table: AnyTable) => keys.map(key => table.elements.get(key) ?? [])
    for (const element of yield* compiled.sets.update(groups(before), groups(after))) {
      if (pauses.due()) yield
      const { set, key } = element
      if (key === '') return `set ${set} of ${compiled.name} changed for all other keys`
      if ((compiled.sets.setOf(set).flags & NFT_SET_INTERVAL) !== 0)
        return `an interval in set ${set} of ${compiled.name} changed`
      const place = compiled.sets.memoryAt(element)
      if (place === undefined) this.reads.concern(compiled.sets, element, concerned)
      else for (const unit of this.proof.examiner.unitsAt(place)) this.#units.add(unit)
      if (concerned.isWide)
        return `an element of ${set} of ${compiled.name} that many classes look up changed`
    }
    return undefined
  }

  #followIpvs(change: IpvsChange, concerned: Concerned): string | undefined {
    const { ipvs } = this.proof
    if (ipvs === undefined || change.why !== undefined) return change.why ?? 'IPVS was not read'
    ipvs.change(change, lookup => this.reads.concern(ipvs.lookups, lookup, concerned))
    return concerned.isWide
      ? 'a virtual server or an entry of an ipset that many classes look up changed'
      : undefined
  }

  #followMeaning(touched: TouchedMeaning): string | undefined {
    const { meaning } = this
    const { nodePortAddresses, relaysLocalhost, promises } = meaning
    for (const key of touched.places) this.#units.add(placeUnit(key))
    for (const key of touched.nodePorts) this.#units.add(nodePortUnit(key))
    for (const { ip, protocol, port } of touched.vacant.values()) this.#touch({ ip, at: { protocol, port } })
    const { closed, clusterIps, nodePorts } = touched
    if (promises.kubeProxyChains && closed.size > 0) return 'a node port was closed'
    if (promises.refusesBehind) {
      for (const at of closed.values()) this.#touch({ ip: undefined, at })
      return undefined
    }
    for (const ip of clusterIps) this.#touch({ ip, at: undefined })
    if (relaysLocalhost && [...nodePorts].some(key => key.startsWith('SCTP')))
      return 'an SCTP node port changed that is refused at localhost'
    if (nodePortAddresses === undefined) {
      if (closed.size > 0) return 'a node port of every address was closed'
      if (clusterIps.size > 0 && hasAny(meaning.nodePorts))
        return 'a ClusterIP changed, and every address serves node ports'
      return undefined
    }
    if (nodePortAddresses.some(ip => clusterIps.has(ip))) return 'an address of node ports is a ClusterIP'
    for (const { protocol, port } of closed.values())
      for (const ip of nodePortAddresses) this.#touch({ ip, at: { protocol, port } })
    return undefined
  }

  #touch(its: Elsewhere): void {
    const { ip, at } = its
    this.#elsewhere.set(`E${at === undefined ? '' : portKey(at)} ${ip}`, its)
  }

  /** Where each address of the node serves node ports, or localhost does, addresses are told apart by their types. */
  #whyElsewhere(): string | undefined {
    const { nodePortAddresses, nodePorts, relaysLocalhost, promises } = this.meaning
    for (const { ip } of promises.refusesBehind ? [] : this.#elsewhere.values()) {
      if (nodePortAddresses === undefined && hasAny(nodePorts))
        return 'packets to no Service are concerned, and every address serves node ports'
      if (relaysLocalhost && ip !== undefined && isLoopback(ip)) return 'packets to localhost are concerned'
    }
    return undefined
  }

  /** Examines what is touched. Gives the units. */
  *examine(found: Findings): Steps<ReadonlySet<string>> {
    const { examiner } = this.proof
    const units = this.#units
    const space = spaceOf(this.meaning)
    examiner.again()
    for (const unit of units) for (const other of examiner.forget(unit)) units.add(other)
    for (const unit of units) {
      this.proof.wrong.delete(unit)
      this.proof.unknown.delete(unit)
      examiner.leave(unit)
      for (const its of this.#classesOf(unit, space)) {
        this.#examine(its, found, unit)
        yield
      }
      for (const other of examiner.sharing(unit)) units.add(other)
    }
    for (const [unit, its] of this.#elsewhere) {
      this.proof.wrong.delete(unit)
      this.proof.unknown.delete(unit)
      this.#wrongElsewhere.delete(unit)
      for (const each of this.#elsewhereOf(its, space)) {
        this.#examine(each, found, unit)
        yield
      }
      if (this.proof.wrong.has(unit)) this.#wrongElsewhere.set(unit, its)
    }
    yield* this.proof.remembered(found)
    return new Set([...units, ...this.#elsewhere.keys()])
  }

  #examine(its: PacketClass, found: Findings, unit: string): void {
    found.count(its)
    this.proof.note(its, this.proof.examiner.examine(its), found, unit)
  }

  *#classesOf(unit: string, space: Atoms): Generator<PacketClass, void, undefined> {
    const key = unit.slice(1)
    const isNodePort = unit === nodePortUnit(key)
    const place = isNodePort ? this.meaning.nodePortAt(key) : this.meaning.placeAt(key)
    if (place === undefined) return
    for (const hook of HOOKS) yield* isNodePort ? space.atNodePort(hook, place) : space.atPlace(hook, place)
  }

  *#elsewhereOf({ ip, at }: Elsewhere, space: Atoms): Generator<PacketClass, void, undefined> {
    const { meaning } = this
    const served = ip === undefined ? [] : meaning.servedAt(ip)
    if (meaning.promises.refusesBehind || ip === undefined) {
      for (const hook of HOOKS) yield* space.elsewhereAt(hook, { ip, at }, served)
      return
    }
    const isNodeAddress = meaning.nodePortAddresses?.includes(ip) === true
    const isServed =
      at !== undefined &&
      (meaning.placeAt(placeKey({ ip, ...at })) !== undefined ||
        (isNodeAddress && meaning.nodePortAt(portKey(at)) !== undefined))
    if (isServed) return
    for (const hook of HOOKS) yield* space.elsewhereAt(hook, { ip, at }, served)
  }
}

interface ElementChange {
  readonly compiled: CompiledTable
  readonly before: AnyTable
  readonly after: AnyTable
  readonly concerned: Concerned
}

function hasAny(items: Iterable<unknown>): boolean {
  for (const _ of items) return true
  return false
}
