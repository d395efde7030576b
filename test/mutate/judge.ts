import { createHash } from 'node:crypto'
import { formatIp } from '../../src/base/ip.ts'
import type { IpvsHeld } from '../../src/kernel/ipvs/state.ts'
import { printRuleset } from '../../src/kernel/nft/print.ts'
import type { AnyTable, Table } from '../../src/kernel/nft/state.ts'
import { printRule } from '../../src/kernel/xt/print.ts'
import type { XtRule } from '../../src/kernel/xt/rule.ts'
import type { IptablesState } from '../../src/modes/iptables/state.ts'
import type { IpvsState } from '../../src/modes/ipvs/state.ts'
import type { Proving } from '../../src/modes/mode.ts'
import type { NftablesState } from '../../src/modes/nftables/state.ts'
import { classesOf } from '../../src/proof/atoms.ts'
import { createTracer, type Tracer } from '../../src/proof/evaluate/trace.ts'
import type { ProofDifference } from '../../src/proof/examine.ts'
import { meaningOf } from '../../src/proof/meanings.ts'
import { nameOf } from '../../src/proof/packet-class.ts'
import { Objects } from '../sim/objects.ts'
import { createRandom } from '../support/apiserver/random.ts'
import { keyOf, Store } from '../support/apiserver/store.ts'
import {
  type Computed,
  change,
  computeIn,
  IPTABLES,
  IPTABLES_OPTIMIZED,
  IPVS,
  ip,
  type Mode,
  NFTABLES,
  type ObjectChanges,
  type PipelineConfig,
  type Stateful,
} from '../support/pipeline.ts'
import { meaningConfigOf, proofOf } from '../support/proof.ts'
import { heldChains, PROVING, tablesOfChains } from '../support/proof-iptables.ts'
import { heldOf, OWN_IPVS, PROVING_IPVS } from '../support/proof-ipvs.ts'
import { outcomesOf, packetOf } from '../support/proof-packets.ts'
import { LOCAL_IPS, LOGGED, loadScenarios, scenarioOf } from '../support/scenario.ts'
import { createIpvsTracer, createXtTracer } from '../support/tracers.ts'
import { generator } from '../support/walk.ts'

declare global {
  /** Says whether a mutation counts, and notes that it was reached: see sites.ts. */
  var mutant: (number: number) => boolean
  /** Begins to count the turns of loops anew: see worker.mjs. */
  var countTurnsAnew: () => void
}

/** What a mutation does to the rules. */
export type Judgement =
  /** Nothing that is tried reaches the place. */
  | { readonly result: 'unreached' }
  /** No rule differs. */
  | { readonly result: 'same' }
  /** The proof finds it. */
  | { readonly result: 'caught'; readonly at: string; readonly difference: string }
  /** Rules differ, and packets of every class end where they ended. */
  | { readonly result: 'harmless'; readonly at: string; readonly stops: number; readonly rule: string }
  /** A packet ends elsewhere, and the proof does not find it. */
  | { readonly result: 'missed'; readonly at: string; readonly packet: string }
  /** There are no rules. */
  | { readonly result: 'throws'; readonly at: string; readonly error: string }

/** Objects that come and go, from scenarios and made at random. */
interface Course {
  readonly name: string
  readonly config: PipelineConfig
  readonly steps: readonly ObjectChanges[]
}

/** What a mode makes of the objects of one step. */
interface Made {
  readonly tables: () => readonly AnyTable[]
  readonly proving: Proving | undefined
  /** What decides outside of nf_tables; undefined where nothing does. */
  readonly ipvs?: { readonly held: IpvsHeld; readonly ownName: string }
  readonly tracer: Tracer
  /** All of it, for comparisons. */
  readonly key: () => string
  readonly text: () => string
}

interface Judged<State extends Stateful> {
  readonly mode: Mode<State>
  readonly name: ModeName
  readonly make: (state: State) => Made
}

