import { eventually } from '../support/patience.ts'
import { type Cluster, lastNode } from './cluster.ts'
import type { Kubectl } from './control-plane.ts'
import { NAMESPACE, passingService, REPLICAS } from './life-objects.ts'
import type { Pods } from './pods.ts'
import { type RunningProxy, runningProxy } from './proxies.ts'
import type { Flow } from './traffic.ts'

const CHANGES = 20
const GONE_MAX_MS = 60_000

/** What an event works with. */
export interface Life extends Cluster {
  readonly kubectl: Kubectl
  readonly rounds: number
  /** A commit: the version that an upgrade comes from. */
  readonly previous: string | undefined
  /** This program, as one file that Node runs. */
  readonly program: string
  readonly signal: AbortSignal
}

/** A part of an event, with counts of its own. */
export interface LifePart {
  readonly name: string
  readonly what: string
  readonly run: (life: Life) => Promise<void>
  /** How many requests of a flow fail whatever a proxy does: over connections to pods that go, and by way of a node that is off. */
  readonly mayFail?: (flow: Flow, life: Life) => number
  /** What follows from it. */
  readonly next?: LifePart
}

/** Something that happens in clusters. It ends, with its last part, when the cluster is whole again. */
export interface LifeEvent extends LifePart {
  readonly suits: (proxy: RunningProxy, life: Pick<Life, 'site' | 'previous'>) => boolean
}

export const isPod = ({ form }: RunningProxy): boolean => form !== 'process'
export const isKprobe = ({ proxy }: RunningProxy): boolean => proxy === 'kprobe'

/** A connection may end in two pods that go, one after the other; each costs a request, and the connection counts once. */
const BROKEN_MAX = 4

/** While pods move: requests over connections that stay open. */
export function brokenOf({ kind }: Flow): number {
  return kind === 'lasting' || kind === 'keep-alive' ? BROKEN_MAX : 0
}

/** While the last node does not serve: all requests by way of it. */
export function byLastNode({ host }: Flow, { site }: Life): number {
  return lastNode(site).addresses.includes(host) ? Number.POSITIVE_INFINITY : 0
}

/** Every pod but those of DaemonSets leaves the last node, once it has drained its connections. */
export function drain(life: Life): void {
  const options = ['--ignore-daemonsets', '--delete-emptydir-data', '--timeout=180s']
  life.kubectl.must(['drain', lastNode(life.site).name, ...options])
}

/** The last node takes pods again, and every server is ready. */
export async function whole(life: Life): Promise<void> {
  const { kubectl } = life
  kubectl.must(['uncordon', lastNode(life.site).name])
  for (const name of ['stable', 'rolled'])
    kubectl.must(['rollout', 'status', `deployment/${name}`, '--namespace', NAMESPACE, '--timeout=180s'])
}

/** Again and again, until the last of the old pods is gone: it answers for as long. */
export async function roll({ kubectl, signal }: Life, rounds = 1): Promise<void> {
  const deployment = ['deployment/rolled', '--namespace', NAMESPACE]
  for (let round = 0; round < rounds; round++) {
    signal.throwIfAborted()
    kubectl.must(['rollout', 'restart', ...deployment])
    kubectl.must(['rollout', 'status', ...deployment, '--timeout=180s'])
  }
  const pods = ['get', 'pods', '--namespace', NAMESPACE, '--selector', 'app=rolled', '--output', 'name']
  await eventually(() => kubectl.must(pods).trim().split('\n').length === REPLICAS, {
    limitMs: GONE_MAX_MS,
    stepMs: 500,
    describe: () => `old pods are still there: ${kubectl.must(pods)}`,
  })
}

export function proxyOf({ site }: Life): RunningProxy {
  const running = runningProxy(site)
  if (running === undefined) throw new Error('the cluster has no proxy')
  return running
}

export function podsOf(life: Life): Pods {
  const running = proxyOf(life)
  const { form } = running
  if (form === 'process') throw new Error('the proxy is no pod')
  return { site: life.site, tools: life.tools, ...running, form }
}

export function changeServices({ kubectl }: Life): void {
  const services = Array.from({ length: CHANGES }, (_, at) => passingService(`passing-${at}`))
  kubectl.apply(services)
  kubectl.must(['delete', 'service', '--namespace', NAMESPACE, ...services.map((_, at) => `passing-${at}`)])
}

/** Services come and go, and pods are replaced: requests fail where a proxy no longer learns what changes. */
export async function followed(life: Life): Promise<void> {
  changeServices(life)
  await roll(life)
}
