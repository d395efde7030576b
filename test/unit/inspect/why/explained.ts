import { finish } from '../../../../src/base/clock.ts'
import { FlagReader, readArguments } from '../../../../src/config/flag.ts'
import type { Unanswered } from '../../../../src/inspect/live/unanswered-rows.ts'
import {
  QUESTION_FLAGS,
  readQuestion,
  resolveQuestion,
} from '../../../../src/inspect/why/explain-question.ts'
import { type Explanation, explained, followed } from '../../../../src/inspect/why/explanation.ts'
import type { KernelOutcome, Outcome } from '../../../../src/inspect/why/outcome.ts'
import type { Refusal } from '../../../../src/model/fields.ts'
import { resolve } from '../../../../src/model/resolve.ts'
import { resolveOptions } from '../../../../src/modes/resolve-options.ts'
import { ip } from '../../../support/addresses.ts'
import { configFrom } from '../../../support/parse-flags.ts'
import { endpoint, type Fields, node, service, slice, snapshotOf, UNREADY } from '../../model/objects.ts'

const CONFIG = configFrom(['--hostname-override=here', '--cluster-cidr=10.1.0.0/16'])
const NOW_MS = Date.UTC(2026, 6, 1, 8)
export const SAME = { kind: 'same' } as const
const HERE = { nodeName: 'here' }
export const THERE = { nodeName: 'there' }

export interface Asked {
  readonly from?: string
  readonly to?: string
  readonly kernel?: KernelOutcome
  readonly hasDaemon?: boolean
  /** Wall-clock milliseconds since which the daemon refuses everything. */
  readonly refusedMs?: number
  readonly notKnown?: readonly string[]
  readonly localIps?: readonly string[]
  readonly quarantined?: ReadonlyMap<string, string>
  readonly unanswered?: Unanswered
  /** EndpointSlices and Services that are refused as a whole. */
  readonly refusedObjects?: readonly Refusal[]
}

export function explain(objects: readonly Fields[], asked: Asked): Explanation {
  const { from = 'outside', to = '10.96.0.1:80', kernel = SAME, hasDaemon = true, refusedMs } = asked
  const known = snapshotOf([node({ zone: 'a' }), ...objects])
  const snapshot =
    asked.localIps === undefined ? known : { ...known, localIps: asked.localIps.map(each => ip(each)) }
  const argv = [`--from=${from}`, `--to=${to}`]
  const question = readQuestion(new FlagReader(readArguments(argv, QUESTION_FLAGS)))
  if (question === undefined) throw new Error(`not a question: ${argv}`)
  const since = refusedMs === undefined ? undefined : { wallMs: refusedMs, orEarlier: false }
  const loaded = {
    ...finish(resolve(resolveOptions(CONFIG), undefined, snapshot)),
    refusedObjects: asked.refusedObjects ?? [],
    refusedSince: () => since,
    notKnown: asked.notKnown ?? [],
    quarantined: asked.quarantined ?? new Map(),
  }
  return explained(followed(resolveQuestion(question, snapshot), CONFIG, loaded), kernel, {
    hasDaemon,
    wallMs: NOW_MS,
    unanswered: asked.unanswered,
  })
}

export const web = (endpoints: readonly Fields[], spec: Fields = {}, rest: Fields = {}) => [
  service('web', spec, rest),
  slice('web-1', 'web', endpoints),
]
export const BALANCED = { status: { loadBalancer: { ingress: [{ ip: '198.51.100.9' }] } } }
export const ready = (last: number, more: Fields = HERE) => endpoint(`10.1.0.${last}`, more)
export const nth = (index: number, more: Fields) =>
  endpoint(`10.1.${index >> 8}.${index & 255}`, { ...HERE, ...more })
export const unready = (last: number, more: Fields = HERE) => ready(last, { ...more, conditions: UNREADY })
export const STICKY = { sessionAffinity: 'ClientIP' }
const REJECTED: Outcome = { verdict: 'reject', sourceReplaced: false, percent: 100 }
export const different = (more: object): KernelOutcome => ({
  kind: 'different',
  part: 'rules',
  outcomes: [REJECTED],
  rules: [],
  ...more,
})
export const ABSENT = { kind: 'absent', reason: 'rules of nftables mode are not in the kernel' } as const
