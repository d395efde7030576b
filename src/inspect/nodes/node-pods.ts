import { systemClock } from '../../base/clock.ts'
import { failureText } from '../../base/errors.ts'
import { fieldOf, listAt, textAt } from '../../base/plain-data.ts'
import { compareTexts, count, oneLine } from '../../base/text.ts'
import { EXIT_DIFFERENT, EXIT_FINE, type Io } from '../../cli/io.ts'
import { quote } from '../../config/flag.ts'
import { isJson, type Json } from '../../model/fields.ts'
import { type ClusterClient, openClusterClient } from './cluster-client.ts'
import type { Impersonation } from './kubeconfig-files.ts'

export interface PodOptions {
  /** Empty for all. */
  readonly nodes: readonly string[]
  readonly kubeconfigs: readonly string[]
  readonly context: string | undefined
  readonly impersonation: Impersonation
  readonly namespace: string
  /** The pods of the first of these label selectors that finds any. */
  readonly selectors: readonly string[]
  /** Empty for the container of kprobe, or of kube-proxy, whose image kprobe's may replace. */
  readonly container: string
  readonly concurrency: number
  readonly timeoutMs: number
}

/** One node with its pod; undefined where a node that was named has none. */
export interface Target {
  readonly node: string
  readonly pod: string | undefined
  readonly container: string
  readonly isReady: boolean
}

/** The output and exit code of a command in a pod, or the reason for which there is none. */
export type PodAnswer =
  | { readonly kind: 'ended'; readonly result: 'fine' | 'differs'; readonly stdout: Buffer }
  | { readonly kind: 'unknown'; readonly why: string }

const INTERRUPTED: PodAnswer = { kind: 'unknown', why: 'interrupted' }

export interface NodeResult {
  readonly node: string
  readonly pod: string
  /** `unknown`: the node did not answer. */
  readonly result: 'fine' | 'differs' | 'unknown'
  readonly detail: string
}

export function totalText(results: readonly Pick<NodeResult, 'result'>[]): string {
  const of = (result: NodeResult['result']) => results.filter(each => each.result === result).length
  return `${count(results.length, 'node')}: ${of('fine')} ok, ${of('differs')} differ, ${of('unknown')} did not answer`
}

interface PodCommand {
  /** The arguments without the program. */
  readonly argv: readonly string[]
  readonly outputBytesMax: number
  readonly signal: AbortSignal
}

/** The pods of kprobe, in which commands run through the API server. */
export class NodePods {
  readonly #options: PodOptions
  readonly #client: ClusterClient

  static async open(options: PodOptions, io: Io): Promise<NodePods> {
    const warn = (text: string) => io.err(`kprobe nodes: ${oneLine(text)}\n`)
    return new NodePods(options, await openClusterClient({ ...options, env: process.env, warn }))
  }

  private constructor(options: PodOptions, client: ClusterClient) {
    this.#options = options
    this.#client = client
  }

