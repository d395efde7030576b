import { homedir } from 'node:os'
import { delimiter, join } from 'node:path'
import { failureText } from '../../base/errors.ts'
import { fieldOf, listAt, textAt } from '../../base/plain-data.ts'
import { bytesText, count, oneLine, rfc3339 } from '../../base/text.ts'
import { OUTPUTS, outputFlag, writeDocument } from '../../cli/document.ts'
import { EXIT_DIFFERENT, EXIT_FAILED, EXIT_FINE, EXIT_USAGE, type Io, lent, tableText } from '../../cli/io.ts'
import { failWord, ownCommand } from '../../cli/request.ts'
import { type FlagReader, type FlagSpec, flags, quote } from '../../config/flag.ts'
import type { Json } from '../../model/fields.ts'
import { ApiError } from '../../source/kube/api-client.ts'
import { BUNDLE_BYTES_MAX, writeBundle } from '../bundle-file.ts'
import { migrateScript } from './migrate-script.ts'
import {
  NodePods,
  type NodeResult,
  type PodAnswer,
  type PodOptions,
  parsed,
  type Target,
  totalText,
} from './node-pods.ts'
import { NODE_SORTS, type NodeRow, type NodeSort, sortedRows, topRow, topTable } from './nodes-top.ts'

const MARKS: Readonly<Record<NodeResult['result'], string>> = {
  fine: 'ok',
  differs: 'DIFFERS',
  unknown: 'UNKNOWN',
}

const ACTIONS = ['status', 'verify', 'why', 'top', 'bundle', 'migrate'] as const
type Action = (typeof ACTIONS)[number]

const INTERVAL = { minMs: 200, fallbackMs: 1_000 } as const

const FLAGS: readonly FlagSpec[] = [
  ...flags({
    '--node NAME': ['only these nodes; unset: all', { kind: 'list' }],
    '--all': 'every node, as without --node',
    '--from CLIENT': 'for why: the client, as in `kprobe why`',
    '--to TARGET': 'for why: the target',
    '--folder FOLDER = .': 'for bundle: where the files go, one a node',
    '--redact': 'for bundle: rename names of objects, for each node on its own',
    '--sort-by COLUMN = name': [`for top: ${NODE_SORTS.join(', ')}`, { choices: NODE_SORTS }],
    '--interval DURATION = 1s': 'for top: time that each node measures; at least 200ms',
    '--check COMMAND':
      'for migrate: a line for the shell that succeeds while the node serves; the script goes back when it fails',
    '--kubeconfig FILE': 'unset: the files of $KUBECONFIG, which are merged, or ~/.kube/config',
    '--context NAME': 'context of the kubeconfig; unset: the current one',
    '--as USER': 'user to impersonate; --as-group and --as-uid add to it',
    '--as-group GROUP': ['groups to impersonate', { kind: 'list' }],
    '--as-uid UID': 'uid to impersonate',
    '-n, --namespace NAMESPACE = kube-system': "namespace of kprobe's pods",
    '-l, --selector LABELS':
      "labels of kprobe's pods; unset: k8s-app=kprobe, or, where no pod has it, k8s-app=kube-proxy, whose image kprobe's may replace",
    '-c, --container NAME': 'container with kprobe; unset: kprobe, else kube-proxy',
    '--concurrency N = 20': 'maximum number of nodes at a time',
    '--timeout SECONDS = 60': 'limit for each node',
  }),
  outputFlag(OUTPUTS),
]

export const command = ownCommand({
  name: 'nodes',
  usage: 'status|verify|why|top|bundle|migrate [flags]',
  description:
    'Runs a command in the pods of kprobe, through the API server, and prints one table over all nodes. `kubectl kprobe`\n' +
    'is the same command. Exits 0 when all nodes are fine, 3 when some differ, and 1 when some did not answer.',
  details: [
    'What:',
    '  status   whether each node is well, and its worst problem; `kprobe relay status` reads the state of kernels from relays',
    '  verify   whether objects, daemon and kernel agree',
    '  why      what happens to a connection on each node: --from CLIENT --to TARGET',
    '  top      new connections and rejects a second, connection table, source, commits and repairs',
    '  bundle   writes the file of `kprobe debug bundle` of each node into --folder',
    '  migrate  prints a shell script of kubectl commands that moves the node of --node from kube-proxy to kprobe, and back if a check fails within --timeout',
    '',
    'It needs the rights to list pods, and to create pods/exec, in their namespace.',
  ],
  flags: FLAGS,
  takesArguments: true,
  read: readRequest,
  run,
})

interface Request extends PodOptions {
  readonly action: Action
  readonly argv: readonly string[]
  readonly check: string
  readonly kubectlFlags: readonly string[]
  readonly folder: string
  readonly sort: NodeSort
  readonly output: (typeof OUTPUTS)[number]
}

