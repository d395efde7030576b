import { count } from '../../base/text.ts'
import { isSilent, type UnansweredRow, unansweredText, worstFirst } from '../live/unanswered-rows.ts'
import type { Question } from './explain-question.ts'
import { type Caught, type ExplainedEndpoint, isOther, outText, type Reason } from './explain-reasons.ts'
import type { KernelOutcome, Outcome } from './outcome.ts'

export interface Answer {
  readonly answer: string
  /** The kernel leads the connection to an endpoint of its Service; absent where the kernel cannot be read. */
  readonly isServed?: boolean
}

interface AnswerInput {
  readonly question: Question
  /** The destination: `10.96.0.1:80/TCP`. */
  readonly place: string
  readonly caught: Caught | undefined
  readonly list: 'cluster' | 'local' | undefined
  readonly reasons: readonly Reason[]
  readonly outcomes: readonly Outcome[]
  readonly kernel: KernelOutcome
  readonly endpoints: readonly ExplainedEndpoint[]
  /** The objects are those of a running daemon, whose rules should be in the kernel. */
  readonly hasDaemon: boolean
  /** The kernel's reason to reject the rules of the Service; undefined if it takes them. */
  readonly rejection?: string | undefined
}

/**
 * Describes in one sentence what happens to a connection, and why. Damaged rules come first, whatever the Services specify,
 * and then what keeps the connection from an endpoint.
 */
export function answerOf(input: AnswerInput): Answer {
  const why = damageOf(input) ?? otherOf(input) ?? deadEndOf(input)
  if (why !== undefined) return { answer: why, isServed: false }
  const { kind } = input.kernel
  return { answer: servedText(input), ...(kind === 'unknown' ? {} : { isServed: kind === 'same' }) }
}

/** Says that the connection reaches another Service than the one that the question names. */
function otherOf({ question, caught, reasons: [first], outcomes, kernel }: AnswerInput): string | undefined {
  if (caught === undefined || !isOther(question, caught)) return undefined
  const why =
    first === undefined || first.kind === 'note'
      ? `not served: another Service has the address of ${question.service}`
      : first.text
  const its = endText(outcomes, kernel.kind === 'same' ? ENDS : WISHES)
  return [`${why}; the connection ${its} of ${caught.port.service}`, ...absenceOf(kernel)].join('; ')
}

function damageOf({ caught, kernel, outcomes, hasDaemon, rejection }: AnswerInput): string | undefined {
  const isOurs = outcomes.some(({ verdict }) => verdict !== 'accept')
  if (kernel.kind === 'absent' && hasDaemon && isOurs) return `rules missing: ${kernel.reason}`
  if (kernel.kind !== 'different') return undefined
  if (rejection !== undefined && caught !== undefined)
    return `quarantined: the kernel rejects the rules of ${caught.port.service}: ${rejection}`
  if (kernel.part !== 'rules')
    return `${kernel.part === 'relay' ? 'not relayed' : 'not forwarded'}: ${kernel.reason}`
  if (kernel.reason !== undefined) return `rules damaged: ${kernel.reason}`
  return `rules differ: with those in the kernel the connection ${endText(kernel.outcomes)}; by the Services it ${endText(outcomes)}`
}

function deadEndOf({ place, caught, reasons, outcomes, kernel }: AnswerInput): string | undefined {
  if (outcomes.some(({ verdict }) => verdict === 'dnat')) return undefined
  const its = endText(outcomes, kernel.kind === 'same' ? ENDS : WISHES)
  const reason = reasons.find(({ kind }) => kind !== 'note')
  const text =
    reason !== undefined
      ? `${reason.text}${reason.kind === 'no-endpoint' ? `; the connection ${its}` : ''}`
      : caught !== undefined
        ? `not served: the connection to ${caught.port.displayName} ${its}`
        : `no Service has ${place}: the connection ${its}`
  return [text, ...absenceOf(kernel)].join('; ')
}

function absenceOf(kernel: KernelOutcome): readonly string[] {
  return kernel.kind === 'absent' ? [kernel.reason] : []
}

const ENDS = {
  dnat: 'goes to',
  reject: 'is rejected',
  drop: 'is dropped',
  accept: 'passes unchanged',
} as const

