import { unreachable } from '../../base/assert.ts'
import {
  IPVS_CMD_NEW_DEST,
  IPVS_CMD_NEW_SERVICE,
  IPVS_CMD_SET_DEST,
  IPVS_CMD_SET_SERVICE,
} from './constants.ts'
import { serverKey } from './key.ts'
import type { Step } from './messages.ts'
import type { ServerKey } from './state.ts'

/** What the kernel said to one step. */
export interface Refusal {
  readonly step: Step
  /** Name of the errno. */
  readonly code: string
  readonly error: Error
}

interface FollowUp {
  /** To be sent, in this order. */
  readonly again: readonly Step[]
  readonly failures: readonly Refusal[]
}

/**
 * What makes operations idempotent: what is there already is changed, what is missing is made, what is gone needs no
 * deleting (ip_vs_genl_set_cmd and what it calls in net/netfilter/ipvs/ip_vs_ctl.c). EEXIST is said of both kinds;
 * ESRCH says that the virtual server is missing, ENOENT of a real server that itself is, and of a virtual server that
 * its scheduler is.
 */
export function followUp(refusals: readonly Refusal[]): FollowUp {
  const remade = new Set<ServerKey>()
  const again: Step[] = []
  const failures: Refusal[] = []
  for (const refusal of refusals) {
    const next = nextStep(refusal, remade)
    if (next === 'failed') failures.push(refusal)
    else if (next !== 'done') again.push(next)
  }
  return { again, failures }
}

/** Of what was sent in a second round, only what is gone is no failure. */
export function lastFailures(refusals: readonly Refusal[]): readonly Refusal[] {
  return refusals.filter(refusal => !isGone(refusal))
}

function nextStep(refusal: Refusal, remade: Set<ServerKey>): Step | 'done' | 'failed' {
  const { step, code } = refusal
  const { operation, command } = step
  switch (operation.verb) {
    case 'set-server':
      if (command === IPVS_CMD_NEW_SERVICE && code === 'EEXIST')
        return { operation, command: IPVS_CMD_SET_SERVICE }
      if (command !== IPVS_CMD_SET_SERVICE || code !== 'ESRCH') return 'failed'
      remade.add(serverKey(operation.server))
      return { operation, command: IPVS_CMD_NEW_SERVICE }
    case 'set-destination':
      if (command === IPVS_CMD_NEW_DEST && code === 'EEXIST') return { operation, command: IPVS_CMD_SET_DEST }
      if (command === IPVS_CMD_SET_DEST && code === 'ENOENT') return { operation, command: IPVS_CMD_NEW_DEST }
      // Its server was found missing before, and is made anew before this is sent again.
      return code === 'ESRCH' && remade.has(serverKey(operation.server))
        ? { operation, command: IPVS_CMD_NEW_DEST }
        : 'failed'
    case 'delete-server':
    case 'delete-destination':
      return isGone(refusal) ? 'done' : 'failed'
    default:
      return unreachable(operation)
  }
}

function isGone({ step, code }: Refusal): boolean {
  const { verb } = step.operation
  if (verb === 'delete-server') return code === 'ESRCH'
  return verb === 'delete-destination' && (code === 'ESRCH' || code === 'ENOENT')
}
