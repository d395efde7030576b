import { type Findings, isJson, refuse } from './fields.ts'
import type { Backend } from './frontend.ts'
import type {
  BalancePolicy,
  BalanceSettings,
  Balancing,
  EndpointTraits,
  PortBalance,
  Service,
  ServiceBalance,
  SilentEndpoint,
  WeightRule,
} from './service.ts'

/*
 * How connections are divided among the endpoints of a Service: docs/balance.md. The result is a weight of each endpoint;
 * a mode turns weights into slots, real servers, or nothing.
 */

export const BALANCE_ANNOTATION = 'kprobe.io/balance'
export const WEIGHTS_ANNOTATION = 'kprobe.io/weights'
export const FAIL_OVER_ANNOTATION = 'kprobe.io/fail-over'
export const PASSIVE = 'passive'
export const POLICIES: readonly BalancePolicy[] = ['random', 'maglev', 'maglev/5-tuple', 'local-first']

const WEIGHT_RULE = /^(zone|node)=([^\s=:,]{1,253}):(\d{1,3})$/
const WEIGHT_MAX = 100
const WEIGHT_RULES_MAX = 256

/** Reads both annotations. Gives undefined where there are none. */
export function readBalance(findings: Findings, annotations: unknown): ServiceBalance | undefined {
  const { [BALANCE_ANNOTATION]: word, [WEIGHTS_ANNOTATION]: text } = isJson(annotations) ? annotations : {}
  if (word === undefined && text === undefined) return undefined
  return { policy: readPolicy(findings, word), weights: readWeights(findings, text) }
}

export function readFailOver(findings: Findings, annotations: unknown): true | undefined {
  const word = isJson(annotations) ? annotations[FAIL_OVER_ANNOTATION] : undefined
  if (word === undefined) return undefined
  if (word === PASSIVE) return true
  const reason = `not a kind of fail-over; ${PASSIVE} is accepted; ignored`
  refuse(findings, `metadata.annotations[${FAIL_OVER_ANNOTATION}]`, word, reason)
  return undefined
}

function readPolicy(findings: Findings, word: unknown): BalancePolicy | undefined {
  if (word === undefined) return undefined
  const known = POLICIES.find(policy => policy === word)
  if (known !== undefined) return known
  const reason = `not a policy; ${POLICIES.join(', ')} are accepted; using random`
  refuse(findings, `metadata.annotations[${BALANCE_ANNOTATION}]`, word, reason)
  return 'random'
}

const NO_WEIGHTS: readonly WeightRule[] = []

/** One rule that cannot be read makes all of them useless: the shares would be others than intended. */
function readWeights(findings: Findings, text: unknown): readonly WeightRule[] {
  if (text === undefined) return NO_WEIGHTS
  const parts = typeof text === 'string' ? text.split(',') : []
  const rules = parts.flatMap(part => readWeight(part.trim()) ?? [])
  if (rules.length > 0 && rules.length === parts.length && rules.length <= WEIGHT_RULES_MAX) return rules
  const reason = `not a list of at most ${WEIGHT_RULES_MAX} weights from 0 to ${WEIGHT_MAX} such as zone=eu-1:3,node=worker-1:0; ignored`
  refuse(findings, `metadata.annotations[${WEIGHTS_ANNOTATION}]`, text, reason)
  return NO_WEIGHTS
}

function readWeight(part: string): WeightRule | undefined {
  const [, kind, name = '', digits] = WEIGHT_RULE.exec(part) ?? []
  const weight = Number(digits)
  if ((kind !== 'zone' && kind !== 'node') || weight > WEIGHT_MAX) return undefined
  return { kind, name, weight }
}

/** Gives how a Service is balanced; undefined for `random` without weights. */
export function balanceOf(
  service: Service,
  balancing: Balancing | undefined,
  findings: Findings,
): PortBalance | undefined {
  if (balancing === undefined) return undefined
  const { balance } = service
  if (balancing.refusedBy !== undefined) {
    if (balance !== undefined) refuseBalance(balance, balancing.refusedBy, findings)
    return undefined
  }
  const settings = balanceSettings(service, balancing)
  return settings && { ...settings, seed: fnv1a(service.uid || service.key) }
}

/** Gives the policy and weights of a Service; undefined for `random` without weights, and where the mode refuses them. */
export function balanceSettings(
  { balance }: Service,
  balancing: Balancing | undefined,
): BalanceSettings | undefined {
  if (balancing === undefined || balancing.refusedBy !== undefined) return undefined
  const { policy = balancing.policy, weights = NO_WEIGHTS } = balance ?? {}
  return policy === 'random' && weights.length === 0 ? undefined : { policy, weights }
}

export function isHashed({ policy }: BalanceSettings): boolean {
  return policy === 'maglev' || policy === 'maglev/5-tuple'
}

function refuseBalance({ policy, weights }: ServiceBalance, mode: string, findings: Findings): void {
  const reason = `${mode} mode has one way to balance: use nftables or IPVS mode; ignored`
  if (policy !== undefined && policy !== 'random')
    refuse(findings, `metadata.annotations[${BALANCE_ANNOTATION}]`, policy, reason)
  if (weights.length > 0)
    refuse(findings, `metadata.annotations[${WEIGHTS_ANNOTATION}]`, weightsText(weights), reason)
}

