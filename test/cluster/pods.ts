import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { eventually } from '../support/patience.ts'
import { createAuthority } from '../support/tls.ts'
import { ChartRelease } from './chart.ts'
import { Kubectl } from './control-plane.ts'
import { kubeadmObjects } from './kubeadm.ts'
import type { NodeTools } from './node.ts'
import type { NodePlan, ProxyName, Site } from './site.ts'

/*
 * kprobe as pods: with the project's own manifests and image, or with kube-proxy's DaemonSet and ConfigMap as kubeadm writes
 * them, in which the image alone is another one.
 */

/**
 * How a proxy gets onto nodes: as a process of the checkout, with deploy/kubernetes, the same with relays, by Helm, or in kubeadm's
 * DaemonSet.
 */
export const FORMS = ['process', 'daemonset', 'relay', 'chart', 'kubeadm'] as const
export type Form = (typeof FORMS)[number]
export type PodForm = Exclude<Form, 'process'>

const NAMESPACE = 'kube-system'
const RELAYS = ['--namespace', NAMESPACE, 'deployment', 'kprobe-relay'] as const
/** Nodes that relays run on. */
const RELAYS_MAX = 2
/** The label of a pod, and the name of its DaemonSet. */
const NAMES: Readonly<Record<PodForm, string>> = {
  daemonset: 'kprobe',
  relay: 'kprobe',
  chart: 'kprobe',
  kubeadm: 'kube-proxy',
}
/** Options of ctr. */
const CONTAINERD = ['--address', '/run/containerd/containerd.sock', '--namespace', 'k8s.io'] as const
/** As in deploy/kubernetes/base; the version is that of dist/build.json. */
const IMAGE = 'kprobe'
/** The command line of the daemon, as a pattern. */
export const PROCESS_IN_A_POD: Readonly<Record<ProxyName, string>> = {
  kprobe: '^node .*/opt/kprobe/kprobe.mjs run',
  'kube-proxy': '^/usr/local/bin/kube-proxy ',
}
/** In its files in /proc. */
const CONFINEMENT = [
  { what: 'CAP_NET_ADMIN alone', pattern: /^CapEff:\s+0*1000$/m },
  { what: 'no capability to gain', pattern: /^CapBnd:\s+0*1000$/m },
  { what: 'no new privileges', pattern: /^NoNewPrivs:\s+1$/m },
  { what: 'the seccomp profile of the runtime', pattern: /^Seccomp:\s+2$/m },
  { what: 'a root file system that is only read', pattern: / \/ \/ ro,/ },
]
const READY_MAX_MS = 120_000
const GONE_MAX_MS = 60_000

export interface Pods {
  readonly site: Site
  readonly tools: NodeTools
  readonly mode: string
  readonly form: PodForm
  /** kube-proxy in kubeadm's form alone. */
  readonly proxy: ProxyName
  /** Of the image; the version without one. */
  readonly tag?: string | undefined
  /** Further fields of the configuration; of the chart alone. */
  readonly config?: object
}

/** Builds the image, gives it to every node, and applies the manifests. Resolves when every pod is ready. */
export async function startPods(pods: Pods): Promise<void> {
  const { site, tools, form, mode, proxy } = pods
  const kubectl = kubectlOf(pods)
  const { root } = tools
  if (proxy === 'kube-proxy') {
    const own = {
      image: imageLike(pods, /\/distroless-iptables:/),
      program: tools.binaries.path('kube-proxy'),
    }
    kubectl.apply(kubeadmObjects(site, { mode, root, ...own }))
  } else {
    if (form === 'relay') prepareRelays(pods, kubectl)
    install(pods)
  }
  await eventually(() => readyPods(kubectl, form) === site.nodes.length, {
    limitMs: READY_MAX_MS,
    stepMs: 500,
    progress: () => readyPods(kubectl, form),
    describe: () => `pods of ${NAMES[form]} are not ready: ${wordsOf(kubectl, form)}`,
  })
  if (form !== 'kubeadm') for (const node of site.nodes) requireConfined(node, tools)
  if (form === 'relay') await requireRelays(pods)
}

