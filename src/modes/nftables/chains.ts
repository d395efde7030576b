import type { Chain, Rule, Table } from '../../kernel/nft/state.ts'
import { withLogs } from '../common/logs.ts'
import {
  askMasquerade,
  CHAIN_FIREWALL,
  CHAIN_NO_LOCAL,
  CHAIN_REJECT,
  goTo,
  insideRules,
  jumpTo,
  type RuleContext,
  rule,
} from '../common/rules.ts'
import { PROTOCOLS } from '../common/tables.ts'
import type { CodeDraft, Codes } from './layout.ts'
import { pickKnown, pickNew, pickSlot, type SlotChoice } from './rules.ts'

/**
 * A chain made on demand. There is one for each distinct value of these, never one for each Service. The name
 * of a chain encodes everything that its rules depend on, so chains read from the kernel need no other
 * record.
 */
type ChainSpec =
  /** mod-N, lmod-N; with affinity aff-N-T, laff-N-T: sends the packet to one of N endpoints. */
  | PickSpec
  /** ext-N, ext-N-T: an external address with policy Cluster. */
  | { readonly kind: 'external'; readonly count: SlotCount; readonly timeoutS: number }
  /** loc-N-M, loc-N-M-T: an external address with policy Local; N endpoints in the cluster, M on this node. */
  | {
      readonly kind: 'external-local'
      readonly cluster: SlotCount
      readonly local: SlotCount
      readonly timeoutS: number
    }
  /** fw-X: checks the source ranges of a frontend, then goes to X. */
  | { readonly kind: 'firewall'; readonly target: string }

/**
 * The slots of a list: the number of those that a packet takes at random, or the text `1019h` for 1,019 that packets take by
 * a hash of the client's address, `1019t` by a hash of addresses and ports.
 */
export type SlotCount = number | `${number}${'h' | 't'}`

interface PickSpec {
  readonly kind: 'pick'
  readonly local: boolean
  readonly count: SlotCount
  /** Seconds; 0 without session affinity. */
  readonly timeoutS: number
}

/** Gives the name of a chain that picks an endpoint. Callers pass the exact count; this function quantizes it. */
export function pickChain(local: boolean, count: SlotCount, timeoutS: number): string {
  const prefix = local ? 'l' : ''
  const n = quantise(count)
  return timeoutS === 0 ? `${prefix}mod-${n}` : `${prefix}aff-${n}-${timeoutS}`
}

export function externalChain(count: SlotCount, timeoutS: number): string {
  return timeoutS === 0 ? `ext-${quantise(count)}` : `ext-${quantise(count)}-${timeoutS}`
}

export function externalLocalChain(cluster: SlotCount, local: SlotCount, timeoutS: number): string {
  const name = `loc-${quantise(cluster)}-${quantise(local)}`
  return timeoutS === 0 ? name : `${name}-${timeoutS}`
}

export function firewallChain(target: string): string {
  return `fw-${target}`
}

/** Gives the chain that the cluster list behind `name` needs when it grows by one endpoint; undefined for other lists. */
export function nextChain(name: string): string | undefined {
  const spec = parseChain(name)
  if (spec === undefined) return undefined
  if (spec.kind !== 'pick')
    return chainsBehind(name)
      .map(nextChain)
      .find(next => next !== undefined)
  const { local, count, timeoutS } = spec
  return local || timeoutS > 0 || typeof count === 'string' ? undefined : pickChain(false, count + 1, 0)
}

/** Parses the name of a chain; undefined when the name is not in the form that kprobe gives. */
export function parseChain(name: string): ChainSpec | undefined {
  const spec = readName(name)
  return spec !== undefined && nameOf(spec) === name ? spec : undefined
}

function readName(name: string): ChainSpec | undefined {
  const [head = '', ...rest] = name.split('-')
  if (head === 'fw') {
    const target = name.slice('fw-'.length)
    const behind = readName(target)?.kind
    const known = target === CHAIN_REJECT || (behind !== undefined && behind !== 'firewall')
    return known ? { kind: 'firewall', target } : undefined
  }
  if (rest.length > 3 || !rest.every(part => /^\d{1,7}[ht]?$/.test(part))) return undefined
  const [a = 0, b = 0, c = 0] = rest.map(countIn)
  if (head === 'mod' || head === 'lmod' || head === 'aff' || head === 'laff')
    return typeof b === 'string'
      ? undefined
      : { kind: 'pick', local: head.startsWith('l'), count: a, timeoutS: b }
  if (head === 'ext') return typeof b === 'string' ? undefined : { kind: 'external', count: a, timeoutS: b }
  if (head !== 'loc' || typeof c === 'string') return undefined
  return { kind: 'external-local', cluster: a, local: b, timeoutS: c }
}

