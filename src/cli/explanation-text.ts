import { oneLine } from '../base/text.ts'
import type { KernelOutcome, Outcome } from './explain-kernel.ts'
import { tableText } from './table.ts'

/** The path of one connection, with the reasons. */
export interface Explanation {
  readonly connection: {
    readonly protocol: string
    readonly from: string
    readonly to: string
    readonly origin: string
    /** The source of the first packet. It differs from `from` if the kernel selects another address for a process. */
    readonly source: string
  }
  /** `namespace/name:port`; undefined when no Service has the address. */
  readonly service: string | undefined
  readonly frontend: string | undefined
  /** Reasons why the connection does not reach its destination. */
  readonly reasons: readonly string[]
  /** All endpoints and verdicts that the Services allow for the connection. */
  readonly outcomes: readonly Outcome[]
  readonly kernel: KernelOutcome
  /** The rules that take effect on the way to the first outcome, in order. */
  readonly rules: readonly {
    readonly chain: string
    readonly rule: number
    readonly text: string
    readonly elements: readonly string[]
  }[]
  readonly endpoints: readonly ExplainedEndpoint[]
}

export interface ExplainedEndpoint {
  readonly address: string
  readonly node: string
  readonly slice: string
  /** Whether the endpoint is listed for traffic policy Cluster, and for Local. */
  readonly cluster: { readonly isIn: boolean; readonly reason: string }
  readonly local: { readonly isIn: boolean; readonly reason: string }
}

const VERDICTS = {
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

export function explanationText(explanation: Explanation): string {
  const { connection, service, frontend, kernel, rules, endpoints } = explanation
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
    ...rules.map(ruleLines),
    endpoints.length === 0 ? '' : `\n${endpointTable(endpoints)}`,
  ].join('')
}

function sourceLine(source: string): string {
  return `Its packets come from ${source}, which is bound to this node, unless it chose their source itself.\n`
}

/** States an outcome as a fact only if the kernel confirms it; otherwise in the conditional. */
function outcomeLines({ outcomes, kernel }: Explanation): readonly string[] {
  if (kernel.kind === 'same')
    return [
      'Outcome:\n',
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
  words: typeof WISHES = VERDICTS,
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
  const rows = endpoints.map(({ address, node, cluster, local }) => [
    address,
    node === '' ? '-' : node,
    verdict(cluster),
    verdict(local),
  ])
  return tableText(['ENDPOINT', 'NODE', 'POLICY CLUSTER', 'POLICY LOCAL'], rows, { color: false })
}

function verdict({ isIn, reason }: ExplainedEndpoint['cluster']): string {
  return `${isIn ? 'in' : 'out'}: ${reason}`
}
