import { assert } from '../../base/errors.ts'
import type { Ip } from '../../base/ip.ts'
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
} from './constants.ts'
import { isLogOnly, type Rule, type Verdict } from './expression.ts'
import { formatElement } from './print-data.ts'
import { formatRule } from './print-rule.ts'
import type { Chain, Ruleset, Table } from './state.ts'
import { evaluate } from '../evaluate/expression.ts'
import type { Effect } from '../evaluate/machine.ts'
import {
  type DynamicElements,
  familyOfPacket,
  isLocal,
  PacketMachine,
  type PacketState,
  type TracePacket,
  type TraceSurroundings,
} from './trace-packet.ts'
import { type ElementIndex, indexElements, PacketSets } from './trace-sets.ts'

export interface Tracer {
  trace(packet: TracePacket, surroundings: TraceSurroundings): Trace
  /**
   * Returns every distinguishable outcome with its probability: all rolls of all random numbers, at most `limit` of
   * them.
   */
  ways(
    packet: TracePacket,
    surroundings: Omit<TraceSurroundings, 'random' | 'forget'>,
    limit?: number,
  ): readonly Way[]
}

const WAYS_MAX = 100_000

/**
 * Traces packets through rules that exist only as values. It knows the expressions that kprobe writes, hooks and
 * priorities, and that a translated connection passes no further nat chain of the same hook.
 */
export function createTracer(ruleset: Ruleset): Tracer {
  const tables = ruleset.tables.map(table => ({ table, index: indexElements(table) }))
  const trace: Tracer['trace'] = (packet, surroundings) => traceOnce(tables, packet, surroundings)
  return {
    trace,
    ways: (packet, surroundings, limit = WAYS_MAX) =>
      allWays((random, forget) => trace(packet, { ...surroundings, random, forget }), limit),
  }
}

/** Traces a single packet as createTracer(ruleset).trace does. */
export function trace(ruleset: Ruleset, packet: TracePacket, surroundings: TraceSurroundings): Trace {
  return createTracer(ruleset).trace(packet, surroundings)
}

/** One possible outcome of a connection, with its probability. */
export interface Way {
  readonly trace: Trace
  readonly probability: number
}

interface Roll {
  readonly modulus: number
  readonly value: number
  /** Shared by all values of this roll after equal rolls. */
  readonly forgotten: Forgotten
}

/** The values of one roll that nothing follows from. The first one stands for all. */
interface Forgotten {
  first: number | undefined
  count: number
}

interface Leaf {
  readonly trace: Trace
  readonly rolls: readonly Roll[]
}

/**
 * Runs a trace repeatedly, each time with the next sequence of random numbers, in the order of an odometer. Equal
 * outcomes count as one, and so do values that the trace forgets: a list whose last slots are empty rolls again and
 * again. Throws after `limit` runs.
 */
export function allWays(
  run: (random: (modulus: number) => number, forget: () => void) => Trace,
  limit: number,
): readonly Way[] {
  const leaves: Leaf[] = []
  let next: readonly Roll[] | undefined = []
  for (let count = 0; next !== undefined; count++) {
    if (count >= limit) throw new Error(`more than ${limit} sequences of random numbers`)
    const prefix: readonly Roll[] = next
    const rolls: Roll[] = []
    /** The number of rolls up to one whose value another stands for. */
    let known: number | undefined
    const random = (modulus: number) => {
      const roll = prefix[rolls.length] ?? { modulus, value: 0, forgotten: { first: undefined, count: 0 } }
      rolls.push(roll)
      return roll.value
    }
    const forget = () => {
      const last = rolls.at(-1)
      if (known !== undefined || last === undefined) return
      const { forgotten, value } = last
      forgotten.first ??= value
      if (forgotten.first !== value) known = rolls.length
      // Later runs repeat the rolls of their prefix.
      if (rolls.length >= prefix.length) forgotten.count++
    }
    const trace = run(random, forget)
    if (known === undefined) leaves.push({ trace, rolls })
    next = successor(rolls.slice(0, known))
  }
  return merged(leaves)
}

function merged(leaves: readonly Leaf[]): readonly Way[] {
  const ways = new Map<string, { trace: Trace; probability: number }>()
  for (const { trace, rolls } of leaves) {
    const { verdict, destination, masquerade } = trace
    const key = JSON.stringify([verdict, destination, masquerade])
    const probability = rolls.reduce((product, roll) => (product * valuesOf(roll)) / roll.modulus, 1)
    const known = ways.get(key)
    if (known === undefined) ways.set(key, { trace, probability })
    else known.probability += probability
  }
  return [...ways.values()]
}

