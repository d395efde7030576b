import { pause, systemClock } from '../base/clock.ts'
import { failureText } from '../base/errors.ts'
import { compareTexts, count, oneLine } from '../base/text.ts'
import { isDocument, outputFlag, writeDocument } from '../cli/document.ts'
import { EXIT_DIFFERENT, EXIT_FAILED, EXIT_FINE, type Io, tableText } from '../cli/io.ts'
import { ownCommand } from '../cli/request.ts'
import { type FlagReader, type FlagSpec, flag, flags, quote } from '../config/flag.ts'
import { RELAY_CLIENT_FLAGS } from '../config/flags.ts'
import { readRelays } from '../config/own-flags.ts'
import { isDnsLabel } from '../model/fields.ts'
import { isOlder } from '../source/kube/object-index.ts'
import type { Http2Link } from './connection.ts'
import { type Goal, judgeNode, mergeNodes, NODE_STATES, type NodeVerdict, newest } from './judgement.ts'
import { openLinks } from './open.ts'
import { askStatus, type RelayAnswer } from './status.ts'

const OUTPUTS = ['text', 'wide', 'json', 'yaml'] as const
const DEFAULT_RELAY = 'unix:///run/kprobe/relay.sock'

const FLAGS: readonly FlagSpec[] = [
  flag(
    `--relay ADDRESS = ${DEFAULT_RELAY}`,
    'relays to query; each knows the nodes that read from it: unix:///PATH, tcp://IP:PORT or dns:///NAME:PORT',
    { kind: 'list' },
  ),
  ...RELAY_CLIENT_FLAGS.filter(({ name }) => name !== 'relay-zone'),
  ...flags({
    '--wait': 'return when the nodes hold the state that the relays have now',
    '--service NAMESPACE/NAME':
      'check this Service alone: a node that skips other Services counts as holding the state',
    '--revision REVISION': 'the state has to include this resourceVersion of a Service',
    '--at-least N|PERCENT% = 100%': 'nodes that have to hold the state',
    '--timeout SECONDS = 300': 'limit of --wait',
  }),
  outputFlag(OUTPUTS),
]

export const command = ownCommand({
  name: 'relay status',
  description:
    'Queries relays for the state that the kernels of nodes hold. Prints the nodes that lack the current one, since when\n' +
    'and why. Exits 0 when enough nodes hold it, 3 when not, also after --timeout, and 1 when no relay knows that state.',
  details: [
    'A node is',
    '  holds        its kernel holds all changes that the relay has',
    '  behind       some changes are not in its kernel',
    '  failing      the last write to its kernel failed',
    '  incomplete   it skips Services: quarantined or refused',
    '  silent       it has not reported for 100 s, or not since the relay started: its state is unknown',
    '',
    'Nodes report to relays by themselves (kprobe run --source=relay:ADDRESS). `kubectl kprobe status` needs no relay: it runs `kprobe status` in every pod, through the API server.',
  ],
  flags: FLAGS,
  read: readWanted,
  run,
})

type Request = ReturnType<typeof readWanted>

interface Round {
  readonly goal: Goal | undefined
  readonly verdicts: readonly NodeVerdict[]
  /** The reason for a missing goal, and the relays' errors. */
  readonly problems: readonly string[]
  /** No relay answered. */
  readonly isUnanswered: boolean
  readonly isReached: boolean
  readonly wanted: number
}

const NODES_SHOWN = 100

async function run(request: Request, io: Io): Promise<number> {
  const opened = await Promise.allSettled(
    request.addresses.map(address => openLinks(address, request, systemClock)),
  )
  const links = opened.flatMap(each => (each.status === 'fulfilled' ? each.value : []))
  for (const each of opened)
    if (each.status === 'rejected')
      io.err(`kprobe relay status: --relay: ${oneLine(failureText(each.reason))}\n`)
  try {
    const round = await ask(request, links, io)
    for (const problem of round.problems) io.err(`kprobe relay status: ${oneLine(problem)}\n`)
    if (round.goal === undefined) return EXIT_FAILED
    await print(round, round.goal, { request, io })
    return round.isReached ? EXIT_FINE : EXIT_DIFFERENT
  } finally {
    for (const { link } of links) link.close()
  }
}

