import { serviceOf, sliceOf } from '../../support/objects.ts'
import {
  AT_NODE_PORT,
  BOTH,
  bothProtocols,
  down,
  external,
  HERE,
  IP,
  IP_2,
  IP_3,
  NODE,
  NODE_PORT,
  nodePortOf,
  only,
  PODS,
  PROXY_NAME,
  pods,
  REACHED,
  SLICE,
  TWO_PODS,
  type UpstreamTest,
  up,
  web,
} from './parts.ts'

/** Types, labels, addresses and node ports of Services that come, change and go. */
export const KINDS: readonly UpstreamTest[] = [
  {
    title: 'should be able to change the type from ClusterIP to ExternalName [Conformance]',
    steps: [
      {
        title: 'ClusterIP, and the Service that the name leads to',
        objects: [web(), pods([]), serviceOf('externalsvc', IP_2), sliceOf('externalsvc', TWO_PODS)],
        packets: `pod TCP ${IP}:80 -> reject`,
      },
      {
        title: 'ExternalName',
        objects: [external('web')],
        packets: `
          pod TCP ${IP}:80 -> nowhere
          pod TCP ${IP_2}:80 -> ${BOTH} kept`,
      },
    ],
  },
  {
    title: 'should be able to change the type from ExternalName to ClusterIP [Conformance]',
    steps: [
      { title: 'ExternalName', objects: [external('web')], packets: `pod TCP ${IP}:80 -> nowhere` },
      {
        title: 'ClusterIP',
        objects: [web(), pods(TWO_PODS)],
        packets: `pod TCP ${IP}:80 -> ${BOTH} kept`,
      },
    ],
  },
  {
    title: 'should be able to change the type from ExternalName to NodePort [Conformance]',
    steps: [
      { title: 'ExternalName', objects: [external('web')], packets: `pod TCP ${IP}:80 -> nowhere` },
      { title: 'NodePort', objects: [web(AT_NODE_PORT), pods(TWO_PODS)], packets: nodePortOf(BOTH) },
    ],
  },
  {
    title: 'should be able to change the type from NodePort to ExternalName [Conformance]',
    steps: [
      {
        title: 'NodePort, and the Service that the name leads to',
        objects: [
          web(AT_NODE_PORT),
          pods([]),
          serviceOf('externalsvc', IP_2),
          sliceOf('externalsvc', TWO_PODS),
        ],
        packets: `pod TCP ${NODE}:${NODE_PORT} -> reject`,
      },
      {
        title: 'ExternalName',
        objects: [external('web')],
        packets: `
          pod TCP ${IP}:80 -> nowhere
          outside TCP ${NODE}:${NODE_PORT} -> nowhere
          pod TCP ${IP_2}:80 -> ${BOTH} kept`,
      },
    ],
  },
  {
    title: 'should be able to create a functioning NodePort service [Conformance]',
    steps: [{ title: 'two pods', objects: [web(AT_NODE_PORT), pods(TWO_PODS)], packets: nodePortOf(BOTH) }],
  },
  {
    title: 'should be able to up and down services',
    steps: [
      {
        title: 'two Services',
        objects: [web(), pods(PODS), serviceOf('second', IP_2), sliceOf('second', TWO_PODS)],
        packets: `${up(IP, REACHED)}${up(IP_2, BOTH)}`,
      },
      {
        title: 'one is deleted',
        remove: ['Service ns/web', SLICE],
        packets: `${down(IP)}${up(IP_2, BOTH)}`,
      },
      {
        title: 'a third one comes',
        objects: [serviceOf('third', IP_3), sliceOf('third', PODS)],
        packets: `${up(IP_2, BOTH)}${up(IP_3, REACHED)}`,
      },
    ],
  },
  {
    title:
      'should be able to update service type to NodePort listening on same port number but different protocols',
    steps: [
      { title: 'ClusterIP', objects: [web({ ports: [only('tcp-port')] }), pods([])], packets: down(IP) },
      {
        title: 'NodePort',
        objects: [
          web({ type: 'NodePort', ports: [only('tcp-port', { nodePort: NODE_PORT })] }),
          pods(TWO_PODS, { ports: [{ name: 'tcp-port', port: 8080, protocol: 'TCP' }] }),
        ],
        packets: nodePortOf(BOTH),
      },
      {
        title: 'TCP and UDP',
        objects: [
          web({
            type: 'NodePort',
            ports: [
              only('tcp-port', { nodePort: NODE_PORT }),
              only('udp-port', { protocol: 'UDP', nodePort: NODE_PORT }),
            ],
          }),
          pods(TWO_PODS, { ports: bothProtocols(8080) }),
        ],
        packets: `${nodePortOf(BOTH)}${nodePortOf(BOTH, 'UDP')}`,
      },
    ],
  },
  {
    title:
      'should be possible to connect to a service via ExternalIP when the external IP is not assigned to a node',
    steps: [
      {
        title: 'two pods',
        objects: [web({ externalIPs: ['203.0.113.250'] }), pods(TWO_PODS)],
        packets: `
          pod TCP ${IP}:80 -> ${BOTH} kept
          pod TCP 203.0.113.250:80 -> ${BOTH} masqueraded`,
      },
    ],
  },
  {
    title: 'should implement service.kubernetes.io/headless',
    steps: [
      { title: 'a slice without the label', objects: [web(), pods(TWO_PODS)], packets: up(IP, BOTH) },
      {
        title: 'the slice gets the label',
        objects: [
          pods(TWO_PODS, {
            metadata: {
              namespace: 'ns',
              name: 'web-1',
              labels: { 'kubernetes.io/service-name': 'web', 'service.kubernetes.io/headless': '' },
            },
          }),
        ],
        packets: down(IP),
      },
    ],
  },
  {
    title: 'should implement service.kubernetes.io/service-proxy-name',
    steps: [
      {
        title: 'one Service with a name, one without',
        objects: [web({}, PROXY_NAME), pods(PODS), serviceOf('toggled', IP_2), sliceOf('toggled', PODS)],
        packets: `${up(IP_2, REACHED)}${down(IP)}`,
      },
      {
        title: 'the other one gets the name',
        objects: [serviceOf('toggled', IP_2, {}, { metadata: { ...PROXY_NAME.metadata, name: 'toggled' } })],
        packets: down(IP_2),
      },
      {
        title: 'it has none again',
        objects: [serviceOf('toggled', IP_2)],
        packets: `${up(IP_2, REACHED)}${down(IP)}`,
      },
    ],
  },
  {
    title: 'should release NodePorts on delete',
    steps: [
      { title: 'a NodePort', objects: [web(AT_NODE_PORT), pods(TWO_PODS)], packets: nodePortOf(BOTH) },
      {
        title: 'the Service is deleted',
        remove: ['Service ns/web', SLICE],
        packets: `outside TCP ${NODE}:${NODE_PORT} -> pass`,
      },
      {
        title: 'another one has the same port',
        objects: [serviceOf('again', IP_2, AT_NODE_PORT), sliceOf('again', TWO_PODS)],
        packets: `pod TCP ${NODE}:${NODE_PORT} -> ${BOTH} masqueraded`,
      },
    ],
  },
  {
    title: 'should work after the service has been recreated',
    steps: [
      { title: 'a Service', objects: [web(), pods([HERE])], packets: up(IP, `${HERE}:8080`) },
      { title: 'it is deleted', remove: ['Service ns/web', SLICE] },
      { title: 'it is there again', objects: [web(), pods([HERE])], packets: up(IP, `${HERE}:8080`) },
    ],
  },
]