/** Counts the values that a roll stands for. */
function valuesOf({ value, forgotten: { first, count } }: Roll): number {
  return value === first ? count : 1
}

/** Returns the next rolls in counting order; undefined after the last. */
function successor(rolls: readonly Roll[]): readonly Roll[] | undefined {
  const at = rolls.findLastIndex(({ modulus, value }) => value + 1 < modulus)
  const roll = rolls[at]
  return roll === undefined ? undefined : [...rolls.slice(0, at), { ...roll, value: roll.value + 1 }]
}

/** The path of a connection's first packet through a ruleset. */
export interface Trace {
  readonly verdict: 'dnat' | 'reject' | 'drop' | 'accept'
  /** The final destination: translated, or chosen by IPVS, when the verdict is dnat. */
  readonly destination: { readonly ip: Ip; readonly port: number }
  readonly masquerade: boolean
  /** The packet mark after the last hook. */
  readonly mark: number
  /** The rules that took effect, in order. */
  readonly steps: readonly TraceStep[]
  /** Elements that packets wrote, including this one: the input of the next trace. */
  readonly dynamic: DynamicElements
}

export interface TraceStep {
  /** `ip kube-proxy services`, `ipvs TCP 10.96.0.1:443`. */
  readonly chain: string
  /** From 1. */
  readonly rule: number
  /** The rule as nft prints it. */
  readonly text: string
  /** Elements that its lookups found, as nft prints them: `frontends: 10.96.0.1 . tcp . 443 comment "..." : 0x...`. */
  readonly elements: readonly string[]
}

interface IndexedTable {
  readonly table: Table
  readonly index: ElementIndex
}

type Decision = 'accept' | 'return' | 'drop' | 'reject' | 'dnat' | 'masquerade'

interface Walk {
  readonly packet: TracePacket
  readonly surroundings: TraceSurroundings
  readonly state: PacketState
  readonly steps: TraceStep[]
  masquerade: boolean
}

interface TableWalk extends Walk {
  readonly table: Table
  readonly sets: PacketSets
  /** Elements found since the current rule began. */
  readonly found: string[]
}

/** Traces one packet. Throws for expressions that kprobe does not write. */
function traceOnce(
  tables: readonly IndexedTable[],
  packet: TracePacket,
  surroundings: TraceSurroundings,
): Trace {
  const { destination, destinationPort, mark = 0 } = packet
  const state: PacketState = {
    destination,
    destinationPort,
    mark,
    priority: 0,
    translated: false,
    balanced: false,
  }
  const common = { packet, surroundings, state, steps: [] }
  const family = familyOfPacket(packet)
  const walks = tables
    .filter(({ table }) => table.family === family)
    .map(({ table, index }): TableWalk => {
      const found: string[] = []
      const seen = (...[set, element]: Parameters<ConstructorParameters<typeof PacketSets>[2]['seen']>) => {
        found.push(`${set.name}: ${formatElement(set, element)}`)
      }
      const sets = new PacketSets(table, index, { dynamic: surroundings.dynamic, seen })
      return { ...common, table, sets, found, masquerade: false }
    })
  const end = walkHooks(walks, common)
  const dynamic = walks.reduce((before, { sets }) => sets.after(before), surroundings.dynamic ?? new Map())
  return {
    verdict: end ?? (state.translated || state.balanced ? 'dnat' : 'accept'),
    destination: { ip: state.destination, port: state.destinationPort },
    masquerade: walks.some(({ masquerade }) => masquerade),
    mark: state.mark,
    steps: common.steps,
    dynamic,
  }
}

type Course = Pick<Walk, 'packet' | 'surroundings' | 'state' | 'steps'>

/** Returns why the packet stopped; undefined when it passed all hooks. */
function walkHooks(walks: readonly TableWalk[], way: Course): 'drop' | 'reject' | undefined {
  const { packet, surroundings, state } = way
  const entry = packet.origin === 'interface' ? NF_INET_PRE_ROUTING : NF_INET_LOCAL_OUT
  const first = walkHook(walks, entry)
  if (first !== undefined) return first
  if (packet.origin === 'process') return balance(way) ?? walkHook(walks, NF_INET_POST_ROUTING)
  if (!isLocal(state.destination, surroundings))
    return walkHook(walks, NF_INET_FORWARD) ?? walkHook(walks, NF_INET_POST_ROUTING)
  const end = walkHook(walks, NF_INET_LOCAL_IN) ?? balance(way)
  return end ?? (state.balanced ? walkHook(walks, NF_INET_POST_ROUTING) : undefined)
}