const BY_RULES: Judged<NftablesState> = {
  mode: NFTABLES,
  name: 'nftables',
  make: ({ ruleset }) => ({
    tables: () => ruleset.tables,
    proving: undefined,
    tracer: createTracer(ruleset),
    key: () => ruleset.tables.map(keyOfTable).join(),
    text: () => [...printRuleset(ruleset)].join('\n'),
  }),
}

const BY_SERVERS: Judged<IpvsState> = {
  mode: IPVS,
  name: 'ipvs',
  make: state => {
    const held = heldOf(state)
    const lines = () => [
      ...held.servers.map(its => `server ${JSON.stringify([its.server, its.destinations], printable)}`),
      ...held.ipsets.map(its => `ipset ${JSON.stringify([its.set, its.entries], printable)}`),
      ...held.addresses.map(its => `address ${formatIp(its)}`),
    ]
    return {
      tables: () => state.ruleset.tables,
      proving: PROVING_IPVS,
      ipvs: { held, ownName: OWN_IPVS },
      tracer: createIpvsTracer(state),
      key: () => [...state.ruleset.tables.map(keyOfTable), ...lines()].join(),
      text: () => [...printRuleset(state.ruleset), ...lines()].join('\n'),
    }
  },
}

/** Writes addresses, which are octets, as text. */
function printable(key: string, value: unknown): unknown {
  return key === 'ip' && typeof value === 'string' ? formatIp(value) : value
}

function keyOfTable({ chains, sets, elements, ...table }: Table): string {
  return JSON.stringify([table, [...chains.values()], [...sets.values()], [...elements.entries()]])
}

function byChains(mode: Mode<IptablesState>, name: ModeName): Judged<IptablesState> {
  return {
    mode,
    name,
    make: state => {
      const chains = heldChains(state)
      const linesOf = ({ family, table, name, rules }: (typeof chains)[number]) => [
        `:${family} ${table} ${name}`,
        ...rules.map(rule => `${family} ${table} -A ${name} ${printRule(rule, family)}`),
      ]
      const last: readonly XtRule[] = []
      return {
        tables: () => tablesOfChains(chains),
        proving: PROVING,
        tracer: createXtTracer(() => ({
          chains: chains.map(chain => ({ ...chain, last })),
          jumps: [],
          print: printRule,
        })),
        key: () => JSON.stringify(chains),
        text: () => chains.flatMap(linesOf).join('\n'),
      }
    },
  }
}

const BY_CHAINS = byChains(IPTABLES, 'iptables')
const BY_FEWER_RULES = byChains(IPTABLES_OPTIMIZED, 'optimized')

const WALKS: readonly PipelineConfig[] = [{}, { nodePortAddresses: [], masqueradeAll: true }]
const WALK_STEPS = 12

const ALL: readonly Course[] = [
  ...loadScenarios().map(({ file, config, steps }) => ({ name: file, config, steps })),
  ...LOGGED.map(scenarioOf).map(({ file, config, steps }) => {
    return { name: `logged ${file}`, config: { ...config, logRejects: 5 }, steps }
  }),
  ...WALKS.map(walk),
]

/** Random changes of a small cluster. */
function walk(config: PipelineConfig, index: number): Course {
  const store = new Store({ now: () => new Date(0) })
  const objects = new Objects(store, createRandom(index))
  const shelves = ['nodes', 'servicecidrs', 'services', 'endpointslices']
  const steps: ObjectChanges[] = []
  let before = new Set<string>()
  while (steps.length < WALK_STEPS) {
    objects.change()
    const held = shelves.flatMap(shelf => store.list(shelf))
    const names = new Set(held.map(object => `${object.kind} ${keyOf(object)}`))
    steps.push({ objects: held, remove: [...before].filter(name => !names.has(name)) })
    before = names
  }
  return { name: `walk ${index}`, config, steps }
}

interface Step<State extends Stateful> {
  readonly at: string
  readonly computed: Computed<State>
}

function* stepsIn<State extends Stateful>(
  mode: Mode<State>,
  { name, config, steps }: Course,
): Generator<Step<State>> {
  globalThis.countTurnsAnew()
  let computed = computeIn(mode, config, LOCAL_IPS)
  for (const [index, step] of steps.entries()) {
    globalThis.countTurnsAnew()
    computed = change(computed, step)
    yield { at: `${name}[${index}]`, computed }
  }
}

