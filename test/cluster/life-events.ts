import { setTimeout as sleep } from 'node:timers/promises'
import { eventually } from '../support/patience.ts'
import {
  type Cluster,
  joinNode,
  lastNode,
  pauseEtcd,
  rebootNode,
  removeNode,
  restartApiServer,
  withNextNode,
} from './cluster.ts'
import { type Kubectl, renewCertificate } from './control-plane.ts'
import { firstConnection, NAMESPACE, passingService, REPLICAS } from './life-objects.ts'
import { admitNode, changeMode, deletePods, evictPods, settledPods, starvePods, upgradePods } from './pods.ts'
import {
  killProxies,
  type RunningProxy,
  replaceProxies,
  requireMode,
  resumeProxy,
  runningProxy,
} from './proxies.ts'
import type { NodePlan } from './site.ts'
import type { Flow } from './traffic.ts'

/** What an event works with. */
export interface Life extends Cluster {
  readonly kubectl: Kubectl
  readonly rounds: number
  /** A commit: the image that an upgrade comes from. */
  readonly previous: string | undefined
  readonly signal: AbortSignal
}

/** Something that happens in clusters. It ends when the cluster is whole again. */
export interface LifeEvent {
  readonly name: string
  readonly what: string
  readonly suits: (proxy: RunningProxy) => boolean
  readonly run: (life: Life) => Promise<void>
  /** What fails whatever a proxy does: connections to pods that go, and those by way of a node that is off. */
  readonly mayFail?: (flow: Flow, life: Life) => boolean
}

const QUIET_MS = 5_000
const CHANGES = 20
const GONE_MAX_MS = 60_000
/** Pods that start on a node that has joined. */
const NEWCOMERS = 10
const NEWCOMERS_MAX_MS = 120_000

const always = (): boolean => true
const isPod = ({ form }: RunningProxy): boolean => form !== 'process'
const isKprobe = ({ proxy }: RunningProxy): boolean => proxy === 'kprobe'

export const EVENTS: readonly LifeEvent[] = [
  { name: 'quiet', what: 'nothing happens', suits: always, run: () => sleep(QUIET_MS) },
  {
    name: 'roll',
    what: 'a deployment is rolled, with readiness and grace period',
    suits: always,
    run: async ({ kubectl, rounds, signal }) => {
      for (let round = 0; round < rounds; round++) {
        signal.throwIfAborted()
        await rollOnce(kubectl)
      }
    },
  },
  {
    name: 'kill',
    what: 'every proxy is killed while Services change',
    suits: always,
    run: async life => {
      await killProxies(proxyOf(life), life, () => changeServices(life))
    },
  },
  {
    name: 'delete',
    what: 'the pods of the proxy are deleted while Services change',
    suits: isPod,
    run: async life => {
      await deletePods(podsOf(life), () => changeServices(life))
    },
  },
  {
    name: 'evict',
    what: 'the pods of the proxy are evicted',
    suits: isPod,
    run: life => evictPods(podsOf(life)),
  },
  {
    name: 'oom',
    what: 'the proxy is killed for want of memory, again and again',
    suits: isPod,
    run: life => starvePods(podsOf(life)),
  },
  {
    name: 'mode',
    what: 'from nftables to iptables mode and back',
    suits: proxy => isKprobe(proxy) && proxy.form !== 'kubeadm' && proxy.mode === 'nftables',
    run: async life => {
      for (const mode of ['iptables', 'nftables'])
        if (isPod(proxyOf(life))) {
          await changeMode({ ...podsOf(life), mode })
          requireMode(life.site, { ...proxyOf(life), mode }, life.tools)
        } else await replaceProxies(life, { proxy: 'kprobe', mode, form: 'process' })
    },
  },
  {
    name: 'hand-over',
    what: 'to kube-proxy and back, node by node',
    suits: proxy => isKprobe(proxy) && proxy.form === 'process' && proxy.mode === 'nftables',
    run: async life => {
      for (const proxy of ['kube-proxy', 'kprobe'] as const)
        await replaceProxies(life, { proxy, mode: 'nftables', form: 'process' })
    },
  },
  {
    name: 'upgrade',
    what: 'the image of the proxy is replaced, and replaced again',
    suits: isPod,
    run: life => upgradePods(podsOf(life), life.previous),
  },
  {
    name: 'drain',
    what: 'the last node is drained, and takes pods again',
    suits: always,
    run: life => {
      drain(life)
      return whole(life)
    },
    mayFail: ({ kind }) => kind === 'lasting' || kind === 'keep-alive',
  },
  {
    name: 'reboot',
    what: 'the last node is drained, and starts again with nothing in its kernel',
    suits: always,
    run: async life => {
      const node = lastNode(life.site)
      drain(life)
      await rebootNode(life, node, life.kubectl, life.signal)
      await resumeProxy(life, node)
      await whole(life)
    },
    mayFail: ({ kind, host }, life) =>
      kind === 'lasting' || kind === 'keep-alive' || lastNode(life.site).addresses.includes(host),
  },
  {
    name: 'apiserver',
    what: 'the API server is killed, and comes back',
    suits: always,
    run: life => restartApiServer(life, life.kubectl),
  },
  {
    name: 'certificate',
    what: 'the API server comes back with another key and certificate',
    suits: always,
    run: life => {
      renewCertificate(life.site)
      return restartApiServer(life, life.kubectl)
    },
  },
  {
    name: 'etcd',
    what: 'the store of the API server stands still for 20 s, then Services change',
    suits: always,
    run: async life => {
      await pauseEtcd(life, life.kubectl)
      changeServices(life)
    },
  },
  {
    name: 'dns',
    what: "the pods of the cluster's DNS are replaced",
    suits: always,
    run: async ({ kubectl }) => {
      const dns = ['deployment/coredns', '--namespace', 'kube-system']
      kubectl.must(['rollout', 'restart', ...dns])
      kubectl.must(['rollout', 'status', ...dns, '--timeout=180s'])
    },
  },
  {
    name: 'join',
    what: `a node joins, ${NEWCOMERS} pods on it connect once each, and it goes`,
    suits: always,
    run: async life => {
      const { kubectl, signal, site, tools } = life
      const grown = withNextNode(site)
      const node = await joinNode(life, { grown, kubectl, signal })
      if (isPod(proxyOf(life))) admitNode(life, node)
      await resumeProxy({ site: grown, tools }, node)
      await connectOnce(life, node)
      removeNode(life, node, kubectl)
      if (isPod(proxyOf(life))) await settledPods(podsOf(life))
    },
  },
]

