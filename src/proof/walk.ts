import { finish, type Steps } from '../base/clock.ts'
import { familyOf, type Ip, isLoopback } from '../base/ip.ts'
import { difference, includes, intersection, onlyValue, point, type Region, union } from '../base/region.ts'
import { serverKey, type VirtualServer } from '../kernel/ipvs/state.ts'
import {
  NF_ACCEPT,
  NF_DROP,
  NF_INET_FORWARD,
  NF_INET_LOCAL_IN,
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  NFT_CONTINUE,
  NFT_GOTO,
  NFT_JUMP,
  NFT_RETURN,
} from '../kernel/nft/constants.ts'
import type { Verdict } from '../kernel/nft/expression.ts'
import type { AnyTable } from '../kernel/nft/state.ts'
import { evaluate } from '../kernel/nft/trace-expression.ts'
import { BeyondEvaluator, type Effect, newMemo } from '../kernel/nft/trace-machine.ts'
import { rollOf } from '../kernel/nft/trace-random.ts'
import { type CompiledChain, type CompiledTable, isAction, placeText, setsPriority } from './compiled.ts'
import { loopback } from './destinations.ts'
import { HOOKNUM, type Hooks, type HooksOptions, hooksOf } from './hooks.ts'
import { ClassMachine, NotTogether, type RulePlace, type Surroundings } from './machine.ts'
import { MERGED_MIN, merged } from './merged.ts'
import type { Box, Hook, PacketClass } from './packet-class.ts'
import type { Guard, Reads } from './reads.ts'
import { type CompiledRule, chainsBehind, dividesByChance, placesIn } from './rule-index.ts'
import { type ClassSets, type MemoryLog, noSets } from './sets.ts'
import { LOCAL, regionOfIps } from './sources.ts'

/** A rule of another program that the evaluator cannot decide: it is assumed not to match. */
export interface Undecided {
  readonly place: string
  readonly reason: string
}

/** The end of packets of a class. */
export interface Leaf {
  readonly machine: ClassMachine
  readonly end: 'pass' | 'reject' | 'drop' | 'endpoint'
}

/** What becomes of packets behind a chain. */
type Decision = 'return' | 'accept' | 'drop' | 'reject' | 'dnat' | 'masquerade'
interface Decided {
  readonly machine: ClassMachine
  readonly decision: Decision
}

type Compiled = CompiledRule['expressions'][number]

/** NFT_JUMP_STACK_SIZE, counting gotos: the kernel rejects loops. */
const DEPTH_MAX = 64
/** Rules of other programs that divide packets by chance double their ways: more are beyond the evaluator. */
const WAYS_MAX = 512

interface WalkerOptions extends HooksOptions {
  readonly nodeIps: Surroundings['nodeIps']
  readonly reads?: Reads | undefined
  /** Called with each rule whose conditions some packets of a class meet. */
  readonly met?: (place: RulePlace) => void
}

/** The rules of all programs at the hooks of one family. */
export class Walker {
  readonly log: MemoryLog
  readonly undecided = new Map<string, Undecided>()
  #around: Surroundings
  /** Those of the Node and of its devices, without the one that IPVS mode makes. */
  readonly #nodeIps: ReadonlySet<Ip>
  readonly #hooks: Hooks
  /** Where the addresses of this machine are known: packets to them are local, and no others. */
  readonly #localAddresses: Region | undefined
  /** What chains that divide packets by bits of their destination know. */
  readonly #places = new Map<CompiledChain, readonly Guard[]>()
  readonly #met: ((place: RulePlace) => void) | undefined
  /** Ways of a class that enter the chain at the hook. */
  #ways = 1

  /** Compiles the rules in steps: shared tables have tens of thousands. */
  static *of(tables: readonly AnyTable[], options: WalkerOptions): Steps<Walker> {
    return new Walker(tables, options, yield* hooksOf(tables, options))
  }

