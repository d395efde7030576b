import { homedir } from 'node:os'
import { join } from 'node:path'
import { systemClock } from '../base/clock.ts'
import { failureText } from '../base/errors.ts'
import { bytesText, compareTexts, count, oneLine } from '../base/text.ts'
import { FlagReader, type FlagSpec, quote, readArguments } from '../config/flag.ts'
import { HELP_FLAG } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { isJson, type Json } from '../model/fields.ts'
import { ApiError } from '../source/kube/api-client.ts'
import { type ExecClient, openExecClient } from '../source/kube/client/exec-stream.ts'
import { openApiClient } from '../source/kube/client/http-client.ts'
import { BUNDLE_BYTES_MAX, writeBundle } from './bundle.ts'
import { type JsonPathOutput, OUTPUTS, outputFlag, readOutput, writeDocument } from './document.ts'
import { type Command, EXIT_DIFFERENT, EXIT_FAILED, EXIT_FINE, EXIT_USAGE, type Io } from './io.ts'
import { tableText } from './output.ts'
import { usageErrors } from './request.ts'

const ACTIONS = ['status', 'verify', 'why', 'bundle'] as const
type Action = (typeof ACTIONS)[number]

const text = (name: string, placeholder: string, help: string, rest: Partial<FlagSpec> = {}): FlagSpec => ({
  name,
  kind: 'text',
  placeholder,
  help,
  ...rest,
})

const FLAGS: readonly FlagSpec[] = [
  { name: 'node', kind: 'list', placeholder: 'NAME', help: 'only these nodes; unset: all' },
  { name: 'all', kind: 'bool', help: 'every node, which is what happens without --node' },
  text('from', 'CLIENT', 'for why: the client, as `kprobe why` takes it'),
  text('to', 'TARGET', 'for why: the target'),
  text('folder', 'FOLDER', 'for bundle: where the files go, one a node', { default: '.' }),
  { name: 'redact', kind: 'bool', help: 'for bundle: rename names of objects, for each node on its own' },
  text('kubeconfig', 'FILE', 'unset: the file of $KUBECONFIG, or ~/.kube/config'),
  text('context', 'NAME', 'context of the kubeconfig; unset: the current one'),
  text('namespace', 'NAMESPACE', "namespace of kprobe's pods", { short: 'n', default: 'kube-system' }),
  text('selector', 'LABELS', "labels of kprobe's pods", { short: 'l', default: 'k8s-app=kprobe' }),
  text('container', 'NAME', 'container with kprobe', { short: 'c', default: 'kprobe' }),
  { name: 'concurrency', kind: 'integer', placeholder: 'N', default: '20', help: 'nodes at once' },
  { name: 'timeout', kind: 'integer', placeholder: 'SECONDS', default: '60', help: 'limit for each node' },
  outputFlag(OUTPUTS),
]

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe nodes status|verify|why|bundle [flags]',
      description:
        'Runs a command in the pods of kprobe, through the API server, and prints one table over all nodes. `kubectl kprobe`\n' +
        'is the same command. Exits 0 when all nodes are fine, 3 when some differ, and 1 when some did not answer.',
      details: [
        'What:',
        '  status   version of each kprobe, and whether its pod is ready; `kprobe status` asks relays what kernels hold',
        '  verify   whether objects, daemon and kernel agree',
        '  why      what becomes of a connection on each node: --from CLIENT --to TARGET',
        '  bundle   writes the file of `kprobe debug bundle` of each node into --folder',
        '',
        'It needs the rights to list pods, and to create pods/exec, in their namespace.',
      ],
      flags: [...FLAGS, HELP_FLAG],
    }),
  run,
}

interface Request {
  readonly action: Action
  readonly argv: readonly string[]
  /** Empty for all. */
  readonly nodes: readonly string[]
  readonly folder: string
  readonly kubeconfig: string
  readonly context: string | undefined
  readonly namespace: string
  readonly selector: string
  readonly container: string
  readonly concurrency: number
  readonly timeoutMs: number
  readonly output: (typeof OUTPUTS)[number] | JsonPathOutput
}

