import type { ChildProcess } from 'node:child_process'
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { eventually } from '../support/patience.ts'
import { kubeconfigOf } from './control-plane.ts'
import type { Command, Place } from './namespaces.ts'
import type { NodeTools } from './node.ts'
import { type Form, PROCESS_IN_A_POD, podLog, startPods, stopPods } from './pods.ts'
import type { NodePlan, ProxyName, Site } from './site.ts'

const SERVES_MAX_MS = 120_000
const ENDS_MAX_MS = 30_000
const HEALTH = 'http://127.0.0.1:10256/healthz'
const METRICS = 'http://127.0.0.1:10249/metrics'
const CONFIGZ = 'http://127.0.0.1:10249/configz'
const MODE = 'http://127.0.0.1:10249/proxyMode'

/** A cluster, as far as proxies are concerned. */
interface Where {
  readonly site: Site
  readonly tools: NodeTools
}

export interface RunningProxy {
  readonly proxy: ProxyName
  readonly mode: string
  readonly form: Form
}

/** Starts the proxy in every node, and waits until each one is healthy in this mode. */
export async function startProxies(site: Site, running: RunningProxy, tools: NodeTools): Promise<void> {
  const { form } = running
  if (form === 'process') await startProcesses(site, running, tools)
  else await startPods({ site, tools, ...running, form })
  for (const node of site.nodes) {
    // kubeadm's DaemonSet has no readiness probe.
    await healthy(node, running, tools)
  }
  requireMode(site, running, tools)
  writeFileSync(stateFile(site), JSON.stringify(running))
}

/** Throws unless every proxy says that it runs in this mode. */
export function requireMode(site: Site, running: RunningProxy, tools: NodeTools): void {
  const { proxy, mode } = running
  for (const node of site.nodes) {
    const found = ask(tools, tools.namespaces.node(node.name), MODE)
    if (found !== mode)
      throw new Error(
        `${proxy} on ${node.name} runs in mode ${found}, not ${mode}: ${endOfLog(node, running)}`,
      )
  }
}

async function startProcesses(site: Site, running: RunningProxy, tools: NodeTools): Promise<void> {
  const started = site.nodes.map(node => ({ node, child: startOne(site, running, { tools, node }) }))
  for (const { node, child } of started) await healthy(node, running, tools, () => child.exitCode !== null)
}

export async function healthy(
  node: NodePlan,
  running: RunningProxy,
  tools: NodeTools,
  hasEnded: () => boolean = () => false,
): Promise<void> {
  const place = tools.namespaces.node(node.name)
  const words = () => `${running.proxy} on ${node.name} is not healthy: ${endOfLog(node, running)}`
  const isHealthy = () => {
    if (hasEnded()) throw new Error(words())
    return ask(tools, place, HEALTH) !== undefined && (running.proxy === 'kprobe' || hasSynced(tools, place))
  }
  await eventually(isHealthy, { limitMs: SERVES_MAX_MS, describe: words })
}

/** Kills the proxy of every node, with `meanwhile` before it starts again; kubelet starts a pod again by itself. */
export async function killProxies(
  running: RunningProxy,
  { site, tools }: Where,
  meanwhile: () => void,
): Promise<void> {
  const pattern =
    running.form === 'process' ? join(site.folder, '.*proxy.json') : PROCESS_IN_A_POD[running.proxy]
  for (const node of site.nodes) {
    const place = tools.namespaces.node(node.name)
    tools.namespaces.must({ file: 'pkill', args: ['-KILL', '-f', pattern] }, { place })
  }
  meanwhile()
  if (running.form === 'process') await startProcesses(site, running, tools)
  else for (const node of site.nodes) await healthy(node, running, tools)
}

/** After its node has started: a process needs somebody who starts it, and a pod starts by itself. */
export async function resumeProxy({ site, tools }: Where, node: NodePlan): Promise<void> {
  const running = runningProxy(site)
  if (running === undefined) return
  const child = running.form === 'process' ? startOne(site, running, { tools, node }) : undefined
  await healthy(node, running, tools, () => (child?.exitCode ?? null) !== null)
}

/** Node by node: the proxy ends, leaves its rules, and the next one takes over. */
export async function replaceProxies({ site, tools }: Where, next: RunningProxy): Promise<void> {
  const before = runningProxy(site)
  for (const node of site.nodes) {
    if (before !== undefined) await stopOne(node, before, tools)
    const child = startOne(site, next, { tools, node })
    await healthy(node, next, tools, () => child.exitCode !== null)
  }
  requireMode(site, next, tools)
  writeFileSync(stateFile(site), JSON.stringify(next))
}

/** Starts a process. `more` are fields of its configuration. */
export function startOne(
  site: Site,
  { proxy, mode }: RunningProxy,
  { tools, node, more = {} }: { readonly tools: NodeTools; readonly node: NodePlan; readonly more?: object },
): ChildProcess {
  const configuration = JSON.stringify({ ...configurationOf(site, node, mode), ...more }, undefined, 2)
  writeFileSync(join(node.folder, 'proxy.json'), configuration)
  const { file, args } = commandOf(proxy, tools, ['run'], node)
  const shell = ['-c', 'echo $$ > "$0"; exec "$@"', pidFile(node), file, ...args]
  const place = tools.namespaces.node(node.name)
  return tools.namespaces.start(
    { file: 'sh', args: shell, env: environmentOf(tools) },
    logFile(node, proxy),
    place,
  )
}

