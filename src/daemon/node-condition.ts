import { type BackoffOptions, type Clock, Pacer, restMs } from '../base/clock.ts'
import { errorText } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { rfc3339 } from '../base/text.ts'
import type { WrittenNodeCondition } from '../base/written.ts'
import type { Config } from '../config/config.ts'
import { isJson, type Json } from '../model/fields.ts'
import type { Difference } from '../reconcile/dataplane.ts'
import type { ReconcilerStatus } from '../reconcile/reconciler.ts'
import type { HealthTracker } from '../telemetry/health.ts'
import type { Metrics } from '../telemetry/metrics.ts'
import type { ApiAnswer, ApiQuestion } from './cluster.ts'

interface NodeConditionOptions {
  readonly clock: Clock
  readonly wallMs: () => number
  readonly random: () => number
  readonly log: Log
  readonly type: string
  readonly nodeName: string
  readonly health: () => Pick<HealthTracker, 'healthy'>
  /** Reads the kernel back: what would have to change in it. Undefined before the first sync. */
  readonly difference: () => Promise<Difference | undefined>
  readonly quarantined: () => ReconcilerStatus['quarantined']
  readonly send: (question: ApiQuestion) => Promise<ApiAnswer>
  readonly metrics: Metrics
}

/** Makes the NodeCondition of a daemon; undefined without --node-condition, and where it has no cluster to write to. */
export function nodeConditionOf(
  { nodeCondition, nodeName, source, once, backend }: Config,
  options: Omit<NodeConditionOptions, 'type' | 'nodeName'>,
): NodeCondition | undefined {
  if (nodeCondition === '' || source.kind !== 'kube' || once || backend !== 'netlink') return undefined
  return new NodeCondition({ ...options, type: nodeCondition, nodeName })
}

/**
 * Time that a start has until the condition becomes False. A restart takes less, and changes nothing: the rules of the
 * process before serve meanwhile.
 */
const START_MS = 10_000
/** The reads of the kernel while it is not verified. */
const VERIFY_PACE = { share: 0.05, minMs: 1_000 } as const
const RETRY: Omit<BackoffOptions, 'random'> = { minMs: 1_000, maxMs: 300_000 }

/**
 * Sets a condition of this machine's Node: True once the first sync was read back from the kernel, and False while
 * /healthz would answer 503 for want of programming. The end of the process changes nothing, because the rules stay
 * (docs/decisions/0025).
 */
export class NodeCondition {
  readonly #options: NodeConditionOptions
  readonly #pacer: Pacer
  readonly #startedMs: number
  #isSynced = false
  #verified = false
  #verifyAtMs = 0
  #unread = ''
  /** Changes that the last read of the kernel asked for. */
  #before: ReadonlySet<string> | undefined
  /** The condition in the Node, as this process last wrote or read it. */
  #written: ConditionState | undefined
  #rereadAtMs = 0
  #uid: string | undefined
  #failure = ''

  constructor(options: NodeConditionOptions) {
    this.#options = options
    this.#startedMs = options.clock.nowMs()
    this.#pacer = new Pacer({ clock: options.clock, run: () => this.#run() })
    this.#pacer.wake(START_MS)
  }

