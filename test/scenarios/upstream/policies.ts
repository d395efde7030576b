import { endpoint } from '../../support/objects.ts'
import {
  AT_NODE_PORT,
  ELSEWHERE,
  HEALTH_PORT,
  HERE,
  IP,
  KEEPS_CLIENT,
  NODE,
  NODE_PORT,
  nodePortOf,
  OTHER_NODE,
  pods,
  THERE,
  terminating,
  type UpstreamStep,
  type UpstreamTest,
  web,
} from './parts.ts'

/** Traffic policies, pods that terminate or are not ready, and health check node ports. */
export const POLICIES: readonly UpstreamTest[] = [
  {
    title:
      'should be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is true',
    steps: [
      {
        title: 'the pod is ready',
        objects: [web({ ...AT_NODE_PORT, publishNotReadyAddresses: true }), pods([HERE])],
        packets: nodePortOf(`${HERE}:8080`),
      },
      {
        title: 'the pod terminates and is not ready, as its node sees it',
        objects: [pods([endpoint(HERE, { ready: true, serving: false, terminating: true })])],
        packets: nodePortOf(`${HERE}:8080`),
      },
      {
        title: 'as another node sees it',
        objects: [
          pods([endpoint('10.180.1.1', { ...ELSEWHERE, ready: true, serving: false, terminating: true })]),
        ],
        packets: nodePortOf('10.180.1.1:8080'),
      },
    ],
  },
  {
    title: 'should create endpoints for unready pods',
    steps: [
      {
        title: 'a pod that never gets ready',
        objects: [web({ publishNotReadyAddresses: true }), pods([endpoint(HERE, { serving: false })])],
        packets: `pod TCP ${IP}:80 -> ${HERE}:8080 kept`,
      },
      {
        title: 'it terminates, and the Service wants ready pods alone',
        objects: [web(), pods([endpoint(HERE, terminating({ serving: false }))])],
        packets: `pod TCP ${IP}:80 -> nowhere`,
      },
      {
        title: 'the Service takes it again',
        objects: [
          web({ publishNotReadyAddresses: true }),
          pods([endpoint(HERE, terminating({ ready: true, serving: false }))]),
        ],
        packets: `pod TCP ${IP}:80 -> ${HERE}:8080 kept`,
      },
    ],
  },
  {
    title: 'should fail health check node port if there are only terminating endpoints',
    steps: [
      {
        title: 'a ready pod',
        objects: [web(localBalancer()), pods([HERE])],
        health: [HEALTH_PORT, 200],
      },
      {
        title: 'it terminates and serves on',
        objects: [pods([endpoint(HERE, terminating({ serving: true }))])],
        health: [HEALTH_PORT, 503],
        packets: `pod TCP ${NODE}:${NODE_PORT} -> ${HERE}:8080 kept`,
      },
    ],
  },
  {
    title:
      'should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local',
    steps: [
      {
        title: 'as the node of the pod sees it',
        objects: [
          web({ ...AT_NODE_PORT, externalTrafficPolicy: 'Local' }),
          pods([endpoint(HERE, terminating({ serving: true }))]),
        ],
        packets: `
          pod TCP ${NODE}:${NODE_PORT} -> ${HERE}:8080 kept
          outside ${OTHER_NODE} TCP ${NODE}:${NODE_PORT} -> ${HERE}:8080 kept`,
      },
      {
        title: 'as another node sees it',
        objects: [pods([endpoint('10.180.1.1', terminating({ ...ELSEWHERE, serving: true }))])],
        packets: `outside ${OTHER_NODE} TCP ${NODE}:${NODE_PORT} -> nowhere`,
      },
    ],
  },
  {
    title:
      'should fallback to local terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Local',
    steps: internalLocal(terminating({ serving: true }), `pod TCP ${IP}:80 -> ${HERE}:8080 kept`, [
      `pod TCP ${IP}:80 -> nowhere`,
    ]),
  },
  {
    title:
      'should fallback to terminating endpoints when there are no ready endpoints with externallTrafficPolicy=Cluster',
    steps: onBothNodes(AT_NODE_PORT, endpoints => `pod TCP ${NODE}:${NODE_PORT} -> ${endpoints} masqueraded`),
  },
  {
    title:
      'should fallback to terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Cluster',
    steps: onBothNodes({}, endpoints => `pod TCP ${IP}:80 -> ${endpoints} kept`),
  },
  {
    title: 'should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes',
    notInUserspace: KEEPS_CLIENT,
    steps: [
      { title: 'policy Local', objects: [web(localBalancer())] },
      ...localSteps('first'),
      {
        title: 'policy Cluster, on a node without endpoints',
        objects: [web({ type: 'LoadBalancer', ports: AT_NODE_PORT.ports })],
        health: [HEALTH_PORT, 'refused'],
        packets: `
          node TCP ${NODE}:${NODE_PORT} -> 10.180.1.1:8080 masqueraded
          outside ${OTHER_NODE} TCP ${NODE}:${NODE_PORT} -> 10.180.1.1:8080 masqueraded`,
      },
      {
        title: 'policy Cluster, on the node of the endpoint',
        objects: [pods([HERE])],
        health: [HEALTH_PORT, 'refused'],
        packets: `outside ${OTHER_NODE} TCP ${NODE}:${NODE_PORT} -> ${HERE}:8080 masqueraded`,
      },
      { title: 'policy Local again', objects: [web(localBalancer())] },
      ...localSteps('again'),
    ],
  },
  {
    title:
      'should not be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is false',
    steps: [
      {
        title: 'the pod is ready',
        objects: [web(AT_NODE_PORT), pods([HERE])],
        packets: nodePortOf(`${HERE}:8080`),
      },
      ...['10.180.0.1', '10.180.1.1'].map((address, index) => ({
        title: `it terminates and is not ready, as ${index === 0 ? 'its' : 'another'} node sees it`,
        objects: [pods([endpoint(address, terminating({ serving: false, ...(index === 1 && ELSEWHERE) }))])],
        packets: `
          pod TCP ${IP}:80 -> nowhere
          pod TCP ${NODE}:${NODE_PORT} -> nowhere
          outside ${OTHER_NODE} TCP ${NODE}:${NODE_PORT} -> nowhere`,
      })),
    ],
  },
  {
    title: 'should respect internalTrafficPolicy=Local Pod (hostNetwork: true) to Pod',
    steps: internalLocal({}, `node TCP ${IP}:80 -> ${HERE}:8080 masqueraded`, [
      `node TCP ${IP}:80 -> nowhere`,
    ]),
  },
  {
    title: 'should respect internalTrafficPolicy=Local Pod and Node, to Pod (hostNetwork: true)',
    notInUserspace: 'the laboratory has servers in pods alone',
    steps: [
      {
        title: 'as the node of the endpoint sees it',
        objects: [
          web({ internalTrafficPolicy: 'Local' }),
          pods([NODE], { ports: [{ name: 'http', port: 10180, protocol: 'TCP' }] }),
        ],
        hostPort: 10180,
        packets: `node TCP ${IP}:80 -> ${NODE}:10180 kept`,
      },
      {
        title: 'as another node sees it',
        objects: [
          pods([endpoint(OTHER_NODE, ELSEWHERE)], {
            ports: [{ name: 'http', port: 10180, protocol: 'TCP' }],
          }),
        ],
        packets: `
          pod TCP ${IP}:80 -> nowhere
          node TCP ${IP}:80 -> nowhere`,
      },
    ],
  },
  {
    title: 'should respect internalTrafficPolicy=Local Pod to Pod',
    steps: internalLocal({}, `pod TCP ${IP}:80 -> ${HERE}:8080 kept`, [`pod TCP ${IP}:80 -> nowhere`]),
  },
  {
    title: 'should support externalTrafficPolicy=Local for type=NodePort',
    notInUserspace: KEEPS_CLIENT,
    steps: [
      {
        title: 'from another node',
        objects: [web({ ...AT_NODE_PORT, externalTrafficPolicy: 'Local' }), pods([HERE])],
        packets: `outside ${OTHER_NODE} TCP ${NODE}:${NODE_PORT} -> ${HERE}:8080 kept`,
      },
    ],
  },
]

