import { count, oneLine } from '../../base/text.ts'
import { OUTPUTS, writeDocument } from '../../cli/document.ts'
import { type Io, tableText } from '../../cli/io.ts'
import { wrapLines } from '../../config/help.ts'
import { podText } from '../../model/pod-names.ts'
import type { UnansweredRow } from '../live/unanswered-rows.ts'
import { paletteOf } from '../palette.ts'
import { rounded, shareByDestination, silentOf } from './answer.ts'
import { type ExplainedEndpoint, outText } from './explain-reasons.ts'
import { type Asked, type Explanation, OF_NODE, questionCommand } from './explanation.ts'
import { type KernelOutcome, missingIn, type Outcome, shownOf } from './outcome.ts'
import { pictureOf, svgText } from './why-picture.ts'

const WITH_PICTURE = [...OUTPUTS, 'svg'] as const

export const command = questionCommand({
  name: 'why',
  description:
    'Prints in one sentence what happens to a connection, then its path with the rule that decided at each step, and\n' +
    'every endpoint of the Service with the reason that it is in or out. Reads the daemon and the kernel, and lists\n' +
    'what they leave open. `kprobe explain` prints the same in full. Exits 3 when the rules in the kernel lead\n' +
    'elsewhere, when a daemon runs and its rules are missing, and when an endpoint that the connection may go to\n' +
    'left more than half of its connections without a reply in the last minute.',
  examples: [
    '  kprobe why shop/checkout',
    '  kprobe why svc/shop/checkout:https --from pod/shop/cart-1',
    '  kprobe why node/NAME:30080 --from outside',
    '  kprobe why checkout.shop.svc --from 203.0.113.7 -o svg > why.svg',
  ],
  outputs: WITH_PICTURE,
  write: async (explanation, output, { asked, io }) => {
    if (output === 'text') io.out(whyText(explanation, asked, io))
    else if (output === 'svg') io.out(svgText(pictureOf(explanation, asked)))
    else await writeDocument(explanation, output, io)
  },
})

export function whyText(
  explanation: Explanation,
  asked: Asked,
  { color, columns }: Pick<Io, 'color' | 'columns'>,
): string {
  const inWidth = (lines: readonly string[]) => (columns === undefined ? lines : wrapLines(lines, columns))
  const palette = paletteOf({ color })
  const { isServed, endpoints, outcomes } = explanation
  const isWell = isServed === true && silentOf(endpoints, outcomes).length === 0
  const paint = palette[isServed === undefined ? 'warning' : isWell ? 'good' : 'bad']
  const lines = [
    ...connectionLines(explanation, asked),
    ...pathLines(explanation),
    ...endpointLines(explanation),
    ...limitLines(explanation).flatMap(line => ['', line]),
  ]
  const unknown = explanation.notKnown.map(text => `  ${oneLine(text)}`)
  return [
    ...inWidth([oneLine(explanation.answer)]).map(paint),
    ...inWidth([...lines, ...(unknown.length === 0 ? [] : ['', 'Not known:', ...unknown])]).map(line =>
      line.startsWith('  out ') ? palette.dim(line) : / had no reply/.test(line) ? palette.bad(line) : line,
    ),
    '',
  ].join('\n')
}

function connectionLines(explanation: Explanation, asked: Asked): readonly string[] {
  const { connection, service, frontend, reasons } = explanation
  const { from, to, source } = connection
  const bound = source === from ? [] : [`Its packets come from ${source}, which is bound to this node.`]
  return [
    '',
    oneLine(`${connection.protocol} from ${named(asked.from, from)} to ${named(asked.to, to)}`),
    ...bound,
    service === undefined ? 'Service: none' : oneLine(`Service: ${service} (${frontend})`),
    ...reasons.map(oneLine),
  ]
}

/** Says when a rejected client waits. Processes of this node never do: the kernel does not limit ICMP over loopback. */
function limitLines({ connection: { origin, to }, outcomes }: Explanation): readonly string[] {
  if (origin === OF_NODE || !outcomes.some(({ verdict: its }) => its === 'reject')) return []
  const sysctl = to.startsWith('[') ? 'net.ipv6.icmp.ratelimit' : 'net.ipv4.icmp_ratelimit'
  return [
    `The kernel limits the rejections (ICMP) to one client address by ${sysctl}: beyond a few at once, connections wait for theirs.`,
  ]
}

/** `shop/cart:http (10.96.0.1:80)`. */
function named(asked: string, address: string): string {
  return asked === address ? address : `${asked} (${address})`
}

