import { count, oneLine } from '../../base/text.ts'
import { OUTPUTS, writeDocument } from '../../cli/document.ts'
import type { Io } from '../../cli/io.ts'
import { wrapLines } from '../../config/help.ts'
import { podText } from '../../model/pod-names.ts'
import type { UnansweredRow } from '../live/unanswered-rows.ts'
import { paletteOf } from '../palette.ts'
import { rounded, shareByDestination, silentOf } from './answer.ts'
import { outText } from './explain-reasons.ts'
import { type Asked, type Explanation, OF_NODE, questionCommand } from './explanation.ts'
import { missingIn, type Outcome, shownOf } from './outcome.ts'
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

interface TextOptions extends Pick<Io, 'color' | 'columns'> {
  /** Names all endpoints, what becomes of the source address, and both paths where the kernel has another one. */
  readonly isFull?: boolean
}

export function whyText(
  explanation: Explanation,
  asked: Asked,
  { color, columns, isFull = false }: TextOptions,
): string {
  const inWidth = (lines: readonly string[]) => (columns === undefined ? lines : wrapLines(lines, columns))
  const palette = paletteOf({ color })
  const { isServed, endpoints, outcomes } = explanation
  const isWell = isServed === true && silentOf(endpoints, outcomes).length === 0
  const paint = palette[isServed === undefined ? 'warning' : isWell ? 'good' : 'bad']
  const lines = [
    ...connectionLines(explanation, asked),
    ...(isFull ? endLines(explanation) : []),
    ...pathLines(explanation, isFull),
    ...endpointLines(explanation, isFull ? Number.POSITIVE_INFINITY : ENDPOINTS_SHOWN),
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
  const { answer, connection, service, frontend, reasons } = explanation
  const { from, to, source } = connection
  const bound = source === from ? [] : [`Its packets come from ${source}, which is bound to this node.`]
  return [
    '',
    oneLine(`${connection.protocol} from ${named(asked.from, from)} to ${named(asked.to, to)}`),
    ...bound,
    service === undefined ? 'Service: none' : oneLine(`Service: ${service} (${frontend})`),
    // The first sentence begins with one of them.
    ...reasons.filter(text => !answer.startsWith(text)).map(oneLine),
  ]
}

/** Says what the endpoint sees as the source, and whether the daemon carries the connection. */
function endLines({ outcomes, kernel }: Explanation): readonly string[] {
  const wanted = sourceText(outcomes)
  const differs = kernel.kind === 'different' && kernel.part === 'rules'
  const now = differs ? sourceText(kernel.outcomes) : wanted
  const source = now === wanted ? now : `${now ?? 'none'} in the kernel, ${wanted ?? 'none'} by the Services`
  const listener = kernel.kind === 'same' ? kernel.listener : undefined
  return [
    ...(source === undefined ? [] : [`Source address: ${source}`]),
    ...(listener === undefined ? [] : [`Carried by the daemon, which listens at ${listener}`]),
  ]
}

/** Undefined where the connection reaches no endpoint. */
function sourceText(outcomes: Explanation['outcomes']): string | undefined {
  const sources = new Set(
    outcomes.flatMap(({ verdict, sourceReplaced }) => (verdict === 'dnat' ? [sourceReplaced] : [])),
  )
  if (sources.size > 1) return 'depends on the endpoint'
  const [isReplaced] = sources
  return isReplaced === undefined ? undefined : isReplaced ? 'one of the node' : 'kept'
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

function pathLines({ kernel, rules, outcomes }: Explanation, isFull: boolean): readonly string[] {
  if (kernel.kind === 'same')
    return kernel.rules === undefined
      ? stepLines(`Path${toText(outcomes, [])}, the same in the kernel:`, rules)
      : stepLines(`Path${toText(outcomes, [])} in the kernel, by other rules than expected:`, kernel.rules)
  if (kernel.kind !== 'different' || kernel.part !== 'rules')
    return stepLines(`Path${toText(outcomes, [])}, as the Services specify it:`, rules)
  const its = stepLines(`Path${toText(kernel.outcomes, outcomes)} in the kernel:`, kernel.rules)
  const isPart = missingIn(kernel.outcomes, outcomes) === undefined
  const isLess = isPart && missingIn(outcomes, kernel.outcomes) !== undefined
  return isLess || isFull
    ? [...its, ...stepLines(`Path${toText(outcomes, kernel.outcomes)}, as the Services specify it:`, rules)]
    : its
}

function stepLines(heading: string, path: Explanation['rules']): readonly string[] {
  const steps = path.flatMap(ruleLines)
  return ['', heading, ...(steps.length === 0 ? [NO_RULES] : steps)]
}

/** ` to 10.1.0.1:80`, where there are several ends. */
function toText(outcomes: readonly Outcome[], others: readonly Outcome[]): string {
  const destination = outcomes.length > 1 ? shownOf(outcomes, others)?.destination : undefined
  return destination === undefined ? '' : ` to ${destination}`
}

/** Endpoints that `why` names; `explain`, JSON and YAML name all. */
const ENDPOINTS_SHOWN = 20

function endpointLines(
  { endpoints, list, outcomes, kernel }: Explanation,
  shownMax: number,
): readonly string[] {
  if (list === undefined || endpoints.length === 0) return []
  const shares = shareByDestination(kernel.kind === 'different' ? [] : outcomes)
  const inFirst = [...endpoints].sort((a, b) => Number(b[list].isIn) - Number(a[list].isIn))
  const rows = inFirst
    .slice(0, shownMax)
    .map(({ address, pod, node, unanswered, [list]: { isIn, reason } }) => {
      const share = shares.get(address)
      const part = share === undefined ? (isIn ? 'in' : 'out') : `${rounded(share)} %`
      return {
        part,
        text: `${podText(address, pod)}${node === '' ? '' : ` on ${node}`}: ${reason}${silenceText(unanswered)}`,
      }
    })
  const width = Math.max(...rows.map(({ part }) => part.length))
  const rest = inFirst.slice(shownMax)
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

function ruleLines({ chain, rule, text, elements }: Explanation['rules'][number]): readonly string[] {
  return [
    `  ${oneLine(`${chain}, rule ${rule}: ${text}`)}`,
    ...elements.map(element => `      ${oneLine(element)}`),
  ]
}

export const explainCommand = questionCommand({
  name: 'explain',
  description:
    'Prints what `kprobe why` does, with all endpoints, and with what the endpoint sees as the source address. Without a\n' +
    'daemon it follows the connection through the rules that `kprobe run` with the same flags would write, and through\n' +
    'those in the kernel, if it may read them. Exits as `kprobe why` does.',
  examples: [
    '  kprobe explain --from 203.0.113.7 --to 192.0.2.10:30080 --source=file:deploy/examples',
    '  kprobe explain --from pod/shop/cart-1 --to web.shop.svc:http',
  ],
  outputs: OUTPUTS,
  write: async (explanation, output, { asked, io }) => {
    if (output === 'text') io.out(whyText(explanation, asked, { ...io, isFull: true }))
    else await writeDocument(explanation, output, io)
  },
})
