import { append } from '../../base/collections.ts'
import type { Octets } from '../../base/octets.ts'
import { includes } from '../../base/region.ts'
import {
  NFT_META_L4PROTO,
  NFT_PAYLOAD_NETWORK_HEADER,
  NFT_PAYLOAD_TRANSPORT_HEADER,
} from '../nft/constants.ts'
import type { Expression } from '../nft/expression.ts'
import type { NftFamily } from '../nft/state.ts'
import type { ClassMachine } from './class-machine.ts'
import type { Extension } from './extensions.ts'
import { chosen, type Of, type Value } from './machine.ts'
import type { RulePlace } from './noting.ts'
import { type Compared, comparedBy, type Guard } from './noting.ts'

export interface CompiledRule {
  readonly expressions: readonly (Expression | Extension)[]
  readonly place: RulePlace
  readonly guard: Guard
}

/** The number of rules from which a chain gets an index. */
const INDEXED_FROM = 16

/** Gives what tells the packets apart that meet a rule of a chain. Services fill chains that are empty at first. */
export function comparedIn(rules: readonly CompiledRule[]): readonly Compared[] {
  if (rules.length === 0) return ['place', 'port']
  return [...new Set(rules.map(({ guard }) => comparedBy(guard)))]
}

interface Entry extends Guard {
  readonly at: number
  readonly rule: CompiledRule
}

/**
 * Finds the rules of a long chain that packets of a class may meet, without a test of each rule: nearly every rule of a
 * list compares the destination or its port with one value, before anything else happens.
 */
export class RuleIndex {
  readonly #byDestination = new Map<Octets, Entry[]>()
  readonly #anyDestination: Entry[] = []
  /** The same rules by port. */
  readonly #byPort = new Map<Octets, Entry[]>()
  readonly #anyPort: Entry[] = []
  /** Those of any destination by port. */
  readonly #elsewhereByPort = new Map<Octets, Entry[]>()
  readonly #everywhere: Entry[] = []
  readonly #all: readonly Entry[]