const NO_RULES = '  no rule of kprobe takes effect'

function pathLines({ kernel, rules, outcomes }: Explanation): readonly string[] {
  if (kernel.kind === 'same')
    return kernel.rules === undefined
      ? stepLines(`Path${toText(outcomes, [])}, the same in the kernel:`, rules)
      : stepLines(`Path${toText(outcomes, [])} in the kernel, by other rules than expected:`, kernel.rules)
  if (kernel.kind !== 'different' || kernel.part !== 'rules')
    return stepLines(`Path${toText(outcomes, [])}, as the Services specify it:`, rules)
  const its = stepLines(`Path${toText(kernel.outcomes, outcomes)} in the kernel:`, kernel.rules)
  const isPart = missingIn(kernel.outcomes, outcomes) === undefined
  const isLess = isPart && missingIn(outcomes, kernel.outcomes) !== undefined
  return isLess
    ? [...its, ...stepLines(`Path${toText(outcomes, kernel.outcomes)}, as the Services specify it:`, rules)]
    : its
}

function stepLines(heading: string, path: Explanation['rules']): readonly string[] {
  const steps = path.flatMap(rule => ruleLines(rule).trimEnd().split('\n'))
  return ['', heading, ...(steps.length === 0 ? [NO_RULES] : steps)]
}

/** ` to 10.1.0.1:80`, where there are several ends. */
function toText(outcomes: readonly Outcome[], others: readonly Outcome[]): string {
  const destination = outcomes.length > 1 ? shownOf(outcomes, others)?.destination : undefined
  return destination === undefined ? '' : ` to ${destination}`
}

/** Endpoints that the text names; JSON and YAML name all. */
const ENDPOINTS_SHOWN = 20

function endpointLines({ endpoints, list, outcomes, kernel }: Explanation): readonly string[] {
  if (list === undefined || endpoints.length === 0) return []
  const shares = shareByDestination(kernel.kind === 'different' ? [] : outcomes)
  const inFirst = [...endpoints].sort((a, b) => Number(b[list].isIn) - Number(a[list].isIn))
  const rows = inFirst
    .slice(0, ENDPOINTS_SHOWN)
    .map(({ address, pod, node, unanswered, [list]: { isIn, reason } }) => {
      const share = shares.get(address)
      const part = share === undefined ? (isIn ? 'in' : 'out') : `${rounded(share)} %`
      return {
        part,
        text: `${podText(address, pod)}${node === '' ? '' : ` on ${node}`}: ${reason}${silenceText(unanswered)}`,
      }
    })
  const width = Math.max(...rows.map(({ part }) => part.length))
  const rest = inFirst.slice(ENDPOINTS_SHOWN)
  const out = outText(rest, list)
  const more = `  and ${count(rest.length, 'more endpoint')}${out === '' ? ', all in' : `: ${out}`}; -o json lists all`
  return [
    '',
    `Endpoints, traffic policy ${list === 'local' ? 'Local' : 'Cluster'}:`,
    ...rows.map(({ part, text }) => `  ${part.padEnd(width)}  ${oneLine(text)}`),
    ...(rest.length === 0 ? [] : [more]),
  ]
}

function silenceText(row: UnansweredRow | undefined): string {
  if (row === undefined) return ''
  const { unanswered, connections, isOneWay } = row
  const port = isOneWay
    ? ' (the port has answered no client: it is one-way, or all its endpoints are silent)'
    : ''
  return `; ${unanswered} of ${count(connections, 'connection')} had no reply in the last minute${port}`
}

export const explainCommand = questionCommand({
  name: 'explain',
  description:
    'Traces the first packet of one connection through the rules that `kprobe run` with the same flags would write:\n' +
    'which rules decide, where the packet may go, why each endpoint is in or out, and whether its source address is\n' +
    'replaced. Also traces it through the rules in the kernel, if it may read them. Exits 3 when these lead elsewhere,\n' +
    'when a daemon runs and its rules are missing, and when an endpoint left more than half of its connections without\n' +
    'a reply in the last minute.',
  examples: [
    '  kprobe explain --from 203.0.113.7 --to 192.0.2.10:30080 --source=file:deploy/examples',
    '  kprobe explain --from pod/shop/cart-1 --to web.shop.svc:http',
  ],
  outputs: OUTPUTS,
  write: async (explanation, output, { io }) => {
    if (output === 'text') io.out(explanationText(explanation))
    else await writeDocument(explanation, output, io)
  },
})

