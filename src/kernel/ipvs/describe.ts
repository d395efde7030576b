import { unreachable } from '../../base/assert.ts'
import type { Words } from '../../netlink/conversation.ts'
import { destinationKey, serverKey } from './key.ts'
import type { IpvsOperation } from './operation.ts'

const VERBS: Readonly<Record<IpvsOperation['verb'], string>> = {
  'set-server': 'set',
  'delete-server': 'delete',
  'set-destination': 'set',
  'delete-destination': 'delete',
}

/** The words for an operation in errors: `set` and `virtual server TCP 10.96.0.1:443 (ns1/web)`. */
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
