import { serviceOf } from '../support/objects.ts'

/** A Service with a node port, the addresses that it has, and who calls it. */
export const VIP = '172.30.0.80'
export const NODE = '192.168.0.2'
export const NODE_PORT = 30080
export const CLIENT = '203.0.113.5'
export const POD = '10.180.0.1'

export const nodePorted = serviceOf('web', VIP, {
  type: 'NodePort',
  ports: [{ name: 'http', port: 80, protocol: 'TCP', nodePort: NODE_PORT }],
})
