import {
  BOTH,
  bothProtocols,
  HERE,
  IP,
  KEEPS_CLIENT,
  only,
  pods,
  THERE,
  TWO_PODS,
  type UpstreamTest,
  web,
} from './parts.ts'

/** Pods and their ports, and who may reach them. */
export const ENDPOINTS: readonly UpstreamTest[] = [
  {
    title: 'should allow creating a basic SCTP service with pod and endpoints [LinuxOnly] [Serial]',
    notInUserspace: 'SCTP is not relayed',
    steps: [
      {
        title: 'no endpoint',
        objects: [web({ ports: [{ name: 'sctp', port: 5060, protocol: 'SCTP' }] }), pods([])],
        packets: `pod SCTP ${IP}:5060 -> reject`,
      },
      {
        title: 'a pod',
        objects: [pods([HERE], { ports: [{ name: 'sctp', port: 5060, protocol: 'SCTP' }] })],
        packets: `pod SCTP ${IP}:5060 -> ${HERE}:5060 kept`,
      },
      { title: 'the pod is deleted', objects: [pods([])], packets: `pod SCTP ${IP}:5060 -> reject` },
    ],
  },
  {
    title: 'should allow pods to hairpin back to themselves through services',
    steps: [
      {
        title: 'a pod is client and server',
        objects: [web({ ports: [only('http', { port: 8080 })] }), pods([HERE])],
        packets: `pod ${HERE} TCP ${IP}:8080 -> ${HERE}:8080 hairpin`,
      },
    ],
  },
  {
    title: 'should be rejected for evicted pods (no endpoints exist)',
    steps: [
      {
        title: 'the only pod is evicted',
        objects: [web({ publishNotReadyAddresses: true }), pods([])],
        packets: `pod TCP ${IP}:80 -> reject`,
      },
    ],
  },
  {
    title: 'should be rejected when no endpoints exist',
    steps: [{ title: 'no pod', objects: [web(), pods([])], packets: `pod TCP ${IP}:80 -> reject` }],
  },
  {
    title: 'should be updated after adding or deleting ports',
    steps: [
      {
        title: 'one port',
        objects: [web({ ports: [only('portname1')] }), pods([]), portSlice('portname1', HERE, 100)],
        packets: `pod TCP ${IP}:80 -> ${HERE}:100 kept`,
      },
      {
        title: 'a second port, with a pod of its own',
        objects: [
          web({ ports: [only('portname1'), only('portname2', { port: 81 })] }),
          portSlice('portname2', '10.180.0.2', 101),
        ],
        packets: `
          pod TCP ${IP}:80 -> ${HERE}:100 kept
          pod TCP ${IP}:81 -> 10.180.0.2:101 kept`,
      },
      {
        title: 'one port again',
        objects: [web({ ports: [only('portname1')] })],
        remove: ['EndpointSlice ns/web-portname2'],
        packets: `
          pod TCP ${IP}:80 -> ${HERE}:100 kept
          pod TCP ${IP}:81 -> nowhere`,
      },
    ],
  },
  sidecar('should connect to the named ports exposed by restartable init containers'),
  sidecar('should connect to the ports exposed by restartable init containers'),
  {
    title: 'should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]',
    notInUserspace: KEEPS_CLIENT,
    steps: [
      {
        title: 'as the node of the pod sees it',
        objects: [web(), pods([HERE])],
        packets: `pod 10.180.0.9 TCP ${IP}:80 -> ${HERE}:8080 kept`,
      },
      {
        title: 'as another node sees it',
        objects: [pods([THERE])],
        packets: `pod 10.180.0.9 TCP ${IP}:80 -> 10.180.1.1:8080 kept`,
      },
    ],
  },
  {
    title: 'should serve a basic endpoint from pods [Conformance]',
    steps: [
      { title: 'no pod', objects: [web(), pods([])], packets: `pod TCP ${IP}:80 -> nowhere` },
      { title: 'pod1', objects: [pods([HERE])], packets: `pod TCP ${IP}:80 -> ${HERE}:8080 kept` },
      { title: 'pod1 and pod2', objects: [pods(TWO_PODS)], packets: `pod TCP ${IP}:80 -> ${BOTH} kept` },
      { title: 'pod2', objects: [pods([THERE])], packets: `pod TCP ${IP}:80 -> 10.180.1.1:8080 kept` },
      { title: 'no pod again', objects: [pods([])], packets: `pod TCP ${IP}:80 -> nowhere` },
    ],
  },
  {
    title:
      'should serve endpoints on same port and different protocol for internal traffic on Type LoadBalancer',
    steps: [
      {
        title: 'a pod',
        objects: [
          web({ type: 'LoadBalancer', ports: [only('tcp-port'), only('udp-port', { protocol: 'UDP' })] }),
          pods([HERE], { ports: bothProtocols(100) }),
        ],
        packets: protocolsAt(`${HERE}:100 kept`, `${HERE}:100 kept`),
      },
    ],
  },
  {
    title: 'should serve endpoints on same port and different protocols [Conformance]',
    steps: [
      {
        title: 'TCP and UDP',
        objects: [
          web({ ports: [only('tcp-port'), only('udp-port', { protocol: 'UDP' })] }),
          pods([HERE], { ports: bothProtocols(80) }),
        ],
        packets: protocolsAt(`${HERE}:80 kept`, `${HERE}:80 kept`),
      },
      {
        title: 'TCP alone',
        objects: [web({ ports: [only('tcp-port')] })],
        packets: protocolsAt(`${HERE}:80 kept`, 'nowhere'),
      },
      {
        title: 'UDP alone',
        objects: [web({ ports: [only('udp-port', { protocol: 'UDP' })] })],
        packets: protocolsAt('nowhere', `${HERE}:80 kept`),
      },
    ],
  },
  {
    title: 'should serve multiport endpoints from pods [Conformance]',
    steps: [
      {
        title: 'a pod for each port',
        objects: [
          web({ ports: [only('portname1'), only('portname2', { port: 81 })] }),
          portSlice('portname1', HERE, 100),
          portSlice('portname2', '10.180.0.2', 101),
        ],
        packets: `
          pod TCP ${IP}:80 -> ${HERE}:100 kept
          pod TCP ${IP}:81 -> 10.180.0.2:101 kept`,
      },
      {
        title: 'pod1 is deleted',
        remove: ['EndpointSlice ns/web-portname1'],
        packets: `
          pod TCP ${IP}:80 -> nowhere
          pod TCP ${IP}:81 -> 10.180.0.2:101 kept`,
      },
    ],
  },
  {
    title: 'should support named targetPorts that resolve to different ports on different endpoints',
    steps: [
      ['two pods with one port', ['10.180.0.1', 8080], ['10.180.0.2', 8080]],
      ['one of them is another one with another port', ['10.180.0.2', 8080], ['10.180.0.3', 8000]],
      ['both are', ['10.180.0.3', 8000], ['10.180.0.4', 8000]],
    ].map(([title, ...endpoints]) => ({
      title: String(title),
      objects: [
        web({ ports: [only('http', { port: 8001 })] }),
        ...endpoints.map(([address, port], index) =>
          pods([String(address)], { name: `web-${index}`, ports: [{ name: 'http', port, protocol: 'TCP' }] }),
        ),
      ],
      packets: `pod TCP ${IP}:8001 -> ${endpoints.map(([address, port]) => `${address}:${port}`).join(' ')} kept`,
    })),
  },
]

function sidecar(title: string): UpstreamTest {
  const objects = [web({ ports: [only('http', { port: 8080 })] }), pods([HERE])]
  return { title, steps: [{ title: 'a pod', objects, packets: `pod TCP ${IP}:8080 -> ${HERE}:8080 kept` }] }
}

function protocolsAt(tcp: string, udp: string): string {
  return `
    pod TCP ${IP}:80 -> ${tcp}
    pod UDP ${IP}:80 -> ${udp}`
}

/** The controller's slice for pods that have one of the named ports alone. */
function portSlice(name: string, address: string, port: number): object {
  return pods([address], { name: `web-${name}`, ports: [{ name, port, protocol: 'TCP' }] })
}