/**
 * Applies IPVS. A connection that was translated once passes no nat chain at LOCAL_OUT between IPVS and POST_ROUTING.
 */
export function balance({ packet, surroundings, state, steps }: Course): 'reject' | undefined {
  const { protocol, source } = packet
  const { destination, destinationPort } = state
  const found = surroundings.balance?.({ protocol, source, destination, destinationPort })
  if (found === undefined) return undefined
  steps.push({ chain: `ipvs ${found.server}`, rule: 1, text: found.text, elements: found.destinations })
  if (found.to === undefined) return 'reject'
  state.destination = found.to.ip
  state.destinationPort = found.to.port
  state.balanced = true
  return undefined
}

function walkHook(walks: readonly TableWalk[], hooknum: number): 'drop' | 'reject' | undefined {
  const bases = walks.flatMap(walk =>
    [...walk.table.chains.values()].flatMap(chain =>
      chain.hook?.hooknum === hooknum ? [{ walk, chain, ...chain.hook }] : [],
    ),
  )
  bases.sort((a, b) => a.priority - b.priority)
  let natDone = false
  for (const { walk, chain, type } of bases) {
    if (type === 'nat' && natDone) continue
    const decision = walkChain(walk, chain, { hooknum, depth: 0 })
    if (decision === 'drop' || decision === 'reject') return decision
    if (decision === 'masquerade') walk.masquerade = true
    natDone ||= decision === 'dnat' || decision === 'masquerade'
  }
  return undefined
}

interface Position {
  readonly hooknum: number
  readonly depth: number
}

/** NFT_JUMP_STACK_SIZE; this limit counts gotos, too. The kernel rejects rules that loop, and so does the tracer. */
const DEPTH_MAX = 64

function walkChain(walk: TableWalk, chain: Chain, position: Position): Decision {
  assert(position.depth < DEPTH_MAX, `chains go round in circles at ${chain.name}`)
  for (const [index, rule] of chain.rules.entries()) {
    // What it logs depends on other packets, and decides nothing.
    if (isLogOnly(rule)) continue
    const effect = walkRule(walk, { chain, rule, index }, position.hooknum)
    if (effect === 'next' || effect === 'break') continue
    assert(effect.kind !== 'split', 'a single packet goes one way')
    if (effect.kind !== 'verdict') return effect.kind
    const decision = follow(walk, effect.verdict, position)
    if (decision !== 'continue') return decision
  }
  return 'return'
}

function follow(walk: TableWalk, verdict: Verdict, { hooknum, depth }: Position): Decision | 'continue' {
  switch (verdict.code) {
    case NF_ACCEPT:
      return 'accept'
    case NF_DROP:
      return 'drop'
    case NFT_RETURN:
      return 'return'
    case NFT_CONTINUE:
      return 'continue'
    case NFT_JUMP:
    case NFT_GOTO: {
      const target = walk.table.chains.get(verdict.chain ?? '')
      assert(target !== undefined, `there is no chain ${verdict.chain}`)
      const decision = walkChain(walk, target, { hooknum, depth: depth + 1 })
      return decision === 'return' && verdict.code === NFT_JUMP ? 'continue' : decision
    }
    default:
      throw new Error(`cannot trace verdict ${verdict.code}`)
  }
}

interface RulePlace {
  readonly chain: Chain
  readonly rule: Rule
  readonly index: number
}

function walkRule(walk: TableWalk, { chain, rule, index }: RulePlace, hooknum: number): Effect {
  const { packet, state, surroundings, sets, table } = walk
  // Without an interface the kernel compares an empty name (nft_meta_store_ifname).
  const interfaceName = hooknum === NF_INET_PRE_ROUTING ? (packet.interfaceName ?? '') : ''
  const machine = new PacketMachine({ packet, state, surroundings, sets, interfaceName })
  walk.found.length = 0
  let effect: Effect = 'next'
  let rolls = 0
  let isWriting = false
  for (const expression of rule.expressions) {
    if (expression.kind === 'numgen') rolls++
    isWriting ||= expression.kind === 'meta-set' || expression.kind === 'dynset'
    effect = evaluate(machine, expression)
    if (effect !== 'next') break
  }
  if (effect === 'break') {
    // Registers end with the rule.
    if (rolls === 1 && !isWriting) surroundings.forget?.()
    return effect
  }
  const text = formatRule(rule, table)
  walk.steps.push({
    chain: `${table.family} ${table.name} ${chain.name}`,
    rule: index + 1,
    text,
    elements: [...walk.found],
  })
  return effect
}