/** One node with its pod; undefined where a node that was named has none. */
interface Target {
  readonly node: string
  readonly pod: string | undefined
  readonly isReady: boolean
}

interface NodeResult {
  readonly node: string
  readonly pod: string
  /** Whether the node is as it should be, is not, or could not be asked. */
  readonly result: 'fine' | 'differs' | 'unknown'
  readonly detail: string
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const reader = new FlagReader(readArguments(argv, FLAGS, () => undefined))
  const request = readRequest(reader)
  if (reader.errors.length > 0 || request === undefined) return usageErrors(io, 'nodes', reader.errors)
  try {
    const results = await ask(request, io)
    if (request.output === 'text') printText(results, io)
    else await writeDocument({ nodes: results }, request.output, io)
    return exitOf(results)
  } catch (error) {
    io.err(`kprobe nodes: ${oneLine(failureText(error))}\n`)
    return error instanceof ApiError && error.kind === 'credentials' ? EXIT_USAGE : EXIT_FAILED
  }
}

function readRequest(reader: FlagReader): Request | undefined {
  const [word, ...more] = reader.positionals
  const action = ACTIONS.find(each => each === word)
  if (action === undefined)
    reader.fail(quote(word ?? ''), `no such argument; there are ${ACTIONS.join(', ')}`)
  for (const argument of more) reader.fail(quote(argument), 'no such argument')
  const value = (name: string, fallback: string) => reader.text(name) || fallback
  const nodes = reader.list('node')
  if (nodes.length > 0 && reader.bool('all')) reader.fail('--all', 'contradicts --node')
  const kubeconfig = value('kubeconfig', process.env.KUBECONFIG || join(homedir(), '.kube', 'config'))
  if (kubeconfig.includes(':')) reader.fail('--kubeconfig', `${quote(kubeconfig)} is not one file`)
  const argv = argvOf(action, reader)
  const concurrency = reader.integer('concurrency', { min: 1, max: 1_000, fallback: 20 })
  const timeoutS = reader.integer('timeout', { min: 1, max: 3_600, fallback: 60 })
  const output = readOutput(reader, OUTPUTS, 'text')
  if (action === undefined) return undefined
  return {
    action,
    argv,
    nodes,
    folder: value('folder', '.'),
    kubeconfig,
    context: reader.text('context') || undefined,
    namespace: value('namespace', 'kube-system'),
    selector: value('selector', 'k8s-app=kprobe'),
    container: value('container', 'kprobe'),
    concurrency,
    timeoutMs: timeoutS * 1_000,
    output,
  }
}

/** The command that runs in each pod. */
function argvOf(action: Action | undefined, reader: FlagReader): readonly string[] {
  const [from, to] = [reader.text('from') ?? '', reader.text('to') ?? '']
  if (action === 'why') {
    for (const [name, given] of Object.entries({ from, to }))
      if (given === '') reader.fail(`--${name}`, 'is needed for why')
    return ['why', `--from=${from}`, `--to=${to}`, '--output=json']
  }
  if (from !== '' || to !== '') reader.fail(from === '' ? '--to' : '--from', 'is for why')
  if (action !== 'bundle' && reader.given('redact')) reader.fail('--redact', 'is for bundle')
  if (action !== 'bundle' && reader.given('folder')) reader.fail('--folder', 'is for bundle')
  if (action === 'bundle')
    return ['debug', 'bundle', '--output=-', ...(reader.bool('redact') ? ['--redact'] : [])]
  return action === 'verify' ? ['verify', '--output=json'] : ['version', '--output=json']
}

async function ask(request: Request, io: Io): Promise<readonly NodeResult[]> {
  const targets = await findPods(request, io)
  if (targets.length === 0)
    throw new Error(
      `no pod with the labels ${quote(request.selector)} in namespace ${quote(request.namespace)}; see --selector and --namespace`,
    )
  const client = await openExecClient(clientOptions(request, io))
  const results: NodeResult[] = []
  const waiting = [...targets]
  const running = new Set<AbortController>()
  const interrupted = () => {
    for (const each of running) each.abort('interrupted')
  }
  io.signal.addEventListener('abort', interrupted)
  const work = async () => {
    for (let target = waiting.shift(); target !== undefined; target = waiting.shift())
      results.push(
        io.signal.aborted
          ? unknown(target, 'interrupted')
          : await askNode(target, request, { client, io, running }),
      )
  }
  try {
    await Promise.all(Array.from({ length: Math.min(request.concurrency, targets.length) }, work))
  } finally {
    client.close()
    io.signal.removeEventListener('abort', interrupted)
  }
  return results.sort((a, b) => compareTexts(a.node, b.node))
}

