import type { Cidr } from '../../base/cidr.ts'
import { u32host } from '../../base/octets.ts'
import { NFTA_FIB_F_DADDR, RTN_LOCAL } from '../../kernel/nft/constants.ts'
import type { NodePortAddresses } from '../../model/frontend.ts'
import { compare, destinationAddress, type Expressions, inPrefix, matches, WORK } from './expressions.ts'
import type { FamilyLayout } from './family.ts'

interface NodePortPlace {
  readonly layout: FamilyLayout
  readonly nodePorts: NodePortAddresses
}

/** NodePorts are never served on loopback addresses: the answer could not leave the node. */
export function toNodePortAddress({ layout, nodePorts }: NodePortPlace): Expressions {
  if (nodePorts.kind === 'only') return [destinationAddress(layout, WORK), matches('nodeport-ips')]
  const local: Expressions = [
    { kind: 'fib', flags: NFTA_FIB_F_DADDR, dreg: WORK },
    compare('eq', WORK, u32host(RTN_LOCAL)),
  ]
  const loopback = layout.model === 'IPv4' ? LOOPBACK_4 : LOOPBACK_6
  return [...local, ...inPrefix(layout, 'destination', { ...loopback, op: 'neq' })]
}

const LOOPBACK_4: Cidr = { ip: '\x7f\0\0\0', bits: 8 }
const LOOPBACK_6: Cidr = { ip: `${'\0'.repeat(15)}\x01`, bits: 128 }
