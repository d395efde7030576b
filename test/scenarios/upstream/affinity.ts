import {
  AT_NODE_PORT,
  CLIENT_IP,
  IP,
  NODE,
  NODE_PORT,
  PODS,
  pods,
  REACHED,
  type UpstreamTest,
  web,
} from './parts.ts'

const FORGET_S = 10
/**
 * Of three endpoints, so that all clients draw the same one once more in one run of 3²⁰ = 3.5 · 10⁹; no multiple of three, so
 * that round robin goes on at another one.
 */
const CLIENTS = Array.from({ length: 20 }, (_, index) => `10.180.9.${index + 1}`)

/** Clients that keep their endpoint. */
export const AFFINITY: readonly UpstreamTest[] = [
  switching('should be able to switch session affinity for NodePort service [LinuxOnly] [Conformance]', {
    spec: AT_NODE_PORT,
    to: `${NODE}:${NODE_PORT}`,
    source: 'masqueraded',
  }),
  switching(
    'should be able to switch session affinity for service with type clusterIP [LinuxOnly] [Conformance]',
    { spec: {}, to: `${IP}:80`, source: 'kept' },
  ),
  forgetting('should have session affinity timeout work for NodePort service [LinuxOnly]', {
    spec: AT_NODE_PORT,
    to: `${NODE}:${NODE_PORT}`,
    source: 'masqueraded',
  }),
  forgetting('should have session affinity timeout work for service with type clusterIP [LinuxOnly]', {
    spec: {},
    to: `${IP}:80`,
    source: 'kept',
  }),
  sticky('should have session affinity work for NodePort service [LinuxOnly] [Conformance]', {
    spec: AT_NODE_PORT,
    to: `${NODE}:${NODE_PORT}`,
    source: 'masqueraded',
  }),
  sticky('should have session affinity work for service with type clusterIP [LinuxOnly] [Conformance]', {
    spec: {},
    to: `${IP}:80`,
    source: 'kept',
  }),
]

interface AffinityTest {
  readonly spec: object
  readonly to: string
  readonly source: 'kept' | 'masqueraded'
}

function sticky(title: string, { spec, to, source }: AffinityTest): UpstreamTest {
  const objects = [web({ ...spec, ...CLIENT_IP }), pods(PODS)]
  return {
    title,
    steps: [{ title: 'ClientIP', objects, packets: `pod TCP ${to} -> ${REACHED} ${source} sticky=one` }],
  }
}

function switching(title: string, { spec, to, source }: AffinityTest): UpstreamTest {
  const row = `pod TCP ${to} -> ${REACHED} ${source}`
  return {
    title,
    steps: [
      {
        title: 'ClientIP',
        objects: [web({ ...spec, ...CLIENT_IP }), pods(PODS)],
        packets: `${row} sticky=first`,
      },
      { title: 'None', objects: [web({ ...spec, sessionAffinity: 'None' })], packets: row },
      { title: 'ClientIP again', objects: [web({ ...spec, ...CLIENT_IP })], packets: `${row} sticky=again` },
    ],
  }
}

/** Each client keeps its endpoint, and not all of them have the same one after the timeout. */
function forgetting(title: string, { spec, to, source }: AffinityTest): UpstreamTest {
  const config = { sessionAffinityConfig: { clientIP: { timeoutSeconds: FORGET_S } } }
  const rows = (when: string) =>
    CLIENTS.map(client => `pod ${client} TCP ${to} -> ${REACHED} ${source} sticky=${when}-${client}`).join(
      '\n',
    )
  return {
    title,
    forgets: true,
    steps: [
      {
        title: 'before the timeout',
        objects: [web({ ...spec, ...CLIENT_IP, ...config }), pods(PODS)],
        packets: rows('before'),
      },
      { title: 'after the timeout', afterS: FORGET_S + 1, packets: rows('after') },
    ],
  }
}

/** Clients that have had two endpoints, by the labels of the packets. */
export function forgotten(labels: ReadonlyMap<string, string>): readonly string[] {
  return CLIENTS.filter(client => labels.get(`before-${client}`) !== labels.get(`after-${client}`))
}