/** kprobe of the tree `tools.root`: its image on every node, and its objects. */
function install(pods: Pods): void {
  const { site, tools, form, mode } = pods
  const image = giveImage(pods)
  if (form !== 'kubeadm') applyOurs(pods)
  else kubectlOf(pods).apply(kubeadmObjects(site, { mode, root: tools.root, image }))
}

/** Replaces the version in pods by that of the tree `tools.root`, node by node, as docs/upgrades.md says. */
export async function installVersion(pods: Pods): Promise<void> {
  install(pods)
  rolledOut(pods)
  if (pods.form === 'relay') await requireRelays(pods)
}

/** Gives every node the version and the configuration that the chart's revision before has. */
export function rollBackChart(pods: Pods): void {
  releaseOf(pods).rollBack()
  rolledOut(pods)
}

function rolledOut(pods: Pods): void {
  const daemonSet = ['daemonset', NAMES[pods.form], '--namespace', NAMESPACE]
  kubectlOf(pods).must(['rollout', 'status', ...daemonSet, '--timeout=180s'])
}

/** Builds the image of the tree `tools.root`, gives it to every node, and gives its name. */
export function giveImage({ site, tools, tag }: Pick<Pods, 'site' | 'tools' | 'tag'>): string {
  const image = buildImage(site, tools.root, tag)
  for (const node of site.nodes) loadImage(node, image.file, tools)
  return image.reference
}

/** The name of an image that every node has. */
export function imageLike({ site, tools }: Pick<Pods, 'site' | 'tools'>, pattern: RegExp): string {
  const { namespaces, binaries } = tools
  const place = namespaces.node(site.nodes[0]?.name ?? '')
  const names = namespaces.must(
    { file: binaries.path('ctr'), args: [...CONTAINERD, 'images', 'ls', '--quiet'] },
    { place },
  )
  const name = names
    .split('\n')
    .filter(each => pattern.test(each))
    .at(-1)
  if (name === undefined) throw new Error(`no image like ${pattern} is in the store`)
  return name
}

/** Gives a node that has joined the image that `startPods` built. */
export function admitNode({ site, tools }: Pick<Pods, 'site' | 'tools'>, node: NodePlan): void {
  loadImage(node, imageFile(site), tools)
}

/** Throws when the daemon may do more than the manifests allow it: that is what its pod promises to whoever installs it. */
function requireConfined(node: NodePlan, { namespaces }: NodeTools): void {
  const script = `pid=$(pgrep -f '${PROCESS_IN_A_POD.kprobe}'); cat /proc/$pid/status; grep ' / / ' /proc/$pid/mountinfo`
  const found = namespaces.must({ file: 'sh', args: ['-c', script] }, { place: namespaces.node(node.name) })
  const missing = CONFINEMENT.filter(({ pattern }) => !pattern.test(found)).map(({ what }) => what)
  if (missing.length > 0) throw new Error(`kprobe on ${node.name} is not confined: ${missing.join(', ')}`)
}

/** Waits until the relays are ready and every node reads from one of them. */
async function requireRelays(pods: Pods): Promise<void> {
  const { site, tools } = pods
  kubectlOf(pods).must(['rollout', 'status', ...RELAYS, '--timeout=120s'])
  const url = 'http://127.0.0.1:10249/metrics'
  const direct = (node: NodePlan) =>
    /^kprobe_source_direct (\d)$/m.exec(
      tools.namespaces.must(
        { file: 'curl', args: ['--silent', '--fail', '--max-time', '5', url] },
        { place: tools.namespaces.node(node.name) },
      ),
    )?.[1]
  const readers = () => site.nodes.map(direct).join()
  // A node that has gone to the API server looks for relays every 30 to 90 s.
  await eventually(() => site.nodes.every(node => direct(node) === '0'), {
    limitMs: READY_MAX_MS,
    stepMs: 2_000,
    describe: () => `nodes do not read from relays: kprobe_source_direct is ${readers()}`,
  })
}