export type ModeName = 'nftables' | 'iptables' | 'optimized' | 'ipvs'
type Look<T> = (at: string, computed: Computed<Stateful>, made: Made) => T | undefined
/** Names a mode and what it is given: `nftables: affinity.yaml`. */
type Wanted = (course: string) => boolean

/** Gives what `look` finds first in a step of the wanted courses. */
function find<T>(wanted: Wanted, look: Look<T>): T | undefined {
  const inMode = <State extends Stateful>({ mode, name, make }: Judged<State>): T | undefined => {
    for (const course of ALL) {
      if (!wanted(`${name}: ${course.name}`)) continue
      // IPVS mode serves the proxy without a name alone.
      if (name === 'ipvs' && course.config.serviceProxyName !== undefined) continue
      for (const { at, computed } of stepsIn(mode, course)) {
        const found = look(`${name}: ${at}`, computed, make(computed.state))
        if (found !== undefined) return found
      }
    }
    return undefined
  }
  return inMode(BY_RULES) ?? inMode(BY_CHAINS) ?? inMode(BY_FEWER_RULES) ?? inMode(BY_SERVERS)
}

/** The rules without a mutation. */
export interface Original {
  /** Shortened, by step. */
  readonly digests: ReadonlyMap<string, string>
  /** By mutation: the courses on which it is reached. */
  readonly reached: ReadonlyMap<number, ReadonlySet<string>>
}

export function original(modes: readonly string[]): Original {
  const digests = new Map<string, string>()
  const reached = new Map<number, Set<string>>()
  let course = ''
  let here = new Set<number>()
  globalThis.mutant = number => {
    if (here.has(number)) return false
    here.add(number)
    reached.set(number, (reached.get(number) ?? new Set()).add(course))
    return false
  }
  const wanted = (its: string) => {
    course = its
    here = new Set()
    return modes.some(mode => its.startsWith(`${mode}: `))
  }
  find(wanted, (at, _, made) => {
    digests.set(at, digest(made.key()))
    return undefined
  })
  return { digests, reached }
}

function digest(text: string): string {
  return createHash('sha1').update(text).digest('base64')
}

/** The rules of a step, and what becomes of one packet of each class. */
interface Seen {
  readonly text: string
  readonly packets: readonly string[]
}

/** Looks at steps while no mutation of a function counts. */
export function seenAt(steps: Iterable<string>): ReadonlyMap<string, Seen> {
  globalThis.mutant = () => false
  return new Map([...steps].map(at => [at, seen(at)]))
}

function seen(at: string): Seen {
  const found = find(
    course => at.startsWith(`${course}[`),
    (its, computed, made) =>
      its === at ? { text: made.text(), packets: packetsOf(computed, made) } : undefined,
  )
  if (found === undefined) throw new Error(`there is no step ${at}`)
  return found
}

const localIps = new Set(LOCAL_IPS.map(ip))

function packetsOf({ config, resolved }: Computed<Stateful>, { tracer, proving }: Made): readonly string[] {
  const random = generator(1)
  const promises = proving === undefined ? {} : { promises: proving.promises }
  const meanings = meaningOf(resolved.snapshot, { ...meaningConfigOf(config), ...promises })
  return meanings.flatMap(meaning =>
    [...classesOf(meaning)].flatMap(its => {
      const packet = packetOf(its, { localIps, random })
      if (packet === undefined) return []
      const first = `${nameOf(its)}, ${its.hook}: ${outcomesOf(tracer.ways(packet, { localIps })).join(' ')}`
      if (its.fate.kind !== 'endpoints' || its.fate.affinityS === 0) return [first]
      const { dynamic, destination } = tracer.trace(packet, { localIps, random: () => 0 })
      const again = outcomesOf(tracer.ways(packet, { localIps, dynamic })).join(' ')
      // Which endpoint comes first is no promise; that a client finds it again is one.
      return [first, `the same again: ${again.replaceAll(JSON.stringify(destination), 'that')}`]
    }),
  )
}