function clientOptions({ kubeconfig, context }: Request, io: Io) {
  const warn = (text: string) => io.err(`kprobe nodes: ${oneLine(text)}\n`)
  return { kubeconfig, master: '', context, clock: systemClock, env: process.env, warn }
}

/** Pods on one page of the list. */
const PAGE = 100

/** Lists the pods of the DaemonSet, page by page. */
async function findPods(request: Request, io: Io): Promise<readonly Target[]> {
  const { namespace, selector, nodes, timeoutMs } = request
  const client = await openApiClient({ ...clientOptions(request, io), qps: 0, burst: 1 })
  const found: Target[] = []
  try {
    for (let next: string | undefined = ''; next !== undefined; ) {
      const query = new URLSearchParams({ labelSelector: selector, limit: String(PAGE), continue: next })
      const response = await client.send({
        method: 'GET',
        path: `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods?${query}`,
        accept: 'application/json',
        idleMs: timeoutMs,
        longLived: false,
        signal: io.signal,
      })
      const chunks: Uint8Array[] = []
      for await (const chunk of response.body) chunks.push(chunk)
      const body = parsed(Buffer.concat(chunks))
      if (response.status !== 200)
        throw new Error(`listing pods of ${namespace}: status ${response.status}: ${String(body.message)}`)
      const items = Array.isArray(body.items) ? body.items.filter(isJson) : []
      found.push(...items.flatMap(targetOf))
      const after = partOf(body, 'metadata').continue
      next = typeof after === 'string' && after !== '' ? after : undefined
    }
  } finally {
    await client.close()
  }
  const running = found.filter(({ pod }) => pod !== undefined)
  const wanted = nodes.length === 0 ? found.map(({ node }) => node) : nodes
  const lacking = new Set(wanted.filter(node => !running.some(target => target.node === node)))
  return [
    ...running.filter(({ node }) => nodes.length === 0 || nodes.includes(node)),
    ...[...lacking].map(node => ({ node, pod: undefined, isReady: false })),
  ]
}

/** A pod that ends is replaced by another on its node. Until then its node has none, nor where a pod is not scheduled. */
function targetOf(pod: Json): readonly Target[] {
  const { name, deletionTimestamp } = partOf(pod, 'metadata')
  const { nodeName = plannedNode(pod) } = partOf(pod, 'spec')
  const { conditions } = partOf(pod, 'status')
  if (typeof name !== 'string' || typeof nodeName !== 'string') return []
  if (deletionTimestamp !== undefined || partOf(pod, 'spec').nodeName === undefined)
    return [{ node: nodeName, pod: undefined, isReady: false }]
  const isReady =
    Array.isArray(conditions) &&
    conditions.some(each => isJson(each) && each.type === 'Ready' && each.status === 'True')
  return [{ node: nodeName, pod: name, isReady }]
}

/** The node that the controller of a DaemonSet chose for a pod that is not scheduled; else the name of the pod, in words. */
function plannedNode(pod: Json): string {
  const affinity = partOf(partOf(partOf(pod, 'spec'), 'affinity'), 'nodeAffinity')
  const { nodeSelectorTerms } = partOf(affinity, 'requiredDuringSchedulingIgnoredDuringExecution')
  const terms = Array.isArray(nodeSelectorTerms) ? nodeSelectorTerms.filter(isJson) : []
  const fields = terms.flatMap(({ matchFields }) =>
    Array.isArray(matchFields) ? matchFields.filter(isJson) : [],
  )
  const values = fields.find(({ key }) => key === 'metadata.name')?.values
  const [node]: unknown[] = Array.isArray(values) ? values : []
  return typeof node === 'string' ? node : `(pod ${String(partOf(pod, 'metadata').name)} is not scheduled)`
}