  constructor(tables: readonly AnyTable[], options: WalkerOptions, hooks = finish(hooksOf(tables, options))) {
    const { family, log, nodeIps, reads, met, ipvs } = options
    this.log = log
    this.#nodeIps = nodeIps
    this.#met = met
    const modelFamily = family === 'ip' ? 'IPv4' : 'IPv6'
    const ips = ipvs?.addresses.filter(its => familyOf(its) === modelFamily)
    this.#around = { nodeIps: ips === undefined ? nodeIps : new Set(ips), memo: newMemo(), log, reads }
    this.#localAddresses = ips && union([...regionOfIps(ips), ...loopback(family === 'ip' ? 4 : 16)])
    this.#hooks = hooks
  }

  get tables(): readonly CompiledTable[] {
    return this.#hooks.tables
  }

  /** Says which nat chains are followed in an order that may not be the kernel's. */
  ties(): Generator<string, void, undefined> {
    return this.#hooks.ties()
  }

  /** Takes in the elements of all sets. Otherwise the first lookups do. */
  *fill(): Steps<void> {
    for (const { sets } of this.tables) yield* sets.fill()
  }

  /** Forgets what lookups found, and what chains know: elements or rules changed. */
  forgetLookups(): void {
    this.#places.clear()
    this.#around = { ...this.#around, memo: { ...this.#around.memo, lookups: new WeakMap() } }
  }

  /** Follows the packets of a class to their ends. */
  walk({ hook, box }: Pick<PacketClass, 'hook' | 'box'>): readonly Leaf[] {
    const leaves: Leaf[] = []
    for (const its of this.#existing(box)) {
      const start = new ClassMachine(its, this.#anySets, this.#around)
      start.sent = hook === 'output'
      for (const machine of this.#pass(start, HOOKNUM[hook], leaves)) this.#route(machine, hook, leaves)
    }
    return leaves
  }

  get #anySets(): ClassSets {
    return this.tables[0]?.sets ?? noSets(this.log)
  }

  /** Leaves out packets whose destination has another type than its address. */
  #existing(box: Box): readonly Box[] {
    const { destination, destinationType } = box
    const addresses = this.#localAddresses
    if (addresses === undefined) return [box]
    const parts = [intersection, difference].map(part => ({
      destination: part(destination, addresses),
      destinationType: part(destinationType, LOCAL),
    }))
    const real = parts.filter(part => part.destination.length > 0 && part.destinationType.length > 0)
    return real.map(part => ({ ...box, ...part }))
  }