/** Resolves when there is a ready pod on each node, and none besides. */
export async function settledPods(pods: Pods): Promise<void> {
  const kubectl = kubectlOf(pods)
  const { length } = pods.site.nodes
  await eventually(
    () => podsOf(kubectl, pods.form).length === length && readyPods(kubectl, pods.form) === length,
    {
      limitMs: GONE_MAX_MS,
      stepMs: 500,
      describe: () => `not ${length} pods of ${NAMES[pods.form]}: ${wordsOf(kubectl, pods.form)}`,
    },
  )
}

/** Removes the DaemonSet. Resolves when its pods are gone; the rules stay. */
export async function stopPods(pods: Pods): Promise<void> {
  const { form } = pods
  const kubectl = kubectlOf(pods)
  if (form === 'chart') releaseOf(pods).uninstall()
  else kubectl.must(['delete', '--namespace', NAMESPACE, 'daemonset', NAMES[form]])
  if (form === 'relay') kubectl.must(['delete', ...RELAYS])
  await eventually(() => podsOf(kubectl, form).length === 0, {
    limitMs: GONE_MAX_MS,
    stepMs: 500,
    describe: () => `pods of ${NAMES[form]} are still there: ${podsOf(kubectl, form).join(' ')}`,
  })
}

/** Deletes every pod, with `meanwhile` at once. Resolves when others are ready. */
export async function deletePods(pods: Pods, meanwhile: () => void): Promise<void> {
  const kubectl = kubectlOf(pods)
  const before = podsOf(kubectl, pods.form)
  kubectl.must(['delete', '--wait=false', '--namespace', NAMESPACE, ...before])
  meanwhile()
  await replaced(pods, before)
}

