import {
  NF_ACCEPT,
  NF_DROP,
  NFT_CONTINUE,
  NFT_GOTO,
  NFT_JUMP,
  NFT_RETURN,
} from '../../kernel/nft/constants.ts'
import type { Verdict } from '../../kernel/nft/state.ts'
import { beyondOf } from './beyond.ts'
import {
  type CompiledChain,
  type CompiledRule,
  dividesByChance,
  type Guard,
  placesIn,
  placeText,
  rulesFor,
  setsPriority,
} from './compiled.ts'
import { evaluate } from './expression.ts'
import type { ClassMachine, Effect } from './machine.ts'
import { difference, includes, onlyValue, point, union } from './region.ts'
import { BeyondEvaluator, type Box, type Doubt } from './values.ts'

export type Decision = 'return' | 'accept' | 'drop' | 'reject' | 'dnat' | 'masquerade' | 'unknown'
interface Decided {
  readonly machine: ClassMachine
  readonly decision: Decision
}

type Compiled = CompiledRule['expressions'][number]

/** Rules of other programs that divide packets by chance double their ways: more are beyond the evaluator. */
const WAYS_MAX = 512

interface AtRule {
  readonly chain: CompiledChain
  readonly rule: CompiledRule
  readonly depth: number
  readonly next: ClassMachine[]
  readonly decided: Decided[]
}

export class Follower {
  /** Ways of a class that enter the chain at the hook. */
  ways = 1
  /** The guards of chains that divide packets by bits of their destination. */
  readonly #places = new Map<CompiledChain, readonly Guard[]>()

  run(start: ClassMachine, chain: CompiledChain, depth = 0): Decided[] {
    // No kernel holds such chains: a state that was read in parts may.
    // NFT_JUMP_STACK_SIZE, counting gotos: the kernel rejects loops.
    if (depth >= 64) throw new BeyondEvaluator(`chains go round in circles at ${chain.name}`)
    start.sets = chain.table.sets
    const apart = chain.comparesBits ? this.#byPlace(start, chain, depth) : undefined
    if (apart !== undefined) return apart
    const decided: Decided[] = []
    let going = [start]
    for (const rule of rulesFor(chain, start)) {
      if (going.length * this.ways > WAYS_MAX && !rule.place.isOwn && dividesByChance(rule)) {
        for (const machine of going) passBeyond(machine, { rule, decided }, 'cannot trace so many chances')
        continue
      }
      const next: ClassMachine[] = []
      for (const machine of going) {
        machine.sets = chain.table.sets
        machine.beginRule()
        this.#runRule(machine, { chain, rule, depth, next, decided }, 0)
      }
      const distinct = next.length > going.length ? distinctOf(next) : next
      // Fewer ways are cheaper to follow than to compare.
      going = distinct.length > going.length && distinct.length > 4 ? merged(distinct) : distinct
      if (going.length === 0) break
    }
    for (const machine of going) decided.push({ machine, decision: 'return' })
    return decided
  }

  /** Follows each place that a chain knows by itself. All other packets return from it. */
  #byPlace(machine: ClassMachine, chain: CompiledChain, depth: number): Decided[] | undefined {
    const addresses = machine.region('destination')
    if (machine.to !== undefined || onlyValue(addresses) !== undefined) return undefined
    const places = this.#places.get(chain) ?? placesIn(chain)
    if (places === undefined) return undefined
    this.#places.set(chain, places)
    const ports = machine.region('destinationPort')
    const met = places.filter(({ port }) => port === undefined || includes(ports, port))
    const known = new Set(met.flatMap(({ destination = '' }) => destination))
    const decided: Decided[] = []
    for (const destination of known) {
      if (!includes(addresses, destination)) continue
      const copy = machine.copy()
      copy.narrow('destination', point(destination))
      decided.push(...this.run(copy, chain, depth))
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
      const effect = this.#evaluate(machine, expression, at)
      if (effect === 'next') continue
      if (effect === 'break') {
        at.next.push(machine)
        return
      }
      this.#take(machine, effect, at, index)
      return
    }
    machine.single?.pass(at.rule.place, machine.server)
    at.next.push(machine)
  }

  #evaluate(machine: ClassMachine, expression: Compiled, at: AtRule): Effect {
    return this.#orDoubt(machine, { at, expression }, () => {
      if (expression.kind === 'extension') return expression.run(machine)
      const effect = evaluate(machine, expression)
      if (at.rule.place.isOwn && setsPriority(expression)) machine.ownPriority = machine.priority
      return effect
    })
  }

  /** Follows packets both ways where a rule of another program is beyond the evaluator. */
  #orDoubt(
    machine: ClassMachine,
    { at, expression }: { readonly at: AtRule; readonly expression: Compiled },
    run: () => Effect,
  ): Effect {
    try {
      return run()
    } catch (error) {
      const { rule, next } = at
      if (!(error instanceof BeyondEvaluator) || rule.place.isOwn) throw error
      const beyond = beyondOf(expression.kind === 'extension' ? expression.of : expression)
      const reason = machine.unread ?? error.message
      if (beyond === 'nothing') return 'next'
      if (beyond === 'load') return unread(machine, reason)
      const isEnd = beyond === 'effect' || this.ways * (next.length + 1) > WAYS_MAX
      const supposing = (its: ClassMachine): Effect => {
        doubt(its, rule, { reason, isSupposed: true })
        return isEnd ? { kind: 'unknown' } : beyond === 'data' ? unread(its, reason) : 'next'
      }
      const otherwise = (its: ClassMachine): Effect => {
        doubt(its, rule, { reason, isSupposed: false })
        return 'break'
      }
      return { kind: 'split', branches: [supposing, otherwise].map(take => ({ narrowed: [], take })) }
    }
  }

  #take(machine: ClassMachine, effect: Exclude<Effect, 'next' | 'break'>, at: AtRule, index: number): void {
    const expression = at.rule.expressions[index]
    if (effect.kind === 'split' && expression !== undefined) {
      const { branches } = effect
      for (const [number, branch] of branches.entries()) {
        const its = number === branches.length - 1 ? machine : machine.copy()
        for (const [field, region] of branch.narrowed) its.narrow(field, region)
        if (branch.rolled !== undefined) its.rolled = branch.rolled
        const then = this.#orDoubt(its, { at, expression }, () => branch.take(its))
        if (then === 'next') this.#runRule(its, at, index + 1)
        else if (then === 'break') at.next.push(its)
        else this.#take(its, then, at, index)
      }
      return
    }
    const { place } = at.rule
    machine.single?.pass(place, machine.server)
    if (effect.kind === 'verdict') this.#follow(machine, effect.verdict, at)
    else if (effect.kind !== 'split') {
      machine.decidedBy = place
      const isRule = place.rule !== undefined
      if (isRule && place.isOwn && effect.kind !== 'reject') machine.isChangedByOwn = true
      at.decided.push({ machine, decision: effect.kind })
    }
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
          passBeyond(machine, { rule, decided }, `there is no chain ${verdict.chain}`)
          next.push(machine)
          return
        }
        for (const each of this.run(machine, target, depth + 1)) {
          if (each.decision === 'return' && verdict.code === NFT_JUMP) next.push(each.machine)
          else decided.push(each)
        }
        return
      }
      default:
        passBeyond(machine, { rule, decided }, `cannot trace verdict ${verdict.code}`)
        next.push(machine)
    }
  }
}