/** Words for verdicts that the kernel does not confirm. */
const WISHES: Readonly<Record<Outcome['verdict'], string>> = {
  dnat: 'would go to',
  reject: 'would be rejected',
  drop: 'would be dropped',
  accept: 'would pass unchanged',
}

/** Destinations that the answer names; more are counted. */
const NAMED_MAX = 3

/** `goes to 10.1.0.1:80 or 10.1.0.2:80`. */
function endText(outcomes: readonly Outcome[], words: typeof WISHES = ENDS): string {
  const destinations = [...new Set(outcomes.flatMap(({ destination }) => destination ?? []))]
  const named = destinations.length <= NAMED_MAX ? destinations.join(' or ') : `one of ${destinations.length}`
  const verdicts = [...new Set(outcomes.map(({ verdict }) => verdict))]
  return verdicts
    .map(verdict => (verdict === 'dnat' ? `${words.dnat} ${named}` : words[verdict]))
    .join(' or ')
}

function servedText({ caught, list, outcomes, kernel, endpoints }: AnswerInput): string {
  const isAlone = kernel.others === undefined
  const word = kernel.kind !== 'same' ? 'would be served' : isAlone ? 'served' : "kprobe's rules serve it"
  const sticky = caught?.port.affinityTimeoutS ?? 0
  const out = list === undefined ? '' : outText(endpoints, list)
  return [
    silentText(silentOf(endpoints, outcomes), outcomes) ?? `${word}: ${sharesText(outcomes)}`,
    ...(sticky === 0 ? [] : [`a client stays with its endpoint for ${sticky} s`]),
    ...(out === '' ? [] : [out]),
    ...absenceOf(kernel),
  ].join('; ')
}

/** Gives the endpoints that the connection may go to and that answer less than half of their connections, the worst first. */
export function silentOf(
  endpoints: readonly ExplainedEndpoint[],
  outcomes: readonly Outcome[],
): readonly UnansweredRow[] {
  return endpoints
    .filter(({ address }) => outcomes.some(({ destination }) => destination === address))
    .flatMap(({ unanswered }) => (unanswered !== undefined && isSilent(unanswered) ? [unanswered] : []))
    .toSorted(worstFirst)
}

/** `the rules send it to 2 endpoints; 41 of 41 connections to 10.1.0.1:80 had no reply in the last minute`. */
function silentText(
  [worst, ...others]: readonly UnansweredRow[],
  outcomes: readonly Outcome[],
): string | undefined {
  if (worst === undefined) return undefined
  const more = others.length === 0 ? '' : `, and so had most to ${count(others.length, 'more endpoint')}`
  const endpoints = count(shareByDestination(outcomes).size, 'endpoint')
  return `the rules send it to ${endpoints}; ${unansweredText(worst)}${more}`
}

const FRACTIONS = ['', '', 'a half', 'a third', 'a quarter', 'a fifth'] as const
/** Percentages have two digits after the point. */
const SHARE_ERROR = 0.02

/** `any of 3 endpoints, a third each`. */
function sharesText(outcomes: readonly Outcome[]): string {
  const shares = shareByDestination(outcomes)
  const [first = '', ...others] = shares.keys()
  if (others.length === 0) return `always ${first}`
  const all = [...shares.values()]
  const [least, most] = [Math.min(...all), Math.max(...all)]
  const isEven = most - least <= SHARE_ERROR
  const each = FRACTIONS[shares.size] ?? `${rounded(most)} %`
  return `any of ${shares.size} endpoints, ${isEven ? `${each} each` : `${rounded(least)} % to ${rounded(most)} %`}`
}

/** Adds up the shares of each destination, in percent: ways that differ only in the source address end there alike. */
export function shareByDestination(outcomes: readonly Outcome[]): ReadonlyMap<string, number> {
  const shares = new Map<string, number>()
  for (const { destination, percent } of outcomes)
    if (destination !== undefined) shares.set(destination, (shares.get(destination) ?? 0) + percent)
  return shares
}

export function rounded(percent: number): number {
  return Math.round(percent * 100) / 100
}