  /**
   * Follows classes that differ in their destinations alone as one, while their packets meet the same effects. Throws
   * where a class would have to be followed by itself, or a rule of ours is beyond the evaluator.
   */
  walkTogether(classes: readonly Pick<PacketClass, 'hook' | 'box'>[]): readonly Leaf[] {
    const [first] = classes
    const [table] = this.tables
    if (first === undefined || table === undefined) throw new NotTogether('there is nothing to follow')
    const { hook, box } = first
    const start = new ClassMachine(box, table.sets, this.#around)
    start.sent = hook === 'output'
    start.rolled = rollOf(start.memo, classes.length, 0).rolled
    const choices = classes.map(its => onlyValue(its.box.destination) ?? '')
    start.together = { address: { choices }, classes: start.rolled }
    const leaves: Leaf[] = []
    for (const machine of this.#pass(start, HOOKNUM[hook], leaves)) this.#route(machine, hook, leaves)
    return leaves
  }

  #route(machine: ClassMachine, hook: Hook, leaves: Leaf[]): void {
    if (hook === 'output') {
      const sent = this.#send(machine, leaves)
      if (!this.#hooks.isReceived) this.#finish(sent, leaves)
      else for (const each of sent) this.#loop(each, leaves)
      return
    }
    const hasInput = this.#hooks.at(NF_INET_LOCAL_IN).length !== 0
    const type = machine.region('destinationType')
    const [local, other] = [intersection(type, LOCAL), difference(type, LOCAL)]
    // Without a chain in input, packets for this node differ from others only by masquerading, which is not theirs.
    if (local.length > 0 && (hasInput || other.length === 0)) {
      const inside = other.length === 0 ? machine : machine.copy()
      inside.narrow('destinationType', local)
      inside.delivered = true
      for (const received of this.#pass(inside, NF_INET_LOCAL_IN, leaves)) {
        received.delivered = !received.isTaken
        this.#finish(received.isTaken ? this.#send(received, leaves) : [received], leaves)
      }
      if (other.length === 0) return
      machine.narrow('destinationType', other)
    }
    for (const passed of this.#pass(machine, NF_INET_FORWARD, leaves))
      this.#finish(this.#pass(passed, NF_INET_POST_ROUTING, leaves), leaves)
  }

  /** What IPVS has taken enters LOCAL_OUT anew, with a connection that is translated. */
  #send(machine: ClassMachine, leaves: Leaf[]): readonly ClassMachine[] {
    const { isTaken } = machine
    machine.isTaken = false
    const sent = isTaken ? this.#pass(machine, NF_INET_LOCAL_OUT, leaves, true) : [machine]
    return sent.flatMap(each => this.#pass(each, NF_INET_POST_ROUTING, leaves))
  }

  /** Packets of a process of this node to an address of it pass its hooks again. They are translated already. */
  #loop(machine: ClassMachine, leaves: Leaf[]): void {
    const type = machine.region('destinationType')
    const [local, other] = [intersection(type, LOCAL), difference(type, LOCAL)]
    if (local.length > 0) {
      const inside = other.length === 0 ? machine : machine.copy()
      inside.narrow('destinationType', local)
      inside.looped = true
      for (const passed of this.#pass(inside, NF_INET_PRE_ROUTING, leaves, true))
        this.#finish(this.#pass(passed, NF_INET_LOCAL_IN, leaves, true), leaves)
    }
    if (other.length === 0) return
    machine.narrow('destinationType', other)
    this.#finish([machine], leaves)
  }

  #finish(machines: readonly ClassMachine[], leaves: Leaf[]): void {
    for (const machine of machines)
      leaves.push({ machine, end: machine.to === undefined ? 'pass' : 'endpoint' })
  }

  /** Passes a hook; gives what goes on behind it, and adds what ends here to the leaves. */
  #pass(start: ClassMachine, hooknum: number, leaves: Leaf[], isTranslated = false): readonly ClassMachine[] {
    const bases = this.#hooks.at(hooknum)
    start.hook = hooknum
    let going: { readonly machine: ClassMachine; readonly natDone: boolean }[] = [
      { machine: start, natDone: isTranslated },
    ]
    for (const { chain, isNat, policy, order, isIpvs } of bases) {
      const next: typeof going = []
      this.#ways = going.length
      for (const each of going) {
        const isPassed = isIpvs === true && each.machine.server !== undefined
        if (each.machine.isTaken || isPassed || (isNat && each.natDone)) {
          next.push(each)
          continue
        }
        each.machine.hookPriority = order[0] ?? 0
        for (const { machine, decision } of this.#runChain(each.machine, chain, 0)) {
          if (isIpvs === true && machine.server !== undefined)
            this.#takeByIpvs(machine, machine.server, decision)
          const isDrop = decision === 'drop' || (decision === 'return' && policy === NF_DROP)
          if (isDrop && decision === 'return')
            machine.decidedBy = {
              table: chain.table.name,
              chain: chain.name,
              rule: chain.rules.length + 1,
              isOwn: chain.isOwn,
            }
          if (isDrop || decision === 'reject') leaves.push({ machine, end: isDrop ? 'drop' : 'reject' })
          else {
            if (decision === 'masquerade') machine.masquerade = true
            // Connection tracking knows nothing of what IPVS does: nat chains are called behind it.
            const translates = isIpvs !== true && (decision === 'dnat' || decision === 'masquerade')
            next.push({ machine, natDone: each.natDone || translates })
          }
        }
      }
      going = next
    }
    return going.map(({ machine }) => machine)
  }

  /**
   * Packets to a real server on this node go on in the same hook. What receives packets at an address that is no other
   * device's is ours: the address is bound for a Service, which may be gone.
   */
  #takeByIpvs(machine: ClassMachine, server: VirtualServer, decision: Decision): void {
    const isOwn = !this.#nodeIps.has(server.ip) && !isLoopback(server.ip)
    machine.decidedBy = { table: 'IPVS', chain: serverKey(server), rule: undefined, isOwn }
    machine.isTaken = decision === 'accept' || (decision === 'dnat' && machine.toType !== LOCAL)
  }