/** Nothing is known of the packets behind a rule, or they pass it. */
function passBeyond(
  machine: ClassMachine,
  { rule, decided }: Pick<AtRule, 'rule' | 'decided'>,
  reason: string,
): void {
  if (rule.place.isOwn) throw new BeyondEvaluator(reason)
  const copy = machine.copy()
  doubt(copy, rule, { reason, isSupposed: true })
  copy.decidedBy = rule.place
  decided.push({ machine: copy, decision: 'unknown' })
  doubt(machine, rule, { reason, isSupposed: false })
}

/** The first doubt is kept. */
function doubt(
  its: ClassMachine,
  { place }: CompiledRule,
  { reason, isSupposed }: Omit<Doubt, 'place'>,
): void {
  const first = its.doubt ?? { place: placeText(place), reason }
  its.doubt = { ...first, isSupposed: isSupposed || its.doubt?.isSupposed === true }
}

/** Clears the registers: a comparison with a value that could not be loaded is beyond the evaluator. */
function unread(machine: ClassMachine, reason: string): 'next' {
  machine.registers.fill(undefined)
  machine.unread = reason
  return 'next'
}

interface Way {
  readonly machine: ClassMachine
  readonly natDone?: boolean
}

/** Leaves out ways that continue as others do, whether a rule matches or not. */
export function withoutEchoes<W extends Way>(ways: readonly W[]): readonly W[] {
  if (!ways.some(isSupposed)) return ways
  const kept = ways.filter(its => !isSupposed(its))
  for (const its of ways.filter(isSupposed)) if (!kept.some(other => areAlike(its, other))) kept.push(its)
  return kept
}

function distinctOf(machines: readonly ClassMachine[]): ClassMachine[] {
  return withoutEchoes(machines.map(machine => ({ machine }))).map(({ machine }) => machine)
}

function isSupposed({ machine: { doubt } }: Way): boolean {
  return doubt?.isSupposed === true
}

type Keys = readonly (keyof ClassMachine)[]
const CHOSEN: Keys = ['box', 'rolled', 'probability', 'to', 'toType', 'written', 'server', 'isTaken']
const HELD: Keys = ['mark', 'connectionMark', 'priority', 'ownPriority', 'untracked', 'translated']
const DONE: Keys = ['masquerade', 'isSourceElsewhere', 'isChangedByOwn']
const COMPARED: Keys = [...CHOSEN, ...HELD, ...DONE]

function areAlike(a: Way, b: Way): boolean {
  return a.natDone === b.natDone && COMPARED.every(key => a.machine[key] === b.machine[key])
}

/** Joins ways that a random number divided and that went on alike. */
function merged(machines: readonly ClassMachine[]): ClassMachine[] {
  const byBox = new Map<Box, Map<string, ClassMachine>>()
  const apart: ClassMachine[] = []
  for (const machine of machines) {
    machine.beginRule()
    const { box, mark, connectionMark, priority, to, written, rolled } = machine
    if (rolled !== undefined || machine.single?.dynamic !== machines[0]?.single?.dynamic) {
      apart.push(machine)
      continue
    }
    const key = [
      mark,
      connectionMark,
      priority,
      to?.address,
      to?.port,
      written?.data,
      written?.timeoutMs,
      machine.doubt?.isSupposed,
      machine.untracked,
    ].join()
    const alike = byBox.get(box)
    const known = alike?.get(key)
    if (known !== undefined) known.probability += machine.probability
    else if (alike === undefined) byBox.set(box, new Map([[key, machine]]))
    else alike.set(key, machine)
  }
  return [...apart, ...[...byBox.values()].flatMap(alike => [...alike.values()])]
}
