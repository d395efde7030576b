import { unreachable } from '../../base/errors.ts'
import type { Refused } from '../../netlink/batch.ts'
import type { Words } from '../../netlink/conversation.ts'
import { errnoName, NetlinkError } from '../../netlink/errors.ts'
import type { Step } from './messages.ts'
import {
  destinationKey,
  IPVS_CMD_NEW_DEST,
  IPVS_CMD_NEW_SERVICE,
  IPVS_CMD_SET_DEST,
  IPVS_CMD_SET_SERVICE,
  type IpvsOperation,
  type ServerKey,
  serverKey,
} from './state.ts'

export function refusalOf({ tag: step, ...refused }: Refused<Step>): Refusal {
  const code = errnoName(refused.errno)
  const extendedAck = refused.extendedAck ?? explanationOf(step, code)
  const error = new NetlinkError({ ...describeOperation(step.operation), ...refused, extendedAck })
  return { step, code, error }
}

/** Explains an errno where its own words do not suffice; the kernel sends no explanation. */
function explanationOf({ operation }: Step, code: string): string | undefined {
  const { verb, server } = operation
  if (code === 'ESRCH') return 'there is no such virtual server'
  if (code === 'EPERM') return 'IPVS needs CAP_NET_ADMIN in the first user namespace'
  return verb === 'set-server' && code === 'ENOENT'
    ? `the kernel has no scheduler ${server.scheduler} (module ip_vs_${server.scheduler})`
    : undefined
}

const VERBS: Readonly<Record<IpvsOperation['verb'], string>> = {
  'set-server': 'set',
  'delete-server': 'delete',
  'set-destination': 'set',
  'delete-destination': 'delete',
}

/** Returns the words for an operation in errors: `set` and `virtual server TCP 10.96.0.1:443 (ns1/web)`. */
export function describeOperation(operation: IpvsOperation): Words {
  const { group } = operation
  const object = describeObject(operation)
  return { operation: VERBS[operation.verb], object: group === '' ? object : `${object} (${group})` }
}

/** `virtual server TCP 10.96.0.1:443`, `real server 10.0.0.1:80 of TCP 10.96.0.1:443`. */
export function describeObject(operation: IpvsOperation): string {
  switch (operation.verb) {
    case 'set-server':
    case 'delete-server':
      return `virtual server ${serverKey(operation.server)}`
    case 'set-destination':
    case 'delete-destination':
      return `real server ${destinationKey(operation.destination)} of ${serverKey(operation.server)}`
    default:
      return unreachable(operation)
  }
}

export interface Refusal {
  readonly step: Step
  readonly code: string
  readonly error: Error
}

interface FollowUp {
  /** The steps to send again, in this order. */
  readonly again: readonly Step[]
  readonly failures: readonly Refusal[]
}

/**
 * Makes operations idempotent: an object that exists is changed, one that is missing is created, and one that is gone
 * needs no deletion (ip_vs_genl_set_cmd and its callees in net/netfilter/ipvs/ip_vs_ctl.c). EEXIST applies to both
 * kinds of server. ESRCH means that the virtual server is missing. ENOENT means, for a real server, that it is
 * missing, and for a virtual server, that its scheduler is.
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

/** Returns the failures of a second round: only deleting an object that is gone is no failure. */
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
      // Its virtual server was missing before, and is created again before this step is sent again.
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