  constructor(entries: readonly Entry[]) {
    this.#all = entries
    for (const entry of entries) {
      const { destination, port } = entry
      if (destination !== undefined) append(this.#byDestination, destination, entry)
      else {
        this.#anyDestination.push(entry)
        if (port === undefined) this.#everywhere.push(entry)
        else append(this.#elsewhereByPort, port, entry)
      }
      if (port !== undefined) append(this.#byPort, port, entry)
      else this.#anyPort.push(entry)
    }
  }

  /** Gives the rules in the order of the chain. */
  rulesFor(machine: ClassMachine): readonly CompiledRule[] {
    const { addressLength } = machine
    const offset = addressLength === 4 ? 16 : 24
    const destination = known(machine.header(NFT_PAYLOAD_NETWORK_HEADER, offset, addressLength))
    const port = known(machine.header(NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2))
    if (destination !== undefined && port !== undefined)
      return inOrder(
        (this.#byDestination.get(destination) ?? NONE).filter(its => (its.port ?? port) === port),
        this.#elsewhereByPort.get(port) ?? NONE,
        this.#everywhere,
      )
    if (machine.to !== undefined) {
      // The fields of the class are those before the translation.
      const isOpen = (its: Entry) => port === undefined || its.port === undefined || its.port === port
      const lists = [...chosenFrom(machine)].map(each => this.#byDestination.get(each) ?? NONE)
      return inOrder(...[...lists, this.#anyDestination].map(list => list.filter(isOpen)))
    }
    if (destination !== undefined) {
      const ports = machine.region('destinationPort')
      const isMet = (its: Entry) => its.port === undefined || includes(ports, its.port)
      const own = this.#byDestination.get(destination) ?? NONE
      return inOrder(own.filter(isMet), this.#anyDestination.filter(isMet))
    }
    const ofPort = port === undefined ? [this.#all] : [this.#byPort.get(port) ?? NONE, this.#anyPort]
    // Classes that are followed together have several destinations.
    if (machine.together !== undefined) return inOrder(...ofPort)
    const [addresses, ports] = [machine.region('destination'), machine.region('destinationPort')]
    const isMet = (its: Entry) =>
      (its.port === undefined || port !== undefined || includes(ports, its.port)) &&
      (its.destination === undefined || includes(addresses, its.destination))
    return inOrder(...ofPort.map(list => list.filter(isMet)))
  }
}

const NONE: readonly Entry[] = []

/** Gives the addresses that packets are translated to. */
function chosenFrom({ to, rolled = [0] }: ClassMachine): ReadonlySet<Octets> {
  return new Set(to === undefined ? [] : rolled.map(number => chosen(to.address, number)))
}

function known(value: Value | undefined): Octets | undefined {
  return typeof value === 'string' ? value : undefined
}

function inOrder(...lists: readonly (readonly Entry[])[]): readonly CompiledRule[] {
  const full = lists.filter(list => list.length > 0)
  const [only, second] = full
  const entries = only !== undefined && second === undefined ? only : full.flat().sort((a, b) => a.at - b.at)
  return entries.map(({ rule }) => rule)
}

/** Gives an index; undefined for a short chain. */
export function indexOf(rules: readonly CompiledRule[]): RuleIndex | undefined {
  if (rules.length < INDEXED_FROM) return undefined
  return new RuleIndex(rules.map((rule, at) => ({ at, rule, ...rule.guard })))
}

/** Reads the comparisons at the beginning of a rule: nothing before them has an effect. */
export function guardOf(expressions: CompiledRule['expressions'], family: NftFamily): Guard {
  const guard: { -readonly [K in keyof Guard]: Guard[K] } = {
    destination: undefined,
    port: undefined,
    protocol: undefined,
  }
  let loaded: { readonly dreg: number; readonly field: keyof Guard; readonly length: number } | undefined
  for (const each of expressions) {
    if (each.kind === 'payload') {
      const field = fieldOf(each, family)
      loaded = field === undefined ? undefined : { dreg: each.dreg, field, length: each.length }
    } else if (each.kind === 'meta')
      loaded = each.key === NFT_META_L4PROTO ? { dreg: each.dreg, field: 'protocol', length: 1 } : undefined
    else if (each.kind === 'cmp') {
      const isWhole = loaded?.dreg === each.sreg && loaded.length === each.data.length
      if (loaded !== undefined && isWhole && each.op === 'eq') guard[loaded.field] ??= each.data
      loaded = undefined
    } else if (each.kind !== 'extension' || !each.isPure) return guard
  }
  return guard
}

function fieldOf({ base, offset, length }: Of<'payload'>, family: NftFamily): keyof Guard | undefined {
  if (base === NFT_PAYLOAD_TRANSPORT_HEADER) return offset === 2 && length === 2 ? 'port' : undefined
  if (base !== NFT_PAYLOAD_NETWORK_HEADER) return undefined
  const isDestination = family === 'ip' ? offset === 16 && length === 4 : offset === 24 && length === 16
  return isDestination ? 'destination' : undefined
}

/** Whether rules compare bits of a destination that are no prefix: no region of addresses says so. */
export function comparesBits(rules: readonly CompiledRule[], family: NftFamily): boolean {
  return rules.some(({ expressions }) =>
    expressions.some((each, index) => {
      const before = expressions[index - 1]
      return (
        each.kind === 'bitwise' &&
        before?.kind === 'payload' &&
        fieldOf(before, family) === 'destination' &&
        !/^\xff*[\x80\xc0\xe0\xf0\xf8\xfc\xfe]?\0*$/.test(each.mask)
      )
    }),
  )
}

/** A chain, and those that its rules lead to. */
interface Leading<C> {
  readonly rules: readonly CompiledRule[]
  readonly table: { readonly chains: ReadonlyMap<string, C> }
}

/**
 * Gives the places that some rule of a chain, or of those that it leads to, compares: packets to other places pass it
 * without an effect. Undefined where there are more effects.
 */
export function placesIn<C extends Leading<C>>({ rules, table }: C): readonly Guard[] | undefined {
  const places: Guard[] = []
  for (const { guard, expressions } of rules) {
    if (guard.destination !== undefined) {
      places.push(guard)
      continue
    }
    const last = expressions.at(-1)
    const target = last?.kind === 'verdict' ? table.chains.get(last.verdict.chain ?? '') : undefined
    const further =
      target !== undefined && expressions.slice(0, -1).every(isTest) ? placesIn(target) : undefined
    if (further === undefined) return undefined
    places.push(...further)
  }
  return places
}

export function dividesByChance({ expressions }: CompiledRule): boolean {
  return expressions.some(each => each.kind === 'extension' && each.isChance === true)
}

/** Gives the chains that lead packets on by such rules alone, and those that they lead to. */
export function* chainsBehind<C extends Leading<C>>(chain: C): Generator<C, void, undefined> {
  yield chain
  for (const { guard, expressions } of chain.rules) {
    const last = guard.destination === undefined ? expressions.at(-1) : undefined
    const target = last?.kind === 'verdict' ? chain.table.chains.get(last.verdict.chain ?? '') : undefined
    if (target !== undefined) yield* chainsBehind(target)
  }
}

function isTest(expression: CompiledRule['expressions'][number]): boolean {
  const { kind } = expression
  return kind === 'extension' ? expression.isPure : TESTS.includes(kind)
}

const TESTS: readonly string[] = ['payload', 'meta', 'bitwise', 'cmp']