async function run(request: Request, io: Io): Promise<number> {
  if (request.action === 'migrate') {
    io.out(scriptOf(request))
    return EXIT_FINE
  }
  try {
    return await lent(await NodePods.open(request, io), pods => ask(request, pods, io))
  } catch (error) {
    if (!(error instanceof ApiError) || error.kind !== 'credentials') throw error
    io.err(`kprobe nodes: ${oneLine(failureText(error))}\n`)
    return EXIT_USAGE
  }
}

function scriptOf({ nodes, namespace, timeoutMs, kubectlFlags, check }: Request): string {
  return migrateScript({ node: nodes.join(), namespace, kubectlFlags, check, timeoutS: timeoutMs / 1_000 })
}

/** The flags of this command that kubectl has, too. */
const KUBECTL_FLAGS: readonly string[] = ['kubeconfig', 'context', 'as', 'as-uid']

function kubectlFlagsOf(reader: FlagReader): readonly string[] {
  const texts = KUBECTL_FLAGS.map(name => [name, reader.text(name) ?? ''] as const)
  return [
    ...texts.filter(([, text]) => text !== ''),
    ...reader.list('as-group').map(group => ['as-group', group] as const),
  ].map(([name, text]) => `--${name}=${text}`)
}

const NODE_NAME = /^[a-z0-9][a-z0-9.-]*$/

function readRequest(reader: FlagReader): Request | undefined {
  const [word, ...more] = reader.positionals
  const action = ACTIONS.find(each => each === word)
  if (action === undefined) failWord(reader, 'COMMAND', word, `there are ${ACTIONS.join(', ')}`)
  for (const argument of more) reader.fail(quote(argument), 'no such argument')
  const value = (name: string, fallback: string) => reader.text(name) || fallback
  const nodes = reader.list('node')
  if (nodes.length > 0 && reader.bool('all')) reader.fail('--all', 'contradicts --node')
  if (action === 'migrate' && (nodes.length !== 1 || !NODE_NAME.test(nodes.join())))
    reader.fail('--node', 'migrate moves one node: give its name')
  const kubeconfig = reader.text('kubeconfig') ?? ''
  if (kubeconfig.includes(':')) reader.fail('--kubeconfig', `${quote(kubeconfig)} is not one file`)
  const argv = argvOf(action, reader)
  const concurrency = reader.integer('concurrency', { min: 1, max: 1_000, fallback: 20 })
  const timeoutS = reader.integer('timeout', { min: 1, max: 3_600, fallback: 60 })
  const output = reader.oneOf('output', OUTPUTS, 'text')
  const sort = reader.oneOf('sort-by', NODE_SORTS, 'name')
  if (action === undefined) return undefined
  return {
    action,
    argv,
    nodes,
    check: reader.text('check') ?? '',
    kubectlFlags: kubectlFlagsOf(reader),
    folder: value('folder', '.'),
    sort,
    kubeconfigs: kubeconfig === '' ? defaultKubeconfigs() : [kubeconfig],
    context: reader.text('context') || undefined,
    impersonation: { user: value('as', ''), groups: reader.list('as-group'), uid: value('as-uid', '') },
    namespace: value('namespace', 'kube-system'),
    selectors: reader.text('selector') ? [value('selector', '')] : PODS_OF_KPROBE,
    container: value('container', ''),
    concurrency,
    timeoutMs: timeoutS * 1_000,
    output,
  }
}

/** Those of the manifests here, and of kubeadm's DaemonSet of kube-proxy. */
const PODS_OF_KPROBE = ['k8s-app=kprobe', 'k8s-app=kube-proxy'] as const

function defaultKubeconfigs(): readonly string[] {
  const files = (process.env.KUBECONFIG ?? '').split(delimiter).filter(path => path !== '')
  return files.length > 0 ? files : [join(homedir(), '.kube', 'config')]
}

const ONLY_FOR: readonly (readonly [flag: string, action: Action])[] = [
  ['redact', 'bundle'],
  ['folder', 'bundle'],
  ['sort-by', 'top'],
  ['interval', 'top'],
  ['check', 'migrate'],
]

