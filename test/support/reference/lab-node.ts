import { NODE_ADDRESSES } from '../lab/address.ts'
import type { KubeObject } from './api.ts'

/** The node of the laboratory, as in the scenarios. */
export const LAB_NODE: KubeObject = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: 'test-node', labels: { 'topology.kubernetes.io/zone': 'zone-a' } },
  spec: { podCIDRs: ['10.180.0.0/24', 'fd00:10::/96'], podCIDR: '10.180.0.0/24' },
  status: { addresses: NODE_ADDRESSES.map(address => ({ type: 'InternalIP', address })) },
}

export function namespaceObject(name: string): KubeObject {
  return { apiVersion: 'v1', kind: 'Namespace', metadata: { name } }
}
