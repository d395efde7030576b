import { rfc3339 } from '../base/text.ts'
import { isJson, type Json } from '../model/fields.ts'

/** What the condition says, without the times. */
export interface ConditionState {
  readonly status: 'True' | 'False'
  /** One word in CamelCase, for programs. */
  readonly reason: string
  /** One line, for people. */
  readonly message: string
}

/** The progress of the proxy that the condition follows. */
interface ConditionFacts {
  /** The first sync was read back from the kernel. */
  readonly verified: boolean
  /** /healthz would answer 200, the Node aside. */
  readonly healthy: boolean
}

/** The messages name no time: each other one would be a write. */
export function conditionState({ verified, healthy }: ConditionFacts): ConditionState {
  if (!verified) return NOT_PROGRAMMED
  return healthy ? PROGRAMMED : STALLED
}

const PROGRAMMED: ConditionState = {
  status: 'True',
  reason: 'Programmed',
  message: 'the kernel serves the Services of the cluster',
}
const NOT_PROGRAMMED: ConditionState = {
  status: 'False',
  reason: 'NotProgrammed',
  message: 'the Services of the cluster are not verified in the kernel yet; the log of kprobe says why',
}
const STALLED: ConditionState = {
  status: 'False',
  reason: 'ProgrammingStalled',
  message: 'changes have waited too long to be programmed; /healthz and the log of kprobe say why',
}

/** The condition of this type in a Node; undefined without one. */
export function conditionIn(node: unknown, type: string): Json | undefined {
  const status = isJson(node) ? node.status : undefined
  const conditions = isJson(status) && Array.isArray(status.conditions) ? status.conditions : []
  return conditions.find((each): each is Json => isJson(each) && each.type === type)
}

/** Gives the strategic merge patch of the status that sets this condition alone; undefined where the Node says so already. */
export function conditionPatch(
  { type, state, wallMs }: { readonly type: string; readonly state: ConditionState; readonly wallMs: number },
  node: unknown,
): unknown {
  const found = conditionIn(node, type)
  const { status, reason, message } = state
  if (found?.status === status && found.reason === reason && found.message === message) return undefined
  const now = rfc3339(Math.floor(wallMs / 1_000) * 1_000)
  // The time of the last change of the status, not of the reason: the API server does not keep it by itself.
  const kept = found?.status === status && typeof found.lastTransitionTime === 'string'
  const lastTransitionTime = kept ? found.lastTransitionTime : now
  return { status: { conditions: [{ type, ...state, lastHeartbeatTime: now, lastTransitionTime }] } }
}
