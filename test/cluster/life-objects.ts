import type { Site } from './site.ts'

export const NAMESPACE = 'life'
/** Of agnhost's netexec. */
export const PORT = { http: 8080, udp: 8081 } as const
/** Of each deployment. */
export const REPLICAS = 4
/** A server goes on answering for so long after it is told to end: longer than any proxy needs to hear of it. */
const DRAIN_SECONDS = 8

/** Two deployments, each behind a Service: one that stays, and one that is rolled. */
export function serverObjects(site: Site, image: string): readonly object[] {
  return [
    { apiVersion: 'v1', kind: 'Namespace', metadata: { name: NAMESPACE } },
    ...['stable', 'rolled'].flatMap(name => [
      deployment(name, REPLICAS, serverPod(name, image)),
      {
        apiVersion: 'policy/v1',
        kind: 'PodDisruptionBudget',
        metadata: { name, namespace: NAMESPACE },
        spec: { minAvailable: REPLICAS - 1, selector: { matchLabels: { app: name } } },
      },
      {
        apiVersion: 'v1',
        kind: 'Service',
        metadata: { name, namespace: NAMESPACE },
        spec: {
          type: 'NodePort',
          selector: { app: name },
          ipFamilyPolicy: site.subnets.length > 1 ? 'RequireDualStack' : 'SingleStack',
          ports: [
            { name: 'http', protocol: 'TCP', port: PORT.http },
            { name: 'udp', protocol: 'UDP', port: PORT.udp },
          ],
        },
      },
    ]),
  ]
}

/** A pod on the first node, in whose network namespace a client runs. */
export function clientObjects(site: Site, image: string): readonly object[] {
  const containers = [{ name: 'client', image, args: ['pause'] }]
  return [deployment('client', 1, { nodeName: site.nodes[0]?.name, containers })]
}

/** A Service without endpoints: programming it is a change. */
export function passingService(name: string): object {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, namespace: NAMESPACE },
    spec: { selector: { app: 'stable' }, ports: [{ port: PORT.http }] },
  }
}

/** A pod that the scheduler gives this node; it connects to the Service once, and succeeds or fails by that. */
export function firstConnection(
  name: string,
  { node, image, host }: { readonly node: string; readonly image: string; readonly host: string },
): object {
  const target = host.includes(':') ? `[${host}]:${PORT.http}` : `${host}:${PORT.http}`
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, namespace: NAMESPACE, labels: { app: 'newcomer' } },
    spec: {
      nodeSelector: { 'kubernetes.io/hostname': node },
      restartPolicy: 'Never',
      containers: [{ name: 'client', image, args: ['connect', '--timeout=3s', target] }],
    },
  }
}

export function serverPod(name: string, image: string): object {
  return {
    terminationGracePeriodSeconds: DRAIN_SECONDS + 10,
    topologySpreadConstraints: [
      {
        maxSkew: 1,
        topologyKey: 'kubernetes.io/hostname',
        whenUnsatisfiable: 'ScheduleAnyway',
        labelSelector: { matchLabels: { app: name } },
      },
    ],
    containers: [
      {
        name: 'server',
        image,
        // Without a request, a busy machine lets it wait for seconds.
        resources: { requests: { cpu: '200m' } },
        args: [
          'netexec',
          `--http-port=${PORT.http}`,
          `--udp-port=${PORT.udp}`,
          `--delay-shutdown=${DRAIN_SECONDS}`,
        ],
        readinessProbe: { httpGet: { path: '/hostname', port: PORT.http }, periodSeconds: 1 },
      },
    ],
  }
}

/** No pod goes before the one that replaces it is ready. */
function deployment(name: string, replicas: number, pod: object): object {
  const labels = { app: name }
  return {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name, namespace: NAMESPACE },
    spec: {
      replicas,
      selector: { matchLabels: labels },
      strategy: { type: 'RollingUpdate', rollingUpdate: { maxSurge: '100%', maxUnavailable: 0 } },
      template: { metadata: { labels }, spec: pod },
    },
  }
}
