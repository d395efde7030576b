import { oneLine } from '../base/text.ts'
import { tableText } from './table.ts'

/** What becomes of one connection, and why. */
export interface Explanation {
  readonly connection: {
    readonly protocol: string
    readonly from: string
    readonly to: string
    readonly origin: string
    /** Of the first packet: not `from` where the kernel chooses another one for a process. */
    readonly source: string
  }
  /** `namespace/name:port`; undefined when no Service has the address. */
  readonly service: string | undefined
  readonly frontend: string | undefined
  /** Why the connection does not get where its client wants it. */
  readonly reasons: readonly string[]
  /** Every end that the connection may come to. */
  readonly outcomes: readonly {
    readonly verdict: 'dnat' | 'reject' | 'drop' | 'accept'
    readonly destination?: string
    /** The node masquerades: the endpoint sees an address of the node. */
    readonly sourceReplaced: boolean
    /** Of all connections like this one. */
    readonly percent: number
  }[]
  /** Those that take effect, in order, on the way to the first outcome. */
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
  /** In the list for traffic policy Cluster, and in the one for Local. */
  readonly cluster: { readonly isIn: boolean; readonly reason: string }
  readonly local: { readonly isIn: boolean; readonly reason: string }
}

const VERDICTS = {
  dnat: 'goes to',
  reject: 'is rejected (connection refused)',
  drop: 'is dropped without an answer',
  accept: 'is no business of kprobe: it passes unchanged',
} as const

export function explanationText(explanation: Explanation): string {
  const { connection, service, frontend, outcomes, rules, endpoints } = explanation
  const caught =
    service === undefined ? 'no Service has this address and port' : `${oneLine(service)} (${frontend})`
  return [
    `${connection.protocol} from ${connection.from} (${connection.origin}) to ${connection.to}\n`,
    connection.source === connection.from ? '' : sourceLine(connection.source),
    `Service: ${caught}\n`,
    ...explanation.reasons.map(reason => `${oneLine(reason)}\n`),
    `\nOutcome:\n`,
    ...outcomes.map(outcomeLine),
    rules.length === 0 ? '' : '\nRules that take effect:\n',
    ...rules.map(ruleLines),
    endpoints.length === 0 ? '' : `\n${endpointTable(endpoints)}`,
  ].join('')
}

function sourceLine(source: string): string {
  return `Its packets come from ${source}, which is bound to this node, unless it chose their source itself.\n`
}

function outcomeLine({
  verdict,
  destination,
  sourceReplaced,
  percent,
}: Explanation['outcomes'][number]): string {
  const where = destination === undefined ? '' : ` ${destination}`
  const source = sourceReplaced ? ', source address replaced by one of the node' : ', source address kept'
  return `  ${percent}%  ${VERDICTS[verdict]}${where}${verdict === 'dnat' ? source : ''}\n`
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
  return tableText(['ENDPOINT', 'NODE', 'POLICY CLUSTER', 'POLICY LOCAL'], rows, { colour: false })
}

function verdict({ isIn, reason }: ExplainedEndpoint['cluster']): string {
  return `${isIn ? 'in' : 'out'}: ${reason}`
}