/** Throws when a pod of many on a node has had no answer from a Service. */
async function connectOnce({ kubectl }: Life, node: NodePlan): Promise<void> {
  const service = ['get', 'service', 'stable', '--namespace', NAMESPACE, '--output']
  const addresses = kubectl.must([...service, 'jsonpath={.spec.clusterIPs[*]}']).split(' ')
  const image = kubectl.must([
    ...['get', 'deployment', 'stable', '--namespace', NAMESPACE],
    ...['--output', 'jsonpath={.spec.template.spec.containers[0].image}'],
  ])
  const pods = Array.from({ length: NEWCOMERS }, (_, at) =>
    firstConnection(`newcomer-${at}`, {
      node: node.name,
      image,
      host: addresses[at % addresses.length] ?? '',
    }),
  )
  kubectl.apply(pods)
  const selected = ['--namespace', NAMESPACE, '--selector', 'app=newcomer']
  const phases = () =>
    kubectl.must(['get', 'pods', ...selected, '--output', 'jsonpath={.items[*].status.phase}']).split(' ')
  const hasEnded = (phase: string) => phase === 'Succeeded' || phase === 'Failed'
  await eventually(() => phases().filter(hasEnded).length === NEWCOMERS, {
    limitMs: NEWCOMERS_MAX_MS,
    stepMs: 500,
    describe: () => `pods have not ended: ${kubectl.must(['describe', 'pods', ...selected]).slice(-2_000)}`,
  })
  const failed = phases().filter(phase => phase === 'Failed').length
  if (failed > 0)
    throw new Error(
      `${failed} of ${NEWCOMERS} pods on ${node.name} had no first connection: ${kubectl.must(['logs', ...selected])}`,
    )
  kubectl.must(['delete', 'pods', ...selected])
}

/** Every pod but those of DaemonSets leaves the last node, once it has drained its connections. */
function drain(life: Life): void {
  const options = ['--ignore-daemonsets', '--delete-emptydir-data', '--timeout=180s']
  life.kubectl.must(['drain', lastNode(life.site).name, ...options])
}

/** The last node takes pods again, and every server is ready. */
async function whole(life: Life): Promise<void> {
  const { kubectl } = life
  kubectl.must(['uncordon', lastNode(life.site).name])
  for (const name of ['stable', 'rolled'])
    kubectl.must(['rollout', 'status', `deployment/${name}`, '--namespace', NAMESPACE, '--timeout=180s'])
}

/** Until the last of the old pods is gone: it answers for as long. */
async function rollOnce(kubectl: Kubectl): Promise<void> {
  const deployment = ['deployment/rolled', '--namespace', NAMESPACE]
  kubectl.must(['rollout', 'restart', ...deployment])
  kubectl.must(['rollout', 'status', ...deployment, '--timeout=180s'])
  const pods = ['get', 'pods', '--namespace', NAMESPACE, '--selector', 'app=rolled', '--output', 'name']
  await eventually(() => kubectl.must(pods).trim().split('\n').length === REPLICAS, {
    limitMs: GONE_MAX_MS,
    stepMs: 500,
    describe: () => `old pods are still there: ${kubectl.must(pods)}`,
  })
}

function proxyOf({ site }: Life): RunningProxy {
  const running = runningProxy(site)
  if (running === undefined) throw new Error('the cluster has no proxy')
  return running
}

function podsOf(life: Life) {
  const { form, mode } = proxyOf(life)
  if (form === 'process') throw new Error('the proxy is no pod')
  return { site: life.site, tools: life.tools, form, mode }
}

/** Services come and go. */
function changeServices({ kubectl }: Life): void {
  const services = Array.from({ length: CHANGES }, (_, at) => passingService(`passing-${at}`))
  kubectl.apply(services)
  kubectl.must(['delete', 'service', '--namespace', NAMESPACE, ...services.map((_, at) => `passing-${at}`)])
}