function readWanted(reader: FlagReader) {
  const relays = reader.list('relay')
  const service = reader.text('service') || undefined
  const [namespace = '', name = '', ...more] = (service ?? '').split('/')
  if (service !== undefined && !(isDnsLabel(namespace) && isDnsLabel(name) && more.length === 0))
    reader.fail('--service', `${quote(service)} is not NAMESPACE/NAME`)
  const revision = reader.text('revision') ?? ''
  if (revision !== '' && !/^[1-9][0-9]{0,19}$/.test(revision))
    reader.fail('--revision', `${quote(revision)} is not a resourceVersion`)
  const waits = reader.bool('wait')
  if (!waits && reader.given('timeout')) reader.fail('--timeout', 'is for --wait')
  return {
    ...readRelays(reader, 'relay', relays.length === 0 ? [DEFAULT_RELAY] : relays),
    waits,
    service,
    revision,
    atLeast: readAtLeast(reader),
    timeoutMs: reader.integer('timeout', { min: 1, max: 86_400, fallback: 300 }) * 1_000,
    output: reader.oneOf('output', OUTPUTS, 'text'),
  }
}

function readAtLeast(reader: FlagReader) {
  const given = reader.text('at-least') || '100%'
  const [, digits = '', percent = ''] = /^(\d{1,6}(?:\.\d{1,3})?)(%?)$/.exec(given) ?? []
  const [number, isPercent] = [Number(digits), percent !== '']
  const isValid =
    digits !== '' && (isPercent ? number > 0 && number <= 100 : number >= 1 && Number.isInteger(number))
  if (!isValid)
    reader.fail('--at-least', `${quote(given)} is neither a number of nodes nor a share such as 99%`)
  return { number, isPercent }
}

interface Relay {
  readonly address: string
  readonly link: Http2Link
}

async function ask(request: Request, relays: readonly Relay[], io: Io): Promise<Round> {
  const untilMs = systemClock.nowMs() + request.timeoutMs
  let saidMs = systemClock.nowMs()
  let isMute = true
  let goal: Goal | undefined
  for (;;) {
    const round = await askAll(request, relays, goal)
    goal = round.goal
    const nowMs = systemClock.nowMs()
    const isOver = round.isReached || !request.waits || io.signal.aborted || nowMs >= untilMs
    if (isOver) return round
    // Without an answer the address may be wrong: the first round says so, also in a pipe.
    if ((isMute && round.isUnanswered) || (io.terminal && nowMs - saidMs >= 2_000)) {
      isMute = false
      saidMs = nowMs
      io.err(`${oneLine(progressText(round))}\n`)
    }
    // Two questions a second; a line of progress every 2 s.
    await pause(systemClock, Math.min(500, untilMs - nowMs), io.signal)
  }
}

/** Asks every relay. The goal is that of the first answers, and stays. */
async function askAll(request: Request, relays: readonly Relay[], before: Goal | undefined): Promise<Round> {
  const problems: string[] = []
  const asked = relays.map(async ({ address, link }) => {
    try {
      return await askStatus(link, systemClock)
    } catch (error) {
      problems.push(`${address}: ${failureText(error)}`)
      return undefined
    }
  })
  const answers = (await Promise.all(asked)).filter(answer => answer !== undefined)
  const serving = answers.filter(({ isServing }) => isServing)
  const goal = before ?? goalOf(serving, request)
  const isUnanswered = answers.length === 0
  if (goal === undefined) {
    problems.push(whyNoGoal(serving, request))
    return { goal, verdicts: [], problems, isUnanswered, isReached: false, wanted: 0 }
  }
  const verdicts = nodesOf(answers, serving)
    .map(node => judgeNode(node, goal))
    .sort((a, b) => compareTexts(a.node, b.node))
  const { number, isPercent } = request.atLeast
  const wanted = isPercent ? Math.ceil((verdicts.length * number) / 100) : number
  const isReached = verdicts.length > 0 && serving.length > 0 && holding(verdicts) >= wanted
  return { goal, verdicts, problems, isUnanswered, isReached, wanted }
}

function goalOf(serving: readonly RelayAnswer[], { revision, service }: Request): Goal | undefined {
  const [first] = serving
  const hasRead = serving.some(({ revisions }) => revision === '' || !isOlder(revisions.Service, revision))
  if (first === undefined || !hasRead) return undefined
  return { revisions: newest(serving.map(({ changed }) => changed)), cluster: first.cluster, service }
}

