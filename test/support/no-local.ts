import type { Flow } from './lab/lab.ts'
import { balanced, endpoint, serviceOf, sliceOf } from './objects.ts'

const PORTS = [{ name: 'dns', port: 53, protocol: 'UDP' }]
const FAR = [endpoint('10.1.0.9', { nodeName: 'elsewhere' })]

/** A Service of each policy Local; their endpoint is on another node. */
export const NO_LOCAL: readonly object[] = [
  serviceOf('shop/far', '10.96.0.2', { ports: PORTS, internalTrafficPolicy: 'Local' }),
  sliceOf('shop/far', FAR, { ports: PORTS }),
  serviceOf(
    'shop/outer',
    '10.96.0.3',
    ...balanced({ ports: PORTS, externalTrafficPolicy: 'Local' }, '192.168.7.8'),
  ),
  sliceOf('shop/outer', FAR, { ports: PORTS }),
]

/** 75 packets to them, which must be dropped: from a pod, and from outside. */
export const TO_NO_LOCAL: readonly Flow[] = [
  { from: 'pod', source: '10.180.0.77', protocol: 'UDP', destination: '10.96.0.2', port: 53, tries: 70 },
  {
    from: 'outside',
    source: '198.51.100.9',
    protocol: 'UDP',
    destination: '192.168.7.8',
    port: 53,
    tries: 5,
  },
]