  async targets(signal: AbortSignal): Promise<readonly Target[]> {
    const { selectors, namespace } = this.#options
    for (const selector of selectors) {
      const targets = await findPods(this.#client, { ...this.#options, selector }, signal)
      if (targets.length > 0) return targets
    }
    const labels = selectors.map(quote).join(' or ')
    throw new Error(
      `no pod with the labels ${labels} in namespace ${quote(namespace)}; see --selector and --namespace`,
    )
  }

  /** Runs a command in the pod of each node, a bounded number at once, and hands over each answer as it comes. */
  async ask(
    targets: readonly Target[],
    command: PodCommand,
    take: (target: Target, answer: PodAnswer) => Promise<void> | void,
  ): Promise<void> {
    const waiting = [...targets]
    const work = async () => {
      for (let target = waiting.shift(); target !== undefined; target = waiting.shift())
        await take(target, await this.#askOne(target, command))
    }
    await Promise.all(Array.from({ length: Math.min(this.#options.concurrency, targets.length) }, work))
  }

  async #askOne(
    { pod, container }: Target,
    { argv, outputBytesMax, signal }: PodCommand,
  ): Promise<PodAnswer> {
    if (signal.aborted) return INTERRUPTED
    if (pod === undefined) return { kind: 'unknown', why: 'no pod of kprobe runs there' }
    const { namespace, timeoutMs } = this.#options
    const late = new AbortController()
    const cancel = systemClock.after(timeoutMs, () => late.abort())
    try {
      const command = ['kprobe', ...argv]
      const asked = {
        namespace,
        pod,
        container,
        command,
        outputBytesMax,
        signal: AbortSignal.any([signal, late.signal]),
      }
      const { code, stdout, stderr } = await this.#client.exec(asked)
      if (code === EXIT_FINE || code === EXIT_DIFFERENT)
        return { kind: 'ended', result: code === EXIT_FINE ? 'fine' : 'differs', stdout }
      const last = stderr.toString('utf8').trim().split('\n').at(-1)
      return { kind: 'unknown', why: last || `exit code ${code}` }
    } catch (error) {
      if (signal.aborted) return INTERRUPTED
      const why = late.signal.aborted ? `no answer within ${timeoutMs / 1_000} s` : failureText(error)
      return { kind: 'unknown', why: container !== 'kprobe' && NOT_FOUND.test(why) ? NOT_OURS : why }
    } finally {
      cancel()
    }
  }

  close(): void {
    this.#client.close()
  }
}

/** The words of runc and crun. */
const NOT_FOUND = /executable file .*not found/
const NOT_OURS = "the image of this pod has no command kprobe: it is kube-proxy's"

const PAGE = 100

async function findPods(
  client: ClusterClient,
  { namespace, selector, nodes, timeoutMs, container }: PodOptions & { readonly selector: string },
  signal: AbortSignal,
): Promise<readonly Target[]> {
  const found: Target[] = []
  for (let next: string | undefined = ''; next !== undefined; ) {
    const query = new URLSearchParams({ labelSelector: selector, limit: String(PAGE), continue: next })
    const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods?${query}`
    const page = await client.get(path, { signal, timeoutMs })
    found.push(...listAt(page, 'items').flatMap(pod => targetOf(pod, container)))
    next = textAt(fieldOf(page, 'metadata'), 'continue') || undefined
  }
  const running = found.filter(({ pod }) => pod !== undefined)
  if (found.length === 0) return []
  const wanted = nodes.length === 0 ? found.map(({ node }) => node) : nodes
  const lacking = new Set(wanted.filter(node => !running.some(target => target.node === node)))
  const targets = [
    ...running.filter(({ node }) => nodes.length === 0 || nodes.includes(node)),
    ...[...lacking].map(node => ({ node, ...NO_POD })),
  ]
  return targets.sort((a, b) => compareTexts(a.node, b.node))
}

const NO_POD = { pod: undefined, container: '', isReady: false } as const

/** A pod that ends is replaced by another on its node. Until then its node has none, nor where a pod is not scheduled. */
function targetOf(pod: unknown, container: string): readonly Target[] {
  const [metadata, spec] = [fieldOf(pod, 'metadata'), fieldOf(pod, 'spec')]
  const [name, scheduled] = [textAt(metadata, 'name'), textAt(spec, 'nodeName')]
  if (name === '') return []
  const node = scheduled || plannedNode(spec) || `(pod ${name} is not scheduled)`
  if (scheduled === '' || fieldOf(metadata, 'deletionTimestamp') !== undefined) return [{ node, ...NO_POD }]
  const isReady = listAt(fieldOf(pod, 'status'), 'conditions').some(
    each => textAt(each, 'type') === 'Ready' && textAt(each, 'status') === 'True',
  )
  return [{ node, pod: name, container: container || containerIn(spec), isReady }]
}

/** The names of the manifests here, and of kubeadm's DaemonSet. */
const CONTAINERS: readonly string[] = ['kprobe', 'kube-proxy']

function containerIn(spec: unknown): string {
  const names = listAt(spec, 'containers').map(each => textAt(each, 'name'))
  return CONTAINERS.find(name => names.includes(name)) ?? names[0] ?? ''
}

/** The node that the controller of a DaemonSet chose for a pod that is not scheduled; empty where it chose none. */
function plannedNode(spec: unknown): string {
  const affinity = fieldOf(fieldOf(spec, 'affinity'), 'nodeAffinity')
  const required = fieldOf(affinity, 'requiredDuringSchedulingIgnoredDuringExecution')
  const fields = listAt(required, 'nodeSelectorTerms').flatMap(term => listAt(term, 'matchFields'))
  const [node] = listAt(
    fields.find(field => textAt(field, 'key') === 'metadata.name'),
    'values',
  )
  return typeof node === 'string' ? node : ''
}

export function parsed(bytes: Buffer): Json {
  const value: unknown = JSON.parse(bytes.toString('utf8'))
  return isJson(value) ? value : {}
}