function argvOf(action: Action | undefined, reader: FlagReader): readonly string[] {
  const intervalMs = reader.durationMs('interval', INTERVAL)
  const [from, to] = [reader.text('from') ?? '', reader.text('to') ?? '']
  for (const [name, its] of ONLY_FOR)
    if (action !== its && reader.given(name)) reader.fail(`--${name}`, `is for ${its}`)
  if (action === 'why') {
    for (const [name, given] of Object.entries({ from, to }))
      if (given === '') reader.fail(`--${name}`, 'is needed for why')
    return ['why', `--from=${from}`, `--to=${to}`, '--output=json']
  }
  if (from !== '' || to !== '') reader.fail(from === '' ? '--to' : '--from', 'is for why')
  if (action === 'top') return ['top', '--once', '--limit=1', `--interval=${intervalMs}ms`, '--output=json']
  if (action === 'bundle')
    return ['debug', 'bundle', '--output=-', ...(reader.bool('redact') ? ['--redact'] : [])]
  return [action === 'verify' ? 'verify' : 'status', '--output=json']
}

async function ask(request: Request, pods: NodePods, io: Io): Promise<number> {
  const { action, argv, output, sort } = request
  const rows: NodeRow[] = []
  const outputBytesMax = action === 'bundle' ? BUNDLE_BYTES_MAX : OUTPUT_BYTES_MAX
  const command = { argv, outputBytesMax, signal: io.signal }
  await pods.ask(await pods.targets(io.signal), command, async (target, answer) => {
    rows.push(await rowOf(target, answer, { request, io }))
  })
  const sorted = sortedRows(rows, sort)
  if (output === 'text') {
    io.out(action === 'top' ? topTable(sorted, io) : resultTable(sorted, io))
    io.out(`${totalText(sorted)}\n`)
  } else await writeDocument({ nodes: sorted }, output, io)
  return exitOf(sorted)
}

/** Maximum bytes that a command prints; a bundle is longer. */
const OUTPUT_BYTES_MAX = 16 * 1024 * 1024

async function rowOf(
  target: Target,
  answer: PodAnswer,
  { request, io }: { readonly request: Request; readonly io: Io },
): Promise<NodeRow> {
  if (request.action === 'top') return topRow(target, answer, rfc3339(Date.now()))
  const { node, pod = '' } = target
  if (answer.kind === 'unknown') {
    const isOld = request.action === 'status' && /--?relay|relay\.sock/.test(answer.why)
    return { node, pod, result: 'unknown', detail: isOld ? OLD : answer.why }
  }
  const { result, stdout } = answer
  try {
    if (request.action === 'bundle')
      return { node, pod, result, detail: await save(target, stdout, { request, io }) }
    const detail = detailOf(request.action, parsed(stdout))
    if (request.action === 'status' && !target.isReady)
      return { node, pod, result: 'differs', detail: `${detail}; the pod is not ready` }
    return { node, pod, result, detail }
  } catch (error) {
    return { node, pod, result: 'unknown', detail: failureText(error) }
  }
}

function detailOf(action: Action, answer: Json): string {
  if (action === 'why') return String(answer.answer)
  if (action === 'status') return statusDetail(answer)
  const differences = listAt(answer, 'differences').length
  return differences === 0
    ? 'objects, daemon and kernel agree'
    : `${count(differences, 'difference')}; kprobe verify names them`
}

/** `kprobe status` of the last release was that of relays. */
const OLD = 'an older kprobe runs there, which has no status of its node: upgrade it'

/** Gives the version and the worst problem, or the sentence of a node without problems. */
function statusDetail(answer: Json): string {
  const sentence = textAt(answer, 'sentence')
  if (sentence === '') throw new Error('the answer is not the status of a node')
  const daemon = listAt(answer, 'facts').find(fact => textAt(fact, 'name') === 'daemon')
  const [version = ''] = textAt(fieldOf(daemon, 'values'), 'version').split(' ')
  const [worst, ...others] = listAt(answer, 'problems')
  const more = others.length === 0 ? '' : `; ${count(others.length, 'more problem')}`
  const what = worst === undefined ? sentence : `${textAt(worst, 'text')}${more}`
  return version === '' ? what : `${version}: ${what}`
}

async function save(
  { node }: Target,
  bytes: Buffer,
  { request, io }: { readonly request: Request; readonly io: Io },
): Promise<string> {
  if (!NODE_NAME.test(node)) throw new Error(`${quote(node)} is not a node name`)
  const path = join(request.folder, `kprobe-bundle-${node}.tar.gz`)
  await writeBundle(path, bytes, io.processId)
  return `${path}: ${bytesText(bytes.length)}`
}

function resultTable(results: readonly NodeResult[], io: Io): string {
  const rows = results.map(({ node, pod, result, detail }) => [node, pod || '-', MARKS[result], detail])
  return tableText(['NODE', 'POD', 'RESULT', 'DETAIL'], rows, io)
}

function exitOf(results: readonly Pick<NodeResult, 'result'>[]): number {
  if (results.some(({ result }) => result === 'unknown')) return EXIT_FAILED
  return results.some(({ result }) => result === 'differs') ? EXIT_DIFFERENT : EXIT_FINE
}