/** Steps with other rules that the proof accepts: so many are followed with single packets. */
const FOLLOWED_MAX = 6

/** What the proof says of a mutation. */
export interface Proved {
  readonly judgement: Judgement | undefined
  /** Steps whose rules differ and that the proof accepts, of many some. */
  readonly accepted: ReadonlyMap<string, Seen>
  readonly count: number
}

export interface Asked {
  readonly number: number
  /** It counts when modules are loaded, and on every course. */
  readonly isAtLoad: boolean
  readonly modes: readonly string[]
}

export function judge({ number, isAtLoad, modes }: Asked, { digests, reached }: Original): Proved {
  const steps: string[] = []
  if (!isAtLoad && !reached.has(number))
    return { judgement: { result: 'unreached' }, accepted: new Map(), count: 0 }
  const wanted = (course: string) =>
    modes.some(mode => course.startsWith(`${mode}: `)) &&
    (isAtLoad || reached.get(number)?.has(course) === true)
  globalThis.mutant = its => its === number
  const judgement = orThrows(wanted, (at, { config, resolved }, made) => {
    if (digest(made.key()) === digests.get(at)) return undefined
    const { differences } = proofOf(config, resolved.snapshot, made.tables(), made.proving, made.ipvs)
    const [first] = differences
    if (first === undefined) steps.push(at)
    return first === undefined ? undefined : { result: 'caught', at, difference: textOf(first) }
  })
  const stride = Math.ceil(steps.length / FOLLOWED_MAX)
  const some = steps.filter((_, index) => index % stride === 0)
  return { judgement, accepted: new Map(some.map(at => [at, seen(at)])), count: steps.length }
}

function orThrows(wanted: Wanted, look: Look<Judgement>): Judgement | undefined {
  let last = 'start'
  try {
    return find<Judgement>(wanted, (at, computed, made) => {
      last = at
      return look(at, computed, made)
    })
  } catch (error) {
    return { result: 'throws', at: last, error: error instanceof Error ? error.message : String(error) }
  }
}

function textOf({ name, packet, expected, kernel }: ProofDifference): string {
  return `${name}, ${packet}: ${expected}; now ${kernel}`
}

/** Lists of more endpoints are rounded: an endpoint may get 1.3 % more or less than its share, before and after. */
const EXACT_MAX = 16
const BIAS_OF_TWO = 0.026
const SHARE = /"(0\.\d+)"/g

/** Tells whether packets end in the same places, as often as what is promised of large lists of endpoints allows. */
export function isSameFate(line: string, was: string): boolean {
  if (line === was) return true
  const [is, before] = [sharesOf(line), sharesOf(was)]
  if (is.length <= EXACT_MAX || line.replace(SHARE, '') !== was.replace(SHARE, '')) return false
  return is.every((share, index) => Math.abs(share - (before[index] ?? 0)) * is.length <= BIAS_OF_TWO)
}

function sharesOf(line: string): readonly number[] {
  return [...line.matchAll(SHARE)].map(([, share]) => Number(share))
}

/** Follows packets through what the proof accepted. `before` is what they meet without the mutation. */
export function concluded(
  { judgement, accepted, count }: Proved,
  before: ReadonlyMap<string, Seen>,
): Judgement {
  for (const [at, { packets }] of accepted) {
    const was = before.get(at)?.packets ?? []
    const index = packets.findIndex((line, index) => !isSameFate(line, was[index] ?? ''))
    if (index >= 0) return { result: 'missed', at, packet: `${was[index]} -> ${packets[index]}` }
  }
  const [first] = accepted
  if (judgement !== undefined) return judgement
  if (first === undefined) return { result: 'same' }
  const [at, { text }] = first
  const [was, is] = [before.get(at)?.text.split('\n') ?? [], text.split('\n')]
  const [gone, added] = [was.find(line => !is.includes(line)), is.find(line => !was.includes(line))]
  const rule = `${gone?.trim() ?? 'nothing'} => ${added?.trim() ?? 'nothing'}`
  return { result: 'harmless', at, stops: count, rule }
}
