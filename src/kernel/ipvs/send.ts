import { unreachable } from '../../base/assert.ts'
import { type Refused, type Sender, sendEach } from '../../netlink/batch.ts'
import type { Words } from '../../netlink/conversation.ts'
import { errnoName } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { IPVS_CMD_NEW_SERVICE, IPVS_CMD_SET_SERVICE } from './constants.ts'
import type { Refusal } from './follow-up.ts'
import { destinationKey, serverKey } from './key.ts'
import { type Step, stepBytesMax, writeStep } from './messages.ts'
import type { IpvsOperation } from './operation.ts'

export interface SentSteps {
  readonly refusals: readonly Refusal[]
  /** Set when answers were lost; later steps were not sent. */
  readonly loss: Error | undefined
  readonly bytes: number
  readonly messages: number
}

/** This many changes of real servers take a fraction of a millisecond. */
const SYNC_MESSAGES_MAX = 64

/** Sends steps, at most `messagesMax` per datagram; `family` is the number of the generic netlink family IPVS. */
export async function sendSteps(
  sender: Sender,
  steps: readonly Step[],
  { family, messagesMax }: { readonly family: number; readonly messagesMax: number },
): Promise<SentSteps> {
  const { refused, ...sent } = await sendEach(sender, steps, {
    object: 'virtual servers and real servers',
    write: (batch, step) => writeStep(batch, step, family),
    bytesMax: stepBytesMax,
    messagesMax,
    isLong: some => some.length > SYNC_MESSAGES_MAX || some.some(isSlow),
  })
  return { ...sent, refusals: refused.map(refusalOf) }
}

/** The kernel may load a module, and it replaces a scheduler only when no packet uses the old one (synchronize_rcu). */
function isSlow({ command }: Step): boolean {
  return command === IPVS_CMD_SET_SERVICE || command === IPVS_CMD_NEW_SERVICE
}

function refusalOf({ tag: step, ...refused }: Refused<Step>): Refusal {
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
