import { unreachable } from '../../base/errors.ts'
import type { Refused } from '../../netlink/batch.ts'
import type { Words } from '../../netlink/conversation.ts'
import { errnoName, NetlinkError } from '../../netlink/errors.ts'
import { destinationKey, type IpvsOperation, serverKey } from './state.ts'

export interface IpvsFailure {
  readonly operation: IpvsOperation
  /** Name of the errno: ENOENT of set-server means that the kernel lacks the scheduler. */
  readonly code: string
  readonly error: Error
}

export function failureOf({ tag: operation, ...refused }: Refused<IpvsOperation>): IpvsFailure {
  const code = errnoName(refused.errno)
  const extendedAck = refused.extendedAck ?? explanationOf(operation, code)
  const error = new NetlinkError({ ...describeOperation(operation), ...refused, extendedAck })
  return { operation, code, error }
}

/** Explains an errno where its own words do not suffice; the kernel sends no explanation. */
function explanationOf({ verb, server }: IpvsOperation, code: string): string | undefined {
  if (code === 'ESRCH') return 'there is no such virtual server'
  if (code === 'EEXIST') return 'the last read of the kernel did not find it'
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

/** Tests whether an object that was to be deleted is gone, or its virtual server is (ip_vs_genl_set_cmd of ip_vs_ctl.c). */
export function isGone({ operation: { verb }, code }: IpvsFailure): boolean {
  if (verb === 'delete-server') return code === 'ESRCH'
  return verb === 'delete-destination' && (code === 'ESRCH' || code === 'ENOENT')
}

/**
 * Tests whether the kernel holds other servers than the operations were made for: a new one exists, or one to change is
 * missing. ESRCH means that the virtual server is missing, ENOENT of a real server that this one is. The real servers of
 * a virtual server that the kernel rejects lack it, too.
 */
export function meetsOtherServers(failures: readonly IpvsFailure[]): boolean {
  const rejected = new Set(
    failures.flatMap(({ operation }) =>
      operation.verb === 'set-server' ? [serverKey(operation.server)] : [],
    ),
  )
  return failures.some(({ operation: { verb, server }, code }) => {
    if (code === 'EEXIST') return true
    if (verb === 'set-server') return code === 'ESRCH'
    return (
      verb === 'set-destination' &&
      (code === 'ENOENT' || (code === 'ESRCH' && !rejected.has(serverKey(server))))
    )
  })
}