/** Tests whether silent endpoints of the Service are taken out: it requests that, and the mode does it. */
export function failsOver(service: Service, balancing: Balancing | undefined, findings?: Findings): boolean {
  if (service.failsOver !== true || balancing === undefined) return false
  const mode = balancing.failOverRefusedBy
  if (mode === undefined) return true
  const reason = `${mode} mode has no fail-over: use nftables mode; ignored`
  if (findings !== undefined)
    refuse(findings, `metadata.annotations[${FAIL_OVER_ANNOTATION}]`, PASSIVE, reason)
  return false
}

/** The text of the annotation. */
export function weightsText(weights: readonly WeightRule[]): string {
  return weights.map(({ kind, name, weight }) => `${kind}=${name}:${weight}`).join(',')
}

/** Gives the weight of an endpoint: that of its node, or else of its zone, or else 1. */
export function weightOf(weights: readonly WeightRule[], { nodeName, zone }: EndpointTraits): number {
  const by = (kind: WeightRule['kind'], name: string | undefined) =>
    weights.find(its => its.kind === kind && its.name === name)?.weight
  return by('node', nodeName) ?? by('zone', zone) ?? 1
}

/** How a list of endpoints is divided. */
export interface Division {
  /** Undefined for equal shares. */
  readonly balance?: BalanceSettings | undefined
  /** Those of the port's protocol. */
  readonly silent?: readonly SilentEndpoint[] | undefined
}

/** Gives the endpoints of a list with their weights, without those of weight 0. */
export function weighed(
  backends: readonly Backend[],
  traits: readonly EndpointTraits[],
  division: Division,
): readonly Backend[] {
  const weights = weightsIn(backends, traits, division)
  return backends.flatMap((backend, at) => {
    const weight = weights[at] ?? 0
    return weight === 0 ? [] : [weight === 1 ? backend : { ...backend, weight }]
  })
}

type Placed = Omit<Backend, 'weight'>

const EQUAL: BalanceSettings = { policy: 'random', weights: NO_WEIGHTS }

/**
 * Gives the weight of each endpoint of a list. Weights have no common divisor. Where every endpoint has weight 0, all are
 * served alike: weights never leave a list empty.
 */
export function weightsIn(
  backends: readonly Placed[],
  traits: readonly EndpointTraits[],
  { balance: { policy, weights } = EQUAL, silent = [] }: Division,
): readonly number[] {
  const given = traits.map(its => weightOf(weights, its))
  const own = given.some(weight => weight > 0) ? given : given.map(() => 1)
  const heard = silent.length === 0 ? own : withoutSilent(own, backends, silent)
  const all = policy === 'local-first' ? localFirst(heard, backends, traits) : heard
  const unit = all.reduce(commonDivisor, 0)
  return all.map(weight => weight / unit)
}

/**
 * Gives how many endpoints of a list may be out at a time: a third, and of two endpoints one, because half of the connections
 * would fail otherwise. Never the last one.
 */
export function outMax(endpoints: number): number {
  return endpoints === 2 ? 1 : Math.floor(endpoints / 3)
}

/** Gives silent endpoints the weight 0, as many as may be out. */
function withoutSilent(
  weights: readonly number[],
  backends: readonly Placed[],
  silent: readonly SilentEndpoint[],
): readonly number[] {
  const used = weights.filter(weight => weight > 0).length
  const found = silent
    .map(({ ip, port }) => backends.findIndex(its => its.ip === ip && its.port === port))
    .filter(at => (weights[at] ?? 0) > 0)
  const out = new Set(found.slice(0, outMax(used)))
  return weights.map((weight, at) => (out.has(at) ? 0 : weight))
}

/**
 * Multiplies weights so that this node uses its own endpoints first. With N endpoints on K nodes, a node's share is N / K
 * endpoints. A node with L of its own that has its share uses these alone; with fewer, they get L * K / N of its
 * connections, and the others the rest.
 */
function localFirst(
  weights: readonly number[],
  backends: readonly Placed[],
  traits: readonly EndpointTraits[],
): readonly number[] {
  const isUsed = (_: unknown, at: number) => (weights[at] ?? 0) > 0
  const used = backends.filter(isUsed)
  const [all, own] = [used.length, used.filter(({ local }) => local).length]
  const nodes = new Set(traits.filter(isUsed).map(({ nodeName }) => nodeName)).size
  if (own === 0 || own === all) return weights
  const isEnough = own * nodes >= all
  const [here, elsewhere] = isEnough ? [1, 0] : [nodes * (all - own), all - own * nodes]
  return backends.map(({ local }, at) => (weights[at] ?? 0) * (local ? here : elsewhere))
}

export function commonDivisor(a: number, b: number): number {
  return b === 0 ? a : commonDivisor(b, a % b)
}

/** FNV-1a, 32 bits. */
export function fnv1a(text: string, basis = 0x811c9dc5): number {
  let value = basis
  for (let at = 0; at < text.length; at++) value = Math.imul(value ^ text.charCodeAt(at), 0x01000193)
  return value >>> 0
}
