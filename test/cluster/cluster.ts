import { type ChildProcess, execFileSync } from 'node:child_process'
import {
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { basename, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { eventually } from '../support/patience.ts'
import { dnsObjects, nodeObject } from './addons.ts'
import type { Binaries } from './binaries.ts'
import { controlPlaneCommands, etcdCommands, Kubectl, lastLines, writeIdentities } from './control-plane.ts'
import { removeCluster, removeNodeCgroups } from './leftovers.ts'
import { type Command, Namespaces } from './namespaces.ts'
import { connectNode, connectNodes, disconnectNode, reconnectNode, routeToPods } from './network.ts'
import { type NodeTools, startNode } from './node.ts'
import { clustersFolder, type NodePlan, type Parameters, planSite, processOfName, type Site } from './site.ts'

const AWAY_MS = 5_000
const PAUSE_MS = 20_000
const WITHOUT_QUORUM_MS = 60_000
const NODES_READY_MAX_MS = 180_000
const DNS_READY_MAX_MS = 180_000

export interface UpOptions {
  readonly binaries: Binaries
  /** The checkout. */
  readonly root: string
  /** This program, as one file that Node runs. */
  readonly program: string
  /** It ends with this process. */
  readonly isTied: boolean
  readonly progress: (words: string) => void
  readonly signal: AbortSignal
}

export interface Cluster {
  readonly site: Site
  readonly tools: NodeTools
}

/** Starts a cluster without a proxy and without DNS, which needs one. What it has started is there when it throws. */
export async function startCluster(parameters: Parameters, options: UpOptions): Promise<Cluster> {
  const { binaries, root, isTied, progress, signal } = options
  const site = planSite(parameters)
  if (Namespaces.open(site.folder) !== undefined)
    throw new Error(
      `the cluster ${parameters.name} is up already; down ends it, another --name starts a second one`,
    )
  // Another start may be removing the same one.
  for (const name of await removeDeadClusters().catch(() => []))
    progress(`removed the cluster ${name}, whose process has ended`)
  if (await removeCluster(site)) progress('removed what a cluster of this name had left')
  mkdirSync(site.folder, { recursive: true })
  writeFileSync(parametersFile(site), JSON.stringify(parameters))
  const namespaces = await Namespaces.create(site.folder, isTied)
  const tools = { namespaces, binaries, root }
  connectNodes(site, namespaces)
  // For one that joins later as well: the API server reads its list of tokens once.
  writeIdentities(withNextNode(site))
  signal.throwIfAborted()
  const kubectl = new Kubectl(site, namespaces, binaries)
  await startControlPlane({ site, tools }, kubectl)
  progress('kube-apiserver is ready')
  kubectl.apply(site.nodes.map(nodeObject))
  signal.throwIfAborted()
  await Promise.all(site.nodes.map(node => startNode(site, node, tools)))
  progress(`${site.nodes.length} nodes run`)
  await nodesReady({ site, tools }, kubectl, signal)
  progress('all nodes are ready')
  namespaces.start(
    { file: process.execPath, args: [options.program, 'load-balancer', '--name', parameters.name] },
    join(site.folder, 'load-balancer.log'),
  )
  return { site, tools }
}

async function startControlPlane({ site, tools }: Cluster, kubectl: Kubectl): Promise<void> {
  for (const name of Object.keys(controlPlaneCommands(site, tools.binaries))) {
    const child = startProgram({ site, tools }, name)
    if (name === 'kube-apiserver') await kubectl.ready(child)
  }
}

/** Kills the API server, and starts it again after a moment in which nobody can reach it. */
export async function restartApiServer({ site, tools }: Cluster, kubectl: Kubectl): Promise<void> {
  killProgram({ site, tools }, 'kube-apiserver')
  await sleep(AWAY_MS)
  await kubectl.ready(startProgram({ site, tools }, 'kube-apiserver'))
}

/** A program of the control plane ends, as when its machine does. */
export function killProgram({ site, tools }: Cluster, name: string): void {
  const { file } = programOf({ site, tools }, name)
  // The members of the store are one program.
  const pattern = name.startsWith('etcd') ? ` --name=${name} ` : `^${file} `
  tools.namespaces.must({ file: 'pkill', args: ['-KILL', '-f', '--', pattern] })
}

export function startProgram({ site, tools }: Cluster, name: string): ChildProcess {
  return tools.namespaces.start(programOf({ site, tools }, name), join(site.folder, `${name}.log`))
}

function programOf({ site, tools }: Cluster, name: string): Command {
  const command = controlPlaneCommands(site, tools.binaries)[name]
  if (command === undefined) throw new Error(`there is no ${name}`)
  return command
}

/**
 * All members of the store but one end for a minute: the API server neither reads nor writes. The controller manager ends as
 * well, as one does that cannot renew its lease, so that it does not judge nodes by what it knew before.
 */
export async function loseQuorum(cluster: Cluster, kubectl: Kubectl): Promise<void> {
  const { site, tools } = cluster
  const lost = Object.keys(etcdCommands(site, tools.binaries)).slice(1)
  for (const name of [...lost, 'kube-controller-manager']) killProgram(cluster, name)
  await sleep(WITHOUT_QUORUM_MS)
  if (kubectl.serves()) throw new Error('kube-apiserver serves without a quorum of its store')
  for (const name of lost) startProgram(cluster, name)
  await eventually(() => kubectl.serves(), {
    describe: () => 'kube-apiserver does not serve once the quorum is back',
  })
  startProgram(cluster, 'kube-controller-manager')
}

/** Lets the store of the API server stand still, as when it has lost its quorum: nothing is read or written. */
export async function pauseEtcd({ site, tools }: Cluster, kubectl: Kubectl): Promise<void> {
  tools.namespaces.must({ file: 'pkill', args: ['-STOP', '-x', 'etcd'] })
  try {
    await sleep(PAUSE_MS)
  } finally {
    tools.namespaces.must({ file: 'pkill', args: ['-CONT', '-x', 'etcd'] })
    // It stops with what it has started, and is outside of that process namespace.
    execFileSync('pkill', ['-CONT', '-f', `^nsenter .*--data-dir=${site.folder}/`])
  }
  await eventually(() => kubectl.serves(), {
    describe: () => 'kube-apiserver does not serve after the pause',
  })
}

/** The plan of a cluster with one node more, the last one. */
export function withNextNode({ parameters, folder }: Site): Site {
  return planSite({ ...parameters, nodes: parameters.nodes + 1 }, folder)
}

/** A node that was not there joins: the last one of `grown`. */
export async function joinNode(
  { site, tools }: Cluster,
  {
    grown,
    kubectl,
    signal,
  }: { readonly grown: Site; readonly kubectl: Kubectl; readonly signal: AbortSignal },
): Promise<NodePlan> {
  const node = lastNode(grown)
  connectNode(grown, node, tools.namespaces)
  for (const other of site.nodes) routeToPods(grown, { from: other, to: node }, tools.namespaces)
  kubectl.apply([nodeObject(node)])
  await startNode(grown, node, tools)
  await nodesReady({ site: grown, tools }, kubectl, signal)
  return node
}

/** A node that has joined goes for good, with its pods. */
export function removeNode({ tools }: Cluster, node: NodePlan, kubectl: Kubectl): void {
  kubectl.must(['delete', 'node', node.name])
  process.kill(tools.namespaces.node(node.name).pid, 'SIGKILL')
  tools.namespaces.must({ file: 'ip', args: ['netns', 'delete', node.name] })
}

export function lastNode({ nodes }: Site): NodePlan {
  const node = nodes.at(-1)
  if (node === undefined) throw new Error('the cluster has no node')
  return node
}

/** Ends everything on a node at once; nothing answers at its addresses. */
export function powerOff({ tools }: Cluster, node: NodePlan): void {
  process.kill(tools.namespaces.node(node.name).pid, 'SIGKILL')
  disconnectNode(node, tools.namespaces)
}

/** Starts a node that is off, with a network namespace of which nothing is known. */
export async function powerOn(
  { site, tools }: Cluster,
  node: NodePlan,
  kubectl: Kubectl,
  signal: AbortSignal,
): Promise<void> {
  await reconnectNode(site, node, tools.namespaces)
  await removeNodeCgroups(node)
  // Only its kubelet says that the node is ready again.
  const condition = { type: 'Ready', status: 'Unknown', reason: 'Restarted', message: 'it starts again' }
  const patch = JSON.stringify({ status: { conditions: [condition] } })
  kubectl.must(['patch', 'node', node.name, '--subresource=status', '--patch', patch])
  await startNode(site, node, tools)
  await nodesReady({ site, tools }, kubectl, signal)
}

async function nodesReady({ site }: Cluster, kubectl: Kubectl, signal: AbortSignal): Promise<void> {
  let lacking: readonly string[] = []
  const path =
    'jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}'
  await eventually(
    () => {
      signal.throwIfAborted()
      const states = kubectl.must(['get', 'nodes', '-o', path]).trim().split(' ')
      lacking = site.nodes.map(({ name }) => name).filter(name => !states.includes(`${name}=True`))
      return lacking.length === 0
    },
    {
      limitMs: NODES_READY_MAX_MS,
      stepMs: 500,
      describe: () =>
        `not ready: ${lacking.map(name => `${name}: ${lastLines(join(site.folder, name, 'kubelet.log'))}`).join('\n')}`,
    },
  )
}

/** Starts the cluster's DNS, once it has a proxy. */
export async function startDns({ site, tools }: Cluster, signal: AbortSignal): Promise<void> {
  const kubectl = new Kubectl(site, tools.namespaces, tools.binaries)
  kubectl.apply(dnsObjects(site))
  await eventually(
    () => {
      signal.throwIfAborted()
      const args = 'get -n kube-system deployment coredns -o jsonpath={.status.readyReplicas}'
      return kubectl.must(args.split(' ')) === '2'
    },
    {
      limitMs: DNS_READY_MAX_MS,
      stepMs: 500,
      describe: () =>
        `CoreDNS is not ready: ${kubectl.must(['describe', 'pods', '-n', 'kube-system']).slice(-2_000)}`,
    },
  )
}

export function openCluster(name: string, { binaries, root }: Pick<UpOptions, 'binaries' | 'root'>): Cluster {
  const site = siteOf(name)
  const namespaces = Namespaces.open(site.folder)
  if (namespaces === undefined) throw new Error(`no cluster ${name} is up; up starts one`)
  return { site, tools: { namespaces, binaries, root } }
}

/** Removes clusters whose process has ended without doing so. Gives their names. */
export async function removeDeadClusters(): Promise<readonly string[]> {
  const folder = clustersFolder()
  const names = existsSync(folder) ? readdirSync(folder) : []
  const dead = names.filter(name => {
    const pid = processOfName(name)
    return pid !== undefined && !existsSync(`/proc/${pid}`)
  })
  for (const name of dead) await removeCluster(siteOf(name))
  return dead
}

/** The plan of a cluster that was started once; without nodes when it has left no parameters. */
export function siteOf(name: string): Site {
  const nothing: Parameters = { name, nodes: 0, families: ['ipv4'], zones: 1, net: 0, members: 1 }
  const file = parametersFile(planSite(nothing))
  const parameters: Parameters = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : nothing
  return planSite(parameters)
}

function parametersFile(site: Site): string {
  return join(site.folder, 'parameters.json')
}

/** Keeps the logs of a cluster that goes: those of the control plane, of each node, and of its pods. */
export function saveLogs(site: Site, to: string): void {
  if (!existsSync(site.folder)) return
  rmSync(to, { recursive: true, force: true })
  const isLog = (file: string) => file.endsWith('.log')
  for (const folder of [site.folder, ...site.nodes.map(node => node.folder)]) {
    if (!existsSync(folder)) continue
    const target = folder === site.folder ? to : join(to, basename(folder))
    cpSync(folder, target, { recursive: true, filter: file => file === folder || isLog(file) })
    const pods = join(folder, 'log')
    // kubelet's links lead nowhere outside of the node, and a linter warns of each of them.
    const isFile = (file: string) => !lstatSync(file).isSymbolicLink()
    if (existsSync(pods)) cpSync(pods, join(target, 'log'), { recursive: true, filter: isFile })
  }
}
