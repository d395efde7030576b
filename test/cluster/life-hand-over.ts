import { dirname, join } from 'node:path'
import { eventually } from '../support/patience.ts'
import { lastNode } from './cluster.ts'
import { kubeconfigOf } from './control-plane.ts'
import { changeServices, isKprobe, isPod, type Life, type LifeEvent, podsOf, roll } from './life-steps.ts'
import { giveImage, type Pods, writeOverlay } from './pods.ts'
import { cleanUp, healthy, logOf, type RunningProxy, replaceProxies, startOne, stopOne } from './proxies.ts'
import type { NodePlan } from './site.ts'

/*
 * From one proxy to the other and back: of processes, and of pods with kubectl alone, as docs/hand-over.md says.
 */

const NAMESPACE = ['--namespace', 'kube-system'] as const
const LABEL = 'kprobe.io/proxy'
const GONE_MAX_MS = 120_000
const isKubeProxyInPods = ({ proxy, form, mode }: RunningProxy): boolean =>
  proxy === 'kube-proxy' && form === 'kubeadm' && mode === 'nftables'

export const HAND_OVERS: readonly LifeEvent[] = [
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
    name: 'canary',
    what: 'kprobe on one node, kube-proxy on the others, and back',
    suits: isKubeProxyInPods,
    run: life => lendNodes(life, life.site.nodes.slice(0, 1)),
  },
  {
    name: 'lend',
    what: "from kube-proxy's DaemonSet to kprobe's, node by node, and back",
    suits: isKubeProxyInPods,
    run: life => lendNodes(life, life.site.nodes),
  },
  {
    name: 'migrate',
    what: 'the script of kubectl kprobe migrate moves each node, and the labels move it back',
    suits: isKubeProxyInPods,
    run: life => lendNodes(life, life.site.nodes, migrateNode),
  },
  {
    name: 'beside',
    what: 'a kube-proxy runs on the last node beside kprobe, which says so and serves on',
    suits: proxy => isKprobe(proxy) && isPod(proxy) && proxy.mode === 'nftables',
    run: life => runBeside(life, lastNode(life.site)),
  },
]

type Move = (life: Life, node: NodePlan, proxies: { readonly from: Pods; readonly to: Pods }) => Promise<void>

/** The label, as docs/hand-over.md says. */
const labelNode: Move = async (life, node, proxies) => {
  life.kubectl.must(['label', 'node', node.name, `${LABEL}=kprobe`])
  await changed(life, node, proxies)
}

/** The script patches kube-proxy's DaemonSet, labels, watches, and ends with 0. The last node goes back once before. */
const migrateNode: Move = async (life, node, { from, to }) => {
  if (node === lastNode(life.site)) {
    const check = `! kubectl ${ifLabelled(node).join(' ')} | grep -q .`
    const { status, words } = runMigration(life, node, check)
    if (status !== WENT_BACK)
      throw new Error(`the migration of ${node.name} ended with ${status}, not ${WENT_BACK}: ${words}`)
    await changed(life, node, { from: to, to: from })
    cleanUp(node, to, life.tools)
  }
  const { status, words } = runMigration(life, node, 'true')
  if (status !== 0) throw new Error(`the migration of ${node.name} ended with ${status}: ${words}`)
  if (life.kubectl.must(ifLabelled(node)) === '') throw new Error(`${node.name} has no label ${LABEL}=kprobe`)
  await healthy(node, to, life.tools)
}

/** Exit code of the script: kube-proxy serves again. */
const WENT_BACK = 3

/** Arguments of kubectl that print the node if it has the label. */
function ifLabelled({ name }: NodePlan): readonly string[] {
  return [
    ...['get', 'nodes', '--output=name'],
    ...[`--field-selector=metadata.name=${name}`, `--selector=${LABEL}=kprobe`],
  ]
}