/** As `kubectl drain` does it, one after the other. */
export async function evictPods(pods: Pods): Promise<void> {
  const kubectl = kubectlOf(pods)
  for (const pod of podsOf(kubectl, pods.form)) {
    const name = pod.replace(/^pod\//, '')
    const eviction = { apiVersion: 'policy/v1', kind: 'Eviction', metadata: { name, namespace: NAMESPACE } }
    const path = `/api/v1/namespaces/${NAMESPACE}/pods/${name}/eviction`
    kubectl.must(['create', '--raw', path, '-f', '-'], JSON.stringify(eviction))
    await replaced(pods, [pod])
  }
}

/** Gives the container less memory than it needs until the kernel has killed it, then what it had. */
export async function starvePods(pods: Pods): Promise<void> {
  const kubectl = kubectlOf(pods)
  const daemonSet = ['daemonset', NAMES[pods.form], '--namespace', NAMESPACE]
  const reasons = ['get', 'pods', '--namespace', NAMESPACE, '--selector', `k8s-app=${NAMES[pods.form]}`]
  const path = 'jsonpath={.items[*].status.containerStatuses[*].lastState.terminated.reason}'
  const limits = ['--containers', NAMES[pods.form], '--limits=memory=20Mi', '--requests=memory=20Mi']
  kubectl.must(['set', 'resources', ...daemonSet, ...limits])
  await eventually(() => kubectl.must([...reasons, '--output', path]).includes('OOMKilled'), {
    limitMs: READY_MAX_MS,
    stepMs: 500,
    describe: () => `no pod of ${NAMES[pods.form]} was killed: ${wordsOf(kubectl, pods.form)}`,
  })
  kubectl.must(['rollout', 'undo', ...daemonSet])
  kubectl.must(['rollout', 'status', ...daemonSet, '--timeout=120s'])
}

/** Applies the manifests of another mode, and restarts the pods node by node, since a ConfigMap restarts none. */
export async function changeMode(pods: Pods): Promise<void> {
  const kubectl = kubectlOf(pods)
  const daemonSet = ['daemonset', NAMES[pods.form], '--namespace', NAMESPACE]
  applyOurs(pods)
  kubectl.must(['rollout', 'restart', ...daemonSet])
  kubectl.must(['rollout', 'status', ...daemonSet, '--timeout=120s'])
}

async function replaced(pods: Pods, before: readonly string[]): Promise<void> {
  const kubectl = kubectlOf(pods)
  const isReplaced = () => {
    const now = podsOf(kubectl, pods.form)
    return !before.some(pod => now.includes(pod)) && readyPods(kubectl, pods.form) === pods.site.nodes.length
  }
  await eventually(isReplaced, {
    limitMs: READY_MAX_MS,
    stepMs: 500,
    describe: () => `pods of ${NAMES[pods.form]} are not ready: ${wordsOf(kubectl, pods.form)}`,
  })
}

function kubectlOf({ site, tools }: Pods): Kubectl {
  return new Kubectl(site, tools.namespaces, tools.binaries)
}

/** What the pod of a node has logged, as the container runtime keeps it; empty when there is none. */
export function podLog(node: NodePlan, form: PodForm): string {
  const folder = join(node.folder, 'log/pods')
  if (!existsSync(folder)) return ''
  // Relays are pods of their own, whose names begin alike.
  const of = ['-path', `*/${NAMESPACE}_${NAMES[form]}-*/*.log`, '!', '-path', '*_kprobe-relay-*']
  const files = execFileSync('find', [folder, ...of], { encoding: 'utf8' })
  return files
    .split('\n')
    .filter(Boolean)
    .sort()
    .map(file => readFileSync(file, 'utf8'))
    .join('')
}

/** The image of the checkout as one file, and the name that manifests give it. */
function buildImage(
  site: Site,
  root: string,
  tag?: string,
): { readonly file: string; readonly reference: string } {
  const file = imageFile(site)
  const { version }: { version: string } = JSON.parse(readFileSync(join(root, 'dist/build.json'), 'utf8'))
  const reference = `${IMAGE}:${tag ?? version}`
  // Nodes are on this machine: compressing takes longer than copying.
  const flags = ['--no-build', '--uncompressed', '--tag', reference, '--output', file]
  execFileSync(process.execPath, [join(root, 'deploy/image/main.mjs'), ...flags], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  return { file, reference }
}

function imageFile({ folder }: Site): string {
  return join(folder, 'kprobe.tar')
}

function loadImage(node: NodePlan, file: string, { namespaces, binaries }: NodeTools): void {
  const args = [...CONTAINERD, 'images', 'import', file]
  namespaces.must({ file: binaries.path('ctr'), args }, { place: namespaces.node(node.name) })
}

function applyOurs(pods: Pods): void {
  if (pods.form === 'chart') releaseOf(pods).apply(pods.tools.root, valuesOf(pods))
  else kubectlOf(pods).must(['apply', '-k', writeOverlay(pods)])
}

/** What docs/relay.md tells a user to do: labels of nodes, and certificates. */
function prepareRelays({ site }: Pods, kubectl: Kubectl): void {
  for (const { name } of site.nodes.slice(0, RELAYS_MAX))
    kubectl.must(['label', '--overwrite', 'node', name, 'kprobe.io/relay=true'])
  const authority = createAuthority()
  const { certPem, keyPem } = authority.issue({
    commonName: 'kprobe-relay',
    names: [`kprobe-relay.${NAMESPACE}.svc`],
    untilSeconds: 86_400,
  })
  const named = (name: string) => ({ metadata: { name, namespace: NAMESPACE } })
  const secret = { apiVersion: 'v1', kind: 'Secret', type: 'kubernetes.io/tls', ...named('kprobe-relay-tls') }
  const stringData = { 'tls.crt': certPem, 'tls.key': keyPem }
  const map = { apiVersion: 'v1', kind: 'ConfigMap', ...named('kprobe-relay-ca') }
  kubectl.apply([
    { ...secret, stringData },
    { ...map, data: { 'ca.crt': authority.caPem } },
  ])
}

function releaseOf({ site, tools }: Pods): ChartRelease {
  return new ChartRelease(site, tools, NAMESPACE)
}

/** Gives what a user sets in the chart: the cluster's own values. */
function valuesOf({ site, mode, tag, config }: Pods): object {
  return {
    apiServer: site.apiUrl,
    clusterCIDR: podCidr(site),
    mode,
    config: { conntrack: SHARED_CONNTRACK, ...config },
    ...(tag === undefined ? {} : { image: { tag } }),
  }
}

/** What a user writes: a kustomization above an overlay of the project, with the cluster's own values. Gives its folder. */
export function writeOverlay({ site, tools, mode, form, tag }: Pods, overlay = mode): string {
  const folder = join(site.folder, 'overlay')
  mkdirSync(folder, { recursive: true })
  const base = join(tools.root, 'deploy/kubernetes/overlays', overlay)
  if (!existsSync(base)) throw new Error(`there is no overlay ${overlay}: ${base}`)
  const values = { API_SERVER: site.apiUrl, POD_CIDR: podCidr(site) }
  const patch = (name: string, data: object) => ({
    patch: JSON.stringify({
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { name, namespace: NAMESPACE },
      data,
    }),
  })
  const kustomization = {
    apiVersion: 'kustomize.config.k8s.io/v1beta1',
    kind: 'Kustomization',
    resources: [relative(folder, base)],
    ...(tag === undefined ? {} : { images: [{ name: IMAGE, newTag: tag }] }),
    ...(form === 'relay'
      ? { components: [relative(folder, join(tools.root, 'deploy/kubernetes/components/relay'))] }
      : {}),
    patches: [
      patch('kprobe-cluster', values),
      patch('kprobe', { 'init.conf': initConfiguration(mode) }),
      ...(form === 'relay' ? [patch('kprobe-relays', { RELAYS: relaysOf(site) })] : []),
    ],
  }
  writeFileSync(join(folder, 'kustomization.yaml'), JSON.stringify(kustomization, undefined, 2))
  return folder
}

function relaysOf({ nodes }: Site): string {
  return nodes
    .slice(0, RELAYS_MAX)
    .map(({ addresses: [ip = ''], zone }) => `tcp://${ip.includes(':') ? `[${ip}]` : ip}:12091@${zone}`)
    .join(',')
}

function podCidr(site: Site): string {
  return site.subnets.map(({ pods }) => pods).join(',')
}

/** The size of the connection table belongs to the machine, which all nodes share. */
const SHARED_CONNTRACK = { maxPerCore: 0, min: 0 }

function initConfiguration(mode: string): string {
  return JSON.stringify({
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    mode,
    clientConnection: { kubeconfig: '/var/lib/kprobe/kubeconfig.conf' },
    conntrack: SHARED_CONNTRACK,
  })
}

function podsOf(kubectl: Kubectl, form: PodForm): readonly string[] {
  const selected = ['get', 'pods', '--namespace', NAMESPACE, '--selector', `k8s-app=${NAMES[form]}`]
  return kubectl
    .must([...selected, '--output', 'name'])
    .split('\n')
    .filter(Boolean)
}

function readyPods(kubectl: Kubectl, form: PodForm): number {
  const status = [
    'get',
    'daemonset',
    '--namespace',
    NAMESPACE,
    NAMES[form],
    '--output',
    'jsonpath={.status.numberReady}',
  ]
  return Number(kubectl.must(status))
}

function wordsOf(kubectl: Kubectl, form: PodForm): string {
  const selected = ['--namespace', NAMESPACE, '--selector', `k8s-app=${NAMES[form]}`]
  return kubectl.must(['describe', 'pods', ...selected]).slice(-3_000)
}