function countIn(text: string): SlotCount {
  const number = Number.parseInt(text, 10)
  return text.endsWith('h') ? `${number}h` : text.endsWith('t') ? `${number}t` : number
}

function nameOf(spec: ChainSpec): string {
  switch (spec.kind) {
    case 'pick':
      return spec.count === 0 ? '' : pickChain(spec.local, spec.count, spec.timeoutS)
    case 'external':
      return spec.count === 0 ? '' : externalChain(spec.count, spec.timeoutS)
    case 'external-local':
      return externalLocalChain(spec.cluster, spec.local, spec.timeoutS)
    case 'firewall':
      return parseChain(spec.target) === undefined && spec.target !== CHAIN_REJECT
        ? ''
        : firewallChain(spec.target)
  }
}

/** Gives the chains made on demand that rules of `name` lead to. */
export function chainsBehind(name: string): readonly string[] {
  const spec = parseChain(name)
  switch (spec?.kind) {
    case 'pick':
      return spec.count !== 1 && spec.timeoutS === 0 ? [pickChain(spec.local, 1, 0)] : []
    case 'external':
      return [pickChain(false, spec.count, spec.timeoutS)]
    case 'external-local': {
      const behind = spec.cluster !== 0 ? [pickChain(false, spec.cluster, spec.timeoutS)] : []
      return spec.local !== 0 ? [...behind, pickChain(true, spec.local, spec.timeoutS)] : behind
    }
    case 'firewall':
      return spec.target === CHAIN_REJECT ? [] : [spec.target]
    default:
      return []
  }
}

export function makeChain(name: string, context: RuleContext): Chain | undefined {
  const spec = parseChain(name)
  if (spec === undefined) return undefined
  return withLogs({ name, hook: undefined, rules: rulesOf(spec, context) }, context)
}

function rulesOf(spec: ChainSpec, context: RuleContext): readonly Rule[] {
  switch (spec.kind) {
    case 'pick':
      return spec.timeoutS === 0 ? pickRules(spec, context) : affinityRules(spec, context)
    case 'external':
      return [rule([...askMasquerade(context), goTo(pickChain(false, spec.count, spec.timeoutS))])]
    case 'external-local':
      return externalLocalRules(spec, context)
    case 'firewall':
      return [rule([jumpTo(CHAIN_FIREWALL)]), rule([goTo(spec.target)])]
  }
}

/**
 * Makes the rules that pick an endpoint. A packet may read N just before a commit and the endpoints after it.
 * Slot N-1 may then be missing, and slot 0 serves. All chains share the rules of slot 0, because each rule
 * that reads a map makes additions to that map more expensive.
 */
function pickRules({ local, count }: PickSpec, { layout }: RuleContext): readonly Rule[] {
  const rules = choicesOf(count).flatMap(choice =>
    PROTOCOLS.map(protocol => rule(pickSlot(layout, { protocol, local, choice }))),
  )
  return count === 1 ? rules : [...rules, rule([goTo(pickChain(local, 1, 0))])]
}

function affinityRules({ local, count, timeoutS }: PickSpec, { layout }: RuleContext): readonly Rule[] {
  const timeoutMs = timeoutS * 1000
  const [first, ...others] = choicesOf(count)
  const last: readonly SlotChoice[] = count === 1 ? [] : [{ modulus: 1 }]
  return PROTOCOLS.flatMap(protocol => {
    const list = { protocol, local }
    const known = rule(pickKnown(layout, { ...list, timeoutMs }))
    const fresh = [first, ...others, ...last].map(choice =>
      rule(pickNew(layout, { ...list, choice, timeoutMs })),
    )
    // Packets also reach these rules when the map of clients is full.
    const forgetful = [first, ...(others.length > 0 ? last : [])].map(choice =>
      rule(pickNew(layout, { ...list, choice, timeoutMs: undefined })),
    )
    return [known, ...fresh, ...forgetful]
  })
}

/** Makes the rules of policy Local. Pods and processes of this node are inside: they reach endpoints everywhere. */
function externalLocalRules(
  spec: Extract<ChainSpec, { kind: 'external-local' }>,
  context: RuleContext,
): readonly Rule[] {
  const { cluster, local, timeoutS } = spec
  const inside = goTo(cluster !== 0 ? pickChain(false, cluster, timeoutS) : CHAIN_REJECT)
  const outside = goTo(local !== 0 ? pickChain(true, local, timeoutS) : CHAIN_NO_LOCAL)
  return [...insideRules(context, [inside], [...askMasquerade(context), inside]), rule([outside])]
}