const VERDICT_WORDS = {
  dnat: 'goes to',
  reject: 'is rejected (connection refused)',
  drop: 'is dropped without an answer',
  accept: 'no kprobe rule matches; the packet passes unchanged',
} as const

/** Words for verdicts that the kernel does not confirm. */
const WISHES: Readonly<Record<Outcome['verdict'], string>> = {
  dnat: 'would go to',
  reject: 'would be rejected (connection refused)',
  drop: 'would be dropped without an answer',
  accept: 'no kprobe rule would match; the packet would pass unchanged',
}

function explanationText(explanation: Explanation): string {
  const { connection, service, frontend, kernel, rules, endpoints, notKnown } = explanation
  const caught =
    service === undefined ? 'no Service has this address and port' : `${oneLine(service)} (${frontend})`
  return [
    `${connection.protocol} from ${connection.from} (${connection.origin}) to ${connection.to}\n`,
    connection.source === connection.from ? '' : sourceLine(connection.source),
    `Service: ${caught}\n`,
    ...explanation.reasons.map(reason => `${oneLine(reason)}\n`),
    '\n',
    ...outcomeLines(explanation),
    rules.length === 0 ? '' : `\nRules that ${kernel.kind === 'same' ? '' : 'would '}take effect:\n`,
    ...(kernel.kind === 'same' ? (kernel.rules ?? rules) : rules).map(ruleLines),
    endpoints.length === 0 ? '' : `\n${endpointTable(endpoints)}`,
    ...limitLines(explanation).map(line => `\n${line}\n`),
    notKnown.length === 0 ? '' : '\nNot known:\n',
    ...notKnown.map(text => `  ${oneLine(text)}\n`),
  ].join('')
}

function sourceLine(source: string): string {
  return `Its packets come from ${source}, which is bound to this node, unless it chose their source itself.\n`
}

/** States an outcome as a fact only if the kernel confirms it; otherwise in the conditional. */
function outcomeLines({ outcomes, kernel }: Explanation): readonly string[] {
  if (kernel.kind === 'same')
    return [
      kernel.others === undefined ? 'Outcome:\n' : "Outcome, by kprobe's rules:\n",
      ...outcomes.map(each => outcomeLine(each)),
      `Outcome, the kernel: ${sameText(kernel)}\n`,
    ]
  const wanted = [
    'Outcome, as the Services specify it:\n',
    ...outcomes.map(each => outcomeLine(each, WISHES)),
  ]
  if (kernel.kind === 'unknown') return [...wanted, `Outcome, the kernel: cannot be read: ${kernel.reason}\n`]
  if (kernel.kind === 'absent') return [...wanted, `Outcome, the kernel: ${kernel.reason}\n`]
  const reason = kernel.reason === undefined ? '' : ` ${kernel.reason}`
  return [
    ...wanted,
    `Outcome, the kernel: DIFFERENT:${reason}\n`,
    ...kernel.outcomes.map(each => outcomeLine(each)),
  ]
}

function sameText({ listener }: Extract<KernelOutcome, { kind: 'same' }>): string {
  return listener === undefined ? 'the same' : `leads to the daemon, which listens at ${listener}`
}

function outcomeLine(
  { verdict, destination, sourceReplaced, percent }: Outcome,
  words: typeof WISHES = VERDICT_WORDS,
): string {
  const where = destination === undefined ? '' : ` ${destination}`
  const source = sourceReplaced ? ', source address replaced by one of the node' : ', source address kept'
  return `  ${percent}%  ${words[verdict]}${where}${verdict === 'dnat' ? source : ''}\n`
}

function ruleLines({ chain, rule, text, elements }: Explanation['rules'][number]): string {
  const found = elements.map(element => `      ${oneLine(element)}\n`)
  return `  ${oneLine(`${chain}, rule ${rule}: ${text}`)}\n${found.join('')}`
}

function endpointTable(endpoints: readonly ExplainedEndpoint[]): string {
  const rows = endpoints.map(({ address, pod, node, cluster, local }) => [
    podText(address, pod),
    node === '' ? '-' : node,
    verdict(cluster),
    verdict(local),
  ])
  return tableText(['ENDPOINT', 'NODE', 'POLICY CLUSTER', 'POLICY LOCAL'], rows, { color: false })
}

function verdict({ isIn, reason }: ExplainedEndpoint['cluster']): string {
  return `${isIn ? 'in' : 'out'}: ${reason}`
}
