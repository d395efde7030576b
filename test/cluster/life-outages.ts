import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { eventually } from '../support/patience.ts'
import {
  killProgram,
  lastNode,
  loseQuorum,
  powerOff,
  powerOn,
  restartApiServer,
  startProgram,
} from './cluster.ts'
import { authoritiesFile, renewCertificate, trustAuthorities, trustsAuthority } from './control-plane.ts'
import { NAMESPACE } from './life-objects.ts'
import {
  byLastNode,
  changeServices,
  followed,
  isPod,
  type Life,
  type LifeEvent,
  proxyOf,
  whole,
} from './life-steps.ts'
import { PROCESS_IN_A_POD } from './pods.ts'
import { resumeProxy } from './proxies.ts'
import type { NodePlan } from './site.ts'

/*
 * What nobody plans: a node that dies, a store without its quorum; and what everybody has to plan: another authority.
 */

const OFF_MS = 10_000
/** The grace period of nodes is 50 s, of which the controller manager hears every 5 s. */
const NOTICED_MAX_MS = 180_000
/** kubelet renews the files of a pod every 60 to 90 s. */
const FILES_MAX_MS = 180_000
const KUBELET_MAX_MS = 60_000
const KUBELET = 'http://127.0.0.1:10248/healthz'

export const OUTAGES: readonly LifeEvent[] = [
  {
    name: 'crash',
    what: 'the last node dies, until its endpoints are not ready',
    suits: () => true,
    run: async life => {
      powerOff(life, lastNode(life.site))
      await eventually(() => readyEndpoints(life, lastNode(life.site)) === 0, {
        limitMs: NOTICED_MAX_MS,
        stepMs: 500,
        describe: () => 'endpoints of a node that is off are still ready',
      })
    },
    // Every proxy sends a part of all requests there, until the lease of the node has expired.
    mayFail: () => Number.POSITIVE_INFINITY,
    next: {
      name: 'crash-back',
      what: 'it is off for some time, in which Services change, and comes back',
      run: async life => {
        const node = lastNode(life.site)
        await sleep(OFF_MS)
        changeServices(life)
        await powerOn(life, node, life.kubectl, life.signal)
        await resumeProxy(life, node)
        await whole(life)
      },
      mayFail: byLastNode,
    },
  },
  {
    name: 'quorum',
    what: 'all members of the store but one end for a minute, then Services change',
    suits: (_, { site }) => site.parameters.members > 2,
    run: async life => {
      await loseQuorum(life, life.kubectl)
      await followed(life)
    },
  },
  {
    name: 'ca',
    what: "the cluster's authority is replaced, with the certificates of the API server and of proxies",
    suits: () => true,
    run: async life => {
      await replaceAuthority(life)
      await followed(life)
    },
  },
]

/** Of the Services under traffic. */
function readyEndpoints({ kubectl }: Life, node: NodePlan): number {
  const slices: {
    items: { endpoints: { nodeName: string; conditions: { ready: boolean } }[] | null }[]
  } = JSON.parse(kubectl.must(['get', 'endpointslices', '--namespace', NAMESPACE, '--output', 'json']))
  return slices.items
    .flatMap(({ endpoints }) => endpoints ?? [])
    .filter(({ nodeName, conditions }) => nodeName === node.name && conditions.ready).length
}

/** As the handbook of Kubernetes says: all trust both, then all show certificates of the next one, then all trust that one alone. */
async function replaceAuthority(life: Life): Promise<void> {
  const { site, kubectl } = life
  const next = trustsAuthority(site) === 'first' ? 'next' : 'first'
  trustAuthorities(site, ['first', 'next'])
  await readAuthorities(life)
  for (const of of ['kube-apiserver', 'proxy'] as const) renewCertificate(site, of, `${next}-${of}`)
  await restartApiServer(life, kubectl)
  trustAuthorities(site, [next])
  await readAuthorities(life)
  await restartApiServer(life, kubectl)
}

/** Restarts what reads its authorities once: all but the proxies, which have to follow their files. */
async function readAuthorities(life: Life): Promise<void> {
  const { site, tools, signal } = life
  for (const name of ['kube-controller-manager', 'kube-scheduler']) {
    killProgram(life, name)
    startProgram(life, name)
  }
  for (const node of site.nodes) {
    signal.throwIfAborted()
    const place = tools.namespaces.node(node.name)
    tools.namespaces.must({ file: 'pkill', args: ['-KILL', '-x', 'kubelet'] }, { place })
    await eventually(
      () => tools.namespaces.run({ file: 'curl', args: ['-sf', KUBELET] }, { place }).status === 0,
      {
        limitMs: KUBELET_MAX_MS,
        describe: () => `kubelet on ${node.name} does not come back`,
      },
    )
    await whole(life)
  }
  if (!isPod(proxyOf(life))) return
  const files = `for pid in $(pgrep -f '${PROCESS_IN_A_POD[proxyOf(life).proxy]}'); do cat /proc/$pid/root/var/run/secrets/kubernetes.io/serviceaccount/ca.crt; done`
  const wanted = readFileSync(authoritiesFile(site), 'utf8')
  for (const node of site.nodes)
    await eventually(
      () =>
        tools.namespaces
          .must({ file: 'sh', args: ['-c', files] }, { place: tools.namespaces.node(node.name) })
          .trim() === wanted.trim(),
      { limitMs: FILES_MAX_MS, stepMs: 1_000, describe: () => `the pod on ${node.name} has another ca.crt` },
    )
}