/** Each count up to this one has a chain of its own. */
const EXACT_MAX = 16

/**
 * Gives the modulus for a list of `count` endpoints: `count` itself up to 16, above that the next of eight
 * steps per doubling (18, 20, .. 32, 36, ..). Large lists therefore change their code only at a step, and the
 * number of distinct chains is bounded.
 */
export function quantise(count: number): number
export function quantise(count: SlotCount): SlotCount
export function quantise(count: SlotCount): SlotCount {
  if (typeof count === 'string' || count <= EXACT_MAX) return count
  const step = stepAt(count)
  return Math.ceil(count / step) * step
}

/**
 * Gives the moduli that a chain for `quantised` rolls in turn until a slot exists; index 0 comes after all of
 * them. Slots are missing only above 16, by less than one step. Rolling again keeps the bias of the last
 * slots below 1.3 %.
 */
export function rolls(quantised: number): readonly number[] {
  if (quantised <= EXACT_MAX) return [quantised]
  return [quantised, quantised, quantised - stepAt(quantised)]
}

/** Gives the choices of a slot that a chain tries in turn. A hash may lead to an empty slot: the packet is hashed again. */
function choicesOf(count: SlotCount): readonly [SlotChoice, ...SlotChoice[]] {
  if (typeof count === 'string') {
    const [first, ...others] = HASH_SEEDS
    const hashed = (seed: number): SlotChoice => ({
      modulus: Number.parseInt(count, 10),
      hash: { of: count.endsWith('h') ? 'client' : 'connection', seed },
    })
    return [hashed(first), ...others.map(hashed)]
  }
  const [first = count, ...others] = rolls(count)
  return [{ modulus: first }, ...others.map(modulus => ({ modulus }))]
}

/**
 * Equal on every node of every cluster, and in every release: another one sends clients to other endpoints. At most an
 * eighth of the slots is empty, so that one packet in 4,096 meets only empty ones.
 */
const HASH_SEEDS = [0x6b70726f, 0x62650000, 0x6d61676c, 0x65760000] as const

/** Gives the distance between the quantized counts around `count`, for counts above 16. */
function stepAt(count: number): number {
  return 2 ** (Math.floor(Math.log2(count - 1)) - 3)
}

/** The maximum number of unused on-demand chains that are kept for reuse. */
const UNUSED_MAX = 64

interface OnDemand {
  /** The names of all on-demand chains of the table. */
  readonly chains: ReadonlySet<string>
  readonly codes: Codes
}

/**
 * Chooses the chains of a table: those that elements lead to, those behind them, and the unused ones of
 * `base` unless they are too many. Keeping unused chains avoids new rules each time the endpoint count of a
 * Service goes up and down. The first version of a table also gets the chain of each list that is one
 * endpoint longer, because the kernel walks all endpoints when a chain is added later.
 */
export function chooseChains(
  base: Table | undefined,
  codes: CodeDraft,
  inUse: { has(code: number): boolean },
): OnDemand {
  const present = [...(base?.chains.keys() ?? [])].filter(name => parseChain(name) !== undefined)
  const used = [...codes.all()].flatMap(([chain, code]) => (inUse.has(code) ? chain : []))
  const needed = new Set<string>()
  for (const chain of used) add(needed, chain)
  if (present.length === 0) {
    for (const chain of used) {
      const next = nextChain(chain)
      if (next !== undefined && codes.take(next) !== undefined) add(needed, next)
    }
  }
  const unused = present.filter(name => !needed.has(name))
  if (unused.length <= UNUSED_MAX) for (const name of unused) add(needed, name)
  return { chains: needed, codes: codes.finish(needed) }
}

function add(chains: Set<string>, name: string): void {
  if (chains.has(name)) return
  chains.add(name)
  for (const behind of chainsBehind(name)) add(chains, behind)
}

/** Makes the chains. Chains of `same`, which were made from equal inputs, are reused and need no context. */
export function makeChains(
  names: Iterable<string>,
  contextOf: () => RuleContext,
  same: ReadonlyMap<string, Chain> | undefined,
): readonly Chain[] {
  const chains: Chain[] = []
  let context: RuleContext | undefined
  for (const name of names) {
    context ??= same?.has(name) ? undefined : contextOf()
    const chain = same?.get(name) ?? (context && makeChain(name, context))
    if (chain !== undefined) chains.push(chain)
  }
  return chains
}