function runMigration({ site, tools }: Life, node: NodePlan, check: string) {
  const { namespaces, binaries, root } = tools
  const KUBECONFIG = kubeconfigOf(site, 'admin')
  const flags = [`--node=${node.name}`, `--kubeconfig=${KUBECONFIG}`, '--timeout=60', `--check=${check}`]
  const args = [join(root, 'dist/kprobe.mjs'), 'nodes', 'migrate', ...flags]
  const script = namespaces.must({ file: process.execPath, args })
  const PATH = `${dirname(binaries.path('kubectl'))}:${process.env.PATH ?? ''}`
  const { status, stderr } = namespaces.run({ file: 'sh', args: ['-c', script], env: { PATH, KUBECONFIG } })
  return { status, words: stderr.slice(-2_000) }
}

const BESIDE = 'kube-proxy runs on this node beside kprobe'

/** What changes meanwhile makes both write; kube-proxy is a process, and its ports are taken. */
async function runBeside(life: Life, node: NodePlan): Promise<void> {
  const { site, tools } = life
  const running = podsOf(life)
  const kubeProxy = { proxy: 'kube-proxy', mode: 'nftables', form: 'process' } as const
  startOne(site, kubeProxy, { tools, node })
  await roll(life)
  changeServices(life)
  await eventually(() => logOf(node, running).includes(BESIDE), {
    limitMs: GONE_MAX_MS,
    stepMs: 1_000,
    describe: () => `kprobe on ${node.name} has not seen kube-proxy: ${logOf(node, running).slice(-2_000)}`,
  })
  await stopOne(node, kubeProxy, tools)
  await roll(life)
  await healthy(node, running, tools)
}

/** These nodes have kprobe for a while, in which Services and their pods change. */
async function lendNodes(life: Life, nodes: readonly NodePlan[], move: Move = labelNode): Promise<void> {
  const { kubectl, signal } = life
  const kubeProxy = podsOf(life)
  const kprobe = { ...kubeProxy, form: 'daemonset', proxy: 'kprobe' } as const
  const overlay = () => writeOverlay(kprobe, 'canary')
  giveImage(kprobe)
  // The script does it itself.
  if (move === labelNode) changeAffinity(life, AVOIDS_LABEL)
  kubectl.must(['apply', '-k', overlay()])
  for (const node of nodes) {
    signal.throwIfAborted()
    await move(life, node, { from: kubeProxy, to: kprobe })
  }
  changeServices(life)
  await roll(life)
  for (const node of nodes) {
    signal.throwIfAborted()
    kubectl.must(['label', 'node', node.name, `${LABEL}-`])
    await changed(life, node, { from: kprobe, to: kubeProxy })
    cleanUp(node, kprobe, life.tools)
  }
  kubectl.must(['delete', '-k', overlay()])
  changeAffinity(life, null)
}

const AVOIDS_LABEL = {
  nodeAffinity: {
    requiredDuringSchedulingIgnoredDuringExecution: {
      nodeSelectorTerms: [{ matchExpressions: [{ key: LABEL, operator: 'NotIn', values: ['kprobe'] }] }],
    },
  },
}

/** Of kube-proxy's DaemonSet, whose pods are replaced. */
function changeAffinity({ kubectl }: Life, affinity: object | null): void {
  const daemonSet = ['daemonset/kube-proxy', ...NAMESPACE]
  const patch = JSON.stringify({ spec: { template: { spec: { affinity } } } })
  kubectl.must(['patch', ...daemonSet, '--patch', patch])
  kubectl.must(['rollout', 'status', ...daemonSet, '--timeout=180s'])
}

/** Resolves when the pod of the one proxy is gone, and the other one is healthy. */
async function changed(
  { kubectl, tools }: Life,
  node: NodePlan,
  { from, to }: { readonly from: RunningProxy; readonly to: RunningProxy },
): Promise<void> {
  const selected = ['--selector', `k8s-app=${from.proxy}`, '--field-selector', `spec.nodeName=${node.name}`]
  const pods = () => kubectl.must(['get', 'pods', ...NAMESPACE, ...selected, '--output', 'name']).trim()
  await eventually(() => pods() === '', {
    limitMs: GONE_MAX_MS,
    stepMs: 200,
    describe: () => `${pods()} of ${node.name} is still there`,
  })
  await healthy(node, to, tools)
}