function localBalancer(): object {
  return {
    type: 'LoadBalancer',
    ports: AT_NODE_PORT.ports,
    externalTrafficPolicy: 'Local',
    healthCheckNodePort: HEALTH_PORT,
  }
}

function localSteps(when: string): readonly UpstreamStep[] {
  return [
    {
      title: `on the node of the endpoint: ${when}`,
      objects: [pods([HERE])],
      health: [HEALTH_PORT, 200],
      packets: `outside ${OTHER_NODE} TCP ${NODE}:${NODE_PORT} -> ${HERE}:8080 kept`,
    },
    {
      title: `on a node without endpoints: ${when}`,
      objects: [pods([THERE])],
      health: [HEALTH_PORT, 503],
      packets: `
        node TCP ${NODE}:${NODE_PORT} -> 10.180.1.1:8080 masqueraded
        outside ${OTHER_NODE} TCP ${NODE}:${NODE_PORT} -> nowhere`,
    },
  ]
}

/** A Service with policy Local on the node of its endpoint, and on another one. */
function internalLocal(words: object, here: string, there: readonly string[]): readonly UpstreamStep[] {
  return [
    {
      title: 'as the node of the pod sees it',
      objects: [web({ internalTrafficPolicy: 'Local' }), pods([endpoint(HERE, words)])],
      packets: here,
    },
    {
      title: 'as another node sees it',
      objects: [pods([endpoint('10.180.1.1', { ...words, ...ELSEWHERE })])],
      packets: there.join('\n'),
    },
  ]
}

/** A Service whose only pod terminates and serves on. */
function onBothNodes(spec: object, packets: (endpoints: string) => string): readonly UpstreamStep[] {
  return [
    {
      title: 'as the node of the pod sees it',
      objects: [web(spec), pods([endpoint(HERE, terminating({ serving: true }))])],
      packets: packets(`${HERE}:8080`),
    },
    {
      title: 'as another node sees it',
      objects: [pods([endpoint('10.180.1.1', terminating({ ...ELSEWHERE, serving: true }))])],
      packets: packets('10.180.1.1:8080'),
    },
  ]
}