function whyNoGoal(serving: readonly RelayAnswer[], { revision }: Request): string {
  if (serving.length === 0) return 'no relay knows the current state of the cluster'
  return `no relay has read revision ${revision} yet`
}

/** Nodes that do not exist drop out, where a relay knows it. */
function nodesOf(answers: readonly RelayAnswer[], serving: readonly RelayAnswer[]) {
  const knowing = serving.filter(({ knowsNodes }) => knowsNodes)
  const names = new Set(knowing.flatMap(({ nodes }) => nodes.map(({ name }) => name)))
  const nodes = mergeNodes(answers.map(answer => answer.nodes))
  return knowing.length === 0 ? nodes : nodes.filter(({ name }) => names.has(name))
}

function holding(verdicts: readonly NodeVerdict[]): number {
  return verdicts.filter(({ state }) => state === 'holds').length
}

function progressText({ goal, verdicts, problems, wanted }: Round): string {
  if (goal === undefined) return `waiting: ${problems.join('; ')}`
  const [first] = verdicts.filter(({ state }) => state !== 'holds')
  const why = first === undefined ? '' : `; ${first.node} is ${first.state}: ${first.why}`
  return `${holding(verdicts)} of ${count(verdicts.length, 'node')}, ${wanted} wanted${why}`
}

interface Printing {
  readonly request: Request
  readonly io: Io
}

async function print(round: Round, goal: Goal, { request, io }: Printing): Promise<void> {
  const { verdicts, wanted, isReached } = round
  const { output } = request
  if (isDocument(output)) {
    const states = Object.fromEntries(
      NODE_STATES.map(state => [state, verdicts.filter(each => each.state === state).length]),
    )
    const { revisions, service } = goal
    const nodes = verdicts.map(documentOf)
    await writeDocument({ reached: isReached, wanted, revisions, service, states, nodes }, output, io)
    return
  }
  const isWide = output === 'wide'
  const shown = verdicts.filter(({ state }) => isWide || state !== 'holds')
  const rows = shown.slice(0, isWide ? shown.length : NODES_SHOWN).map(verdict => rowOf(verdict, isWide))
  const heading = ['NODE', 'STATE', 'SINCE', ...(isWide ? WIDE : []), 'WHY']
  if (rows.length > 0) io.out(tableText(heading, rows, io))
  if (shown.length > rows.length) io.out(`and ${shown.length - rows.length} more; -o wide prints all\n`)
  io.out(`${summaryOf(verdicts, goal)}\n`)
}

const WIDE = ['SERVICES', 'ENDPOINTSLICES', 'VERSION', 'PROOF'] as const

function rowOf({ node, state, why, sinceMs, report }: NodeVerdict, isWide: boolean): readonly string[] {
  const since = sinceMs === undefined ? '-' : `${Math.round(sinceMs / 1_000)} s`
  if (!isWide) return [node, state, since, why]
  const { held, version = '-', proof } = report ?? {}
  const wide = [held?.Service || '-', held?.EndpointSlice || '-', version, proof?.text ?? '-']
  return [node, state, since, ...wide, why]
}

function documentOf({ node, state, why, sinceMs, report }: NodeVerdict) {
  const { held, version, proof, isDirect, lacking, lackingCount } = report ?? {}
  const sinceSeconds = sinceMs === undefined ? undefined : Math.round(sinceMs) / 1_000
  return { node, state, why, sinceSeconds, held, isDirect, lacking, lackingCount, proof, version }
}

function summaryOf(verdicts: readonly NodeVerdict[], { revisions, service }: Goal): string {
  const others = NODE_STATES.filter(state => state !== 'holds').flatMap(state => {
    const nodes = verdicts.filter(each => each.state === state).length
    const note = state === 'silent' ? ' (unknown)' : ''
    return nodes === 0 ? [] : [`${nodes} ${state}${note}`]
  })
  const what = service === undefined ? '' : `${service} at `
  const of = `Services of revision ${revisions.Service || 'none'}, EndpointSlices of ${revisions.EndpointSlice || 'none'}`
  const rest = others.length === 0 ? '' : `: ${others.join(', ')}`
  return `${holding(verdicts)} of ${verdicts.length} nodes hold ${what}${of}${rest}`
}