/** Ends the proxies, and lets each one remove its rules. */
export async function stopProxies(site: Site, tools: NodeTools): Promise<void> {
  const running = runningProxy(site)
  if (running === undefined) return
  const { form } = running
  if (form === 'process') await Promise.all(site.nodes.map(node => stopOne(node, running, tools)))
  else await stopPods({ site, tools, ...running, form })
  for (const node of site.nodes) cleanUp(node, running, tools)
  rmSync(stateFile(site))
}

/** Removes the rules that a proxy has left on a node. */
export function cleanUp(
  { name }: NodePlan,
  { proxy, mode }: Pick<RunningProxy, 'proxy' | 'mode'>,
  tools: NodeTools,
): void {
  const words = proxy === 'kprobe' ? ['cleanup', `--proxy-mode=${mode}`] : ['--cleanup']
  tools.namespaces.must(
    { ...commandOf(proxy, tools, words), env: environmentOf(tools) },
    { place: tools.namespaces.node(name) },
  )
}

export async function stopOne(
  node: NodePlan,
  running: RunningProxy,
  { namespaces }: NodeTools,
): Promise<void> {
  const place = namespaces.node(node.name)
  const pid = readFileSync(pidFile(node), 'utf8').trim()
  namespaces.run({ file: 'kill', args: [pid] }, { place })
  await eventually(() => namespaces.run({ file: 'kill', args: ['-0', pid] }, { place }).status !== 0, {
    limitMs: ENDS_MAX_MS,
    describe: () => `${running.proxy} on ${node.name} does not end: ${endOfLog(node, running)}`,
  })
}

/** The proxy of the running cluster; undefined when it has none. */
export function runningProxy(site: Site): RunningProxy | undefined {
  try {
    const { proxy, mode, form }: RunningProxy = JSON.parse(readFileSync(stateFile(site), 'utf8'))
    return { proxy, mode, form }
  } catch {
    return undefined
  }
}

export function logOf(node: NodePlan, { proxy, form }: RunningProxy): string {
  return form === 'process' ? readFileSync(logFile(node, proxy), 'utf8') : podLog(node, form)
}

function endOfLog(node: NodePlan, running: RunningProxy): string {
  return logOf(node, running).slice(-2_000)
}

function logFile(node: NodePlan, proxy: ProxyName): string {
  return join(node.folder, `${proxy}.log`)
}

function stateFile(site: Site): string {
  return join(site.folder, 'proxy.json')
}

function pidFile(node: NodePlan): string {
  return join(node.folder, 'proxy.pid')
}

/** kprobe runs from the checkout; both take the same file. */
function commandOf(proxy: ProxyName, tools: NodeTools, words: readonly string[], node?: NodePlan): Command {
  const config = node === undefined ? [] : [`--config=${join(node.folder, 'proxy.json')}`]
  return proxy === 'kprobe'
    ? { file: process.execPath, args: [join(tools.root, 'dist/kprobe.mjs'), ...words, ...config] }
    : { file: tools.binaries.path('kube-proxy'), args: [...words.filter(word => word !== 'run'), ...config] }
}

function environmentOf({ binaries }: NodeTools): Readonly<Record<string, string>> {
  return { PATH: `${binaries.searchPath}:${process.env.PATH ?? ''}:/usr/sbin:/sbin` }
}

export function metricsOf({ name }: NodePlan, tools: NodeTools): string {
  return ask(tools, tools.namespaces.node(name), METRICS) ?? ''
}

/** The configuration that the proxy of a node has, as JSON. */
export function configzOf({ name }: NodePlan, tools: NodeTools): string {
  return ask(tools, tools.namespaces.node(name), CONFIGZ) ?? ''
}

/** kube-proxy is healthy before it has written a rule. */
function hasSynced(tools: NodeTools, place: Place): boolean {
  const metrics = ask(tools, place, METRICS) ?? ''
  const families = [...metrics.matchAll(/^kubeproxy_sync_proxy_rules_last_timestamp_seconds\S* (\S+)$/gm)]
  return families.length > 0 && families.every(([, seconds]) => Number(seconds) > 0)
}

/** The body of an answer with status 200; undefined for any other. */
function ask(tools: NodeTools, place: Place, url: string): string | undefined {
  const { status, stdout } = tools.namespaces.run(
    { file: 'curl', args: ['--silent', '--fail', '--max-time', '5', url] },
    { place },
  )
  return status === 0 ? stdout.trim() : undefined
}

function configurationOf(site: Site, node: NodePlan, mode: string): object {
  return {
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    mode,
    clientConnection: { kubeconfig: kubeconfigOf(site, 'proxy') },
    clusterCIDR: site.subnets.map(({ pods }) => pods).join(','),
    // By clusterCIDR, pods of other nodes are local as well, as in kube-proxy: policy Local sends them everywhere. In other
    // modes such a connection breaks, because its reply does not pass this node; a relay serves it.
    ...(mode === 'userspace' ? { detectLocalMode: 'NodeCIDR' } : {}),
    hostnameOverride: node.name,
    // What belongs to the whole machine stays as it is.
    conntrack: { maxPerCore: 0, min: 0 },
  }
}