  /** The kernel holds objects that a source has confirmed. */
  synced(): void {
    if (this.#isSynced) return
    this.#isSynced = true
    this.#pacer.wake()
  }

  /** Takes the UID of the Node; a new one means a new object, which has no condition yet. */
  take(uid: string | undefined): void {
    if (uid === undefined || uid === this.#uid) return
    const isNew = this.#uid !== undefined
    this.#uid = uid
    if (!isNew) return
    this.#written = undefined
    if (this.#verified) this.#pacer.wake()
  }

  stop(): Promise<void> {
    return this.#pacer.stop()
  }

  async #run(): Promise<number | undefined> {
    const { clock, random, health } = this.#options
    if (this.#isSynced && !this.#verified) await this.#verify()
    const nowMs = clock.nowMs()
    const leftMs = START_MS - (nowMs - this.#startedMs)
    const verifyMs = this.#isSynced && !this.#verified ? this.#verifyAtMs - nowMs : Number.POSITIVE_INFINITY
    if (!this.#verified && leftMs > 0) return Math.min(leftMs, verifyMs)
    const served = health().healthy ? PROGRAMMED : STALLED
    const state = this.#verified ? served : NOT_PROGRAMMED
    // The first sync shows that the server answers: True does not wait for long then.
    const maxMs = this.#isSynced ? RETRY.maxMs : START_MS
    if (!(await this.#say(state))) return this.#pacer.failed({ ...RETRY, maxMs, random })
    this.#pacer.succeeded()
    // Every 5 s: the health checks of this process cost nothing.
    return Math.min(5_000, verifyMs)
  }

  async #verify(): Promise<void> {
    const { clock } = this.#options
    const beganMs = clock.nowMs()
    if (beganMs < this.#verifyAtMs) return
    this.#verified = await this.#isProgrammed()
    const endMs = clock.nowMs()
    this.#verifyAtMs = endMs + restMs(endMs - beganMs, VERIFY_PACE)
  }

  /** Tests whether the kernel holds what is wanted. A change that only one of two reads needs is a commit in between. */
  async #isProgrammed(): Promise<boolean> {
    const { difference, quarantined, log } = this.#options
    try {
      const found = await difference()
      this.#unread = ''
      if (found === undefined) return false
      const rejected = new Set(quarantined().map(({ service }) => service))
      const lines = found.lines.filter(({ service }) => service === undefined || !rejected.has(service))
      const now = new Set(lines.map(({ verb, object }) => `${verb} ${object}`))
      const before = this.#before
      this.#before = now
      if (now.size === 0) return true
      return before !== undefined && ![...now].some(line => before.has(line))
    } catch (err) {
      const text = errorText(err)
      if (text !== this.#unread)
        log.warn({ err }, 'cannot read the kernel back; the node condition waits; retrying')
      this.#unread = text
      return false
    }
  }

  /** Writes the condition if the Node has another one. False after a failure. */
  async #say(state: ConditionState): Promise<boolean> {
    const { clock, wallMs, send, type, nodeName, metrics, log } = this.#options
    const isSame = this.#written !== undefined && JSON.stringify(this.#written) === JSON.stringify(state)
    if (isSame && clock.nowMs() < this.#rereadAtMs) return true
    const uid = this.#uid
    const path = `/api/v1/nodes/${encodeURIComponent(nodeName)}`
    const read = await send({ method: 'GET', path })
    if (read.kind === 'failed') return this.#failed(read.text)
    const patch = conditionPatch({ type, state, wallMs: wallMs() }, read.value)
    if (patch !== undefined) {
      const contentType = 'application/strategic-merge-patch+json'
      const answer = await send({ method: 'PATCH', path: `${path}/status`, body: patch, contentType })
      if (answer.kind === 'failed') return this.#failed(answer.text)
      metrics.kprobe_node_condition_patches_total.inc({ outcome: 'accepted' })
      log.info({ node: nodeName, type, ...state }, 'node condition set')
    }
    // A Node that was made anew meanwhile may not have it.
    if (uid === undefined || uid === this.#uid) this.#written = state
    this.#failure = ''
    metrics.kprobe_node_condition_status.set(Number(state.status === 'True'))
    // Another program may remove the condition: the Node is read again after 10 minutes.
    this.#rereadAtMs = clock.nowMs() + 600_000
    return true
  }

  /** Logs a failure once, until a write succeeds or it is another one. */
  #failed(text: string): false {
    const { log, type, nodeName, metrics } = this.#options
    metrics.kprobe_node_condition_patches_total.inc({ outcome: 'failed' })
    if (text !== this.#failure)
      log.warn(
        { node: nodeName, type },
        `cannot set the node condition: ${text}; retrying; Services are served`,
      )
    this.#failure = text
    return false
  }
}

interface ConditionState {
  readonly status: 'True' | 'False'
  /** One word in CamelCase, for programs. */
  readonly reason: string
  /** One line, for people. */
  readonly message: string
}

/* The messages name no time: each other one would be a write. */

const PROGRAMMED: ConditionState = {
  status: 'True',
  reason: 'Programmed',
  message: 'the kernel serves the Services of the cluster',
}
const NOT_PROGRAMMED: ConditionState = {
  status: 'False',
  reason: 'NotProgrammed',
  message: 'the Services of the cluster are not verified in the kernel yet; the log of kprobe has the reason',
}
const STALLED: ConditionState = {
  status: 'False',
  reason: 'ProgrammingStalled',
  message: 'changes have waited too long to be programmed; /healthz and the log of kprobe have the reason',
}

function conditionIn(node: unknown, type: string): Json | undefined {
  const status = isJson(node) ? node.status : undefined
  const conditions = isJson(status) && Array.isArray(status.conditions) ? status.conditions : []
  return conditions.find((each): each is Json => isJson(each) && each.type === type)
}

/** Gives the strategic merge patch of the status that sets this condition alone; undefined where the Node has it already. */
export function conditionPatch(
  { type, state, wallMs }: { readonly type: string; readonly state: ConditionState; readonly wallMs: number },
  node: unknown,
): { readonly status: { readonly conditions: readonly WrittenNodeCondition[] } } | undefined {
  const found = conditionIn(node, type)
  const { status, reason, message } = state
  if (found?.status === status && found.reason === reason && found.message === message) return undefined
  const now = rfc3339(Math.floor(wallMs / 1_000) * 1_000)
  // The time of the last change of the status, not of the reason: the API server does not keep it by itself.
  const since = found?.status === status ? found.lastTransitionTime : undefined
  const lastTransitionTime = typeof since === 'string' ? since : now
  return { status: { conditions: [{ type, ...state, lastHeartbeatTime: now, lastTransitionTime }] } }
}
