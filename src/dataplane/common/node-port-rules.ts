import { type Octets, u32host } from '../../base/octets.ts'
import { NFTA_FIB_F_DADDR, RTN_LOCAL } from '../../kernel/nft/constants.ts'
import type { NodePortAddresses } from '../../model/frontend.ts'
import { compare, destinationAddress, type Expressions, maskBytes, matches, WORK } from './expressions.ts'
import type { FamilyLayout } from './family.ts'
import { prefixMask } from './octet-keys.ts'

export interface NodePortPlace {
  readonly layout: FamilyLayout
  readonly nodePorts: NodePortAddresses
}

/** NodePorts are never served on loopback addresses: the answer could not leave the node. */
export function toNodePortAddress({ layout, nodePorts }: NodePortPlace): Expressions {
  if (nodePorts.kind === 'only') return [destinationAddress(layout, WORK), matches('nodeport-ips')]
  const local: Expressions = [
    { kind: 'fib', flags: NFTA_FIB_F_DADDR, dreg: WORK },
    compare('eq', WORK, u32host(RTN_LOCAL)),
    destinationAddress(layout, WORK),
  ]
  if (layout.model === 'IPv6') return [...local, compare('neq', WORK, LOOPBACK_6)]
  return [...local, maskBytes(WORK, prefixMask(8, 4)), compare('neq', WORK, LOOPBACK_4)]
}

const LOOPBACK_4: Octets = '\x7f\0\0\0'
const LOOPBACK_6: Octets = `${'\0'.repeat(15)}\x01`