  #runChain(start: ClassMachine, chain: CompiledChain, depth: number): Decided[] {
    // No kernel holds such chains: a state that was read in parts may.
    if (depth >= DEPTH_MAX) throw new BeyondEvaluator(`chains go round in circles at ${chain.name}`)
    start.sets = chain.table.sets
    this.#around.reads?.noteChain(start, chain)
    const apart = chain.comparesBits ? this.#byPlace(start, chain, depth) : undefined
    if (apart !== undefined) return apart
    const decided: Decided[] = []
    let going = [start]
    for (const rule of chain.index?.rulesFor(start) ?? chain.rules) {
      if (going.length * this.#ways > WAYS_MAX && !rule.place.isOwn && dividesByChance(rule)) {
        this.#passBeyond(rule, 'cannot trace so many chances')
        continue
      }
      const next: ClassMachine[] = []
      for (const machine of going) {
        machine.sets = chain.table.sets
        machine.beginRule()
        this.#runRule(machine, { chain, rule, depth, next, decided }, 0)
      }
      going = next.length > going.length && next.length > MERGED_MIN ? merged(next) : next
      if (going.length === 0) break
    }
    for (const machine of going) decided.push({ machine, decision: 'return' })
    return decided
  }

  /** Follows each place that a chain knows by itself. All other packets return from it. */
  #byPlace(machine: ClassMachine, chain: CompiledChain, depth: number): Decided[] | undefined {
    const addresses = machine.region('destination')
    if (machine.to !== undefined || machine.together !== undefined || onlyValue(addresses) !== undefined)
      return undefined
    const places = this.#places.get(chain) ?? placesIn(chain)
    if (places === undefined) return undefined
    this.#places.set(chain, places)
    // What returns here passes these chains, although it is not followed through them.
    if (this.#around.reads?.followsRules === true)
      for (const each of chainsBehind(chain)) this.#around.reads.noteChain(machine, each)
    const ports = machine.region('destinationPort')
    const met = places.filter(({ port }) => port === undefined || includes(ports, port))
    const known = new Set(met.flatMap(({ destination = '' }) => destination))
    const decided: Decided[] = []
    for (const destination of known) {
      if (!includes(addresses, destination)) continue
      const copy = machine.copy()
      copy.narrow('destination', point(destination))
      decided.push(...this.#runChain(copy, chain, depth))
    }
    const rest = difference(addresses, union([...known].map(its => ({ from: its, to: its }))))
    if (rest.length === 0) return decided
    machine.narrow('destination', rest)
    return [...decided, { machine, decision: 'return' }]
  }

  #runRule(machine: ClassMachine, at: AtRule, from: number): void {
    const { expressions } = at.rule
    for (let index = from; index < expressions.length; index++) {
      const expression = expressions[index]
      if (expression === undefined) break
      if (this.#met !== undefined && isAction(expression)) this.#met(at.rule.place)
      const effect = this.#evaluate(machine, expression, at)
      if (effect === 'next') continue
      if (effect === 'break') {
        at.next.push(machine)
        return
      }
      this.#take(machine, effect, at, index)
      return
    }
    if (!expressions.some(isAction)) this.#met?.(at.rule.place)
    at.next.push(machine)
  }

  #evaluate(machine: ClassMachine, expression: Compiled, { rule }: AtRule): Effect {
    return this.#orBreak(rule, () => {
      if (expression.kind === 'extension') return expression.run(machine)
      const effect = evaluate(machine, expression)
      if (expression.kind === 'dynset') this.#noteWrite(machine)
      if (rule.place.isOwn && setsPriority(expression)) machine.ownPriority = machine.priority
      return effect
    })
  }

  /** A rule of another program that is beyond the evaluator matches no packet, by assumption. */
  #orBreak(rule: AtRule['rule'], run: () => Effect): Effect {
    try {
      return run()
    } catch (error) {
      if (!(error instanceof BeyondEvaluator) || rule.place.isOwn || error instanceof NotTogether) throw error
      this.#passBeyond(rule, error.message)
      return 'break'
    }
  }

  #noteWrite(machine: ClassMachine): void {
    const { last } = this.log
    if (last === undefined) return
    machine.written = { data: last.data, timeoutMs: last.timeoutMs }
    this.log.last = undefined
  }

  #take(machine: ClassMachine, effect: Exclude<Effect, 'next' | 'break'>, at: AtRule, index: number): void {
    if (effect.kind === 'split') {
      const { branches } = effect
      for (const [number, branch] of branches.entries()) {
        const its = number === branches.length - 1 ? machine : machine.copy()
        for (const [field, region] of branch.narrowed) its.narrow(field, region)
        if (branch.rolled !== undefined) its.rolled = branch.rolled
        const then = this.#orBreak(at.rule, () => branch.take(its))
        if (then === 'next') this.#runRule(its, at, index + 1)
        else if (then === 'break') at.next.push(its)
        else this.#take(its, then, at, index)
      }
      return
    }
    if (effect.kind !== 'verdict') {
      const { place } = at.rule
      machine.decidedBy = place
      const isRule = place.rule !== undefined
      if (isRule && place.isOwn && effect.kind !== 'reject') machine.isChangedByOwn = true
      at.decided.push({ machine, decision: effect.kind })
      return
    }
    this.#follow(machine, effect.verdict, at)
  }

  #follow(machine: ClassMachine, verdict: Verdict, { chain, rule, depth, next, decided }: AtRule): void {
    switch (verdict.code) {
      case NF_ACCEPT:
        decided.push({ machine, decision: 'accept' })
        return
      case NF_DROP:
        machine.decidedBy = rule.place
        decided.push({ machine, decision: 'drop' })
        return
      case NFT_RETURN:
        decided.push({ machine, decision: 'return' })
        return
      case NFT_CONTINUE:
        next.push(machine)
        return
      case NFT_JUMP:
      case NFT_GOTO: {
        const target = chain.table.chains.get(verdict.chain ?? '')
        // No kernel holds such a verdict: a state that was read in parts may.
        if (target === undefined) {
          this.#passBeyond(rule, `there is no chain ${verdict.chain}`)
          next.push(machine)
          return
        }
        for (const each of this.#runChain(machine, target, depth + 1)) {
          if (each.decision === 'return' && verdict.code === NFT_JUMP) next.push(each.machine)
          else decided.push(each)
        }
        return
      }
      default:
        this.#passBeyond(rule, `cannot trace verdict ${verdict.code}`)
        next.push(machine)
    }
  }

  #passBeyond(rule: CompiledRule, reason: string): void {
    if (rule.place.isOwn) throw new BeyondEvaluator(reason)
    const place = placeText(rule.place)
    if (!this.undecided.has(place)) this.undecided.set(place, { place, reason })
  }
}

interface AtRule {
  readonly chain: CompiledChain
  readonly rule: CompiledRule
  readonly depth: number
  readonly next: ClassMachine[]
  readonly decided: Decided[]
}
