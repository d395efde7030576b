import { setTimeout as sleep } from 'node:timers/promises'
import { eventually } from '../support/patience.ts'
import { type Cluster, rebootNode, restartApiServer } from './cluster.ts'
import type { Kubectl } from './control-plane.ts'
import { NAMESPACE, passingService, REPLICAS } from './life-objects.ts'
import { changeMode, deletePods, evictPods, starvePods, upgradePods } from './pods.ts'
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
      const node = lastNode(life)
      drain(life)
      await rebootNode(life, node, life.kubectl, life.signal)
      await resumeProxy(life, node)
      await whole(life)
    },
    mayFail: ({ kind, host }, life) =>
      kind === 'lasting' || kind === 'keep-alive' || lastNode(life).addresses.includes(host),
  },
  {
    name: 'apiserver',
    what: 'the API server is killed, and comes back',
    suits: always,
    run: life => restartApiServer(life, life.kubectl),
  },
]

function lastNode({ site }: Life): NodePlan {
  const node = site.nodes.at(-1)
  if (node === undefined) throw new Error('the cluster has no node')
  return node
}

/** Every pod but those of DaemonSets leaves the last node, once it has drained its connections. */
function drain(life: Life): void {
  const options = ['--ignore-daemonsets', '--delete-emptydir-data', '--timeout=180s']
  life.kubectl.must(['drain', lastNode(life).name, ...options])
}

/** The last node takes pods again, and every server is ready. */
async function whole(life: Life): Promise<void> {
  const { kubectl } = life
  kubectl.must(['uncordon', lastNode(life).name])
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