function partOf(value: Json, field: string): Json {
  const part = value[field]
  return isJson(part) ? part : {}
}

function parsed(bytes: Buffer): Json {
  const value: unknown = JSON.parse(bytes.toString('utf8'))
  return isJson(value) ? value : {}
}

interface Asking {
  readonly client: ExecClient
  readonly io: Io
  /** Ends the commands that run. */
  readonly running: Set<AbortController>
}

/** Maximum bytes that a command prints; a bundle is longer. */
const OUTPUT_BYTES_MAX = 16 * 1024 * 1024

async function askNode(
  target: Target,
  request: Request,
  { client, io, running }: Asking,
): Promise<NodeResult> {
  const { pod } = target
  if (pod === undefined) return unknown(target, 'no pod of kprobe runs there')
  const { action, namespace, container, argv, timeoutMs } = request
  const late = new AbortController()
  const cancel = systemClock.after(timeoutMs, () => late.abort(`no answer within ${timeoutMs / 1_000} s`))
  running.add(late)
  try {
    const { code, stdout, stderr } = await client.exec({
      namespace,
      pod,
      container,
      command: ['kprobe', ...argv],
      outputBytesMax: action === 'bundle' ? BUNDLE_BYTES_MAX : OUTPUT_BYTES_MAX,
      signal: late.signal,
    })
    if (code !== EXIT_FINE && code !== EXIT_DIFFERENT)
      return unknown(target, stderr.toString('utf8').trim().split('\n').at(-1) || `exit code ${code}`)
    const result = code === EXIT_FINE ? 'fine' : 'differs'
    if (action === 'bundle')
      return { ...named(target), result, detail: await save(target, stdout, { request, io }) }
    const detail = detailOf(action, parsed(stdout))
    if (action === 'status' && !target.isReady)
      return { ...named(target), result: 'differs', detail: `${detail}; the pod is not ready` }
    return { ...named(target), result, detail }
  } catch (error) {
    return unknown(target, late.signal.aborted ? String(late.signal.reason) : failureText(error))
  } finally {
    cancel()
    running.delete(late)
  }
}

function named({ node, pod = '' }: Target): Pick<NodeResult, 'node' | 'pod'> {
  return { node, pod }
}

function unknown(target: Target, detail: string): NodeResult {
  return { ...named(target), result: 'unknown', detail }
}

function detailOf(action: Action, answer: Json): string {
  if (action === 'why') return String(answer.answer)
  if (action === 'status') return `kprobe ${String(answer.version)}`
  const differences = Array.isArray(answer.differences) ? answer.differences.length : 0
  return differences === 0
    ? 'objects, daemon and kernel agree'
    : `${count(differences, 'difference')}; kprobe verify names them`
}

async function save(
  { node }: Target,
  bytes: Buffer,
  { request, io }: { readonly request: Request; readonly io: Io },
): Promise<string> {
  if (!/^[a-z0-9][a-z0-9.-]*$/.test(node)) throw new Error(`${quote(node)} is no name of a node`)
  const path = join(request.folder, `kprobe-bundle-${node}.tar.gz`)
  await writeBundle(path, bytes, io.processId)
  return `${path}: ${bytesText(bytes.length)}`
}

const MARKS: Readonly<Record<NodeResult['result'], string>> = {
  fine: 'ok',
  differs: 'DIFFERS',
  unknown: 'UNKNOWN',
}

function printText(results: readonly NodeResult[], io: Io): void {
  const rows = results.map(({ node, pod, result, detail }) => [node, pod || '-', MARKS[result], detail])
  io.out(tableText(['NODE', 'POD', 'RESULT', 'DETAIL'], rows, io))
  const of = (result: NodeResult['result']) => results.filter(each => each.result === result).length
  io.out(
    `${count(results.length, 'node')}: ${of('fine')} ok, ${of('differs')} differ, ${of('unknown')} did not answer\n`,
  )
}

function exitOf(results: readonly NodeResult[]): number {
  if (results.some(({ result }) => result === 'unknown')) return EXIT_FAILED
  return results.some(({ result }) => result === 'differs') ? EXIT_DIFFERENT : EXIT_FINE
}
