import { oneLine } from '../base/text.ts'
import { OUTPUTS, writeDocument } from './document.ts'
import type { ExplainedEndpoint } from './explain-reasons.ts'
import { type Explanation, questionCommand } from './explanation.ts'
import { tableText } from './io.ts'
import type { KernelOutcome, Outcome } from './outcome.ts'

export const command = questionCommand({
  name: 'explain',
  description:
    'Traces the first packet of one connection through the rules that `kprobe run` with the same flags would write:\n' +
    'which rules decide, where the packet may go, why each endpoint is in or out, and whether its source address is\n' +
    'replaced. Also traces it through the rules in the kernel, if it may read them. Exits 3 when these lead elsewhere,\n' +
    'or when a daemon runs and its rules are missing.',
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
  words: typeof WISHES = VERDICTS,
): string {
  const where = destination === undefined ? '' : ` ${destination}`
  const source = sourceReplaced ? ', source address replaced by one of the node' : ', source address kept'
  return `  ${percent}%  ${words[verdict]}${where}${verdict === 'dnat' ? source : ''}\n`
}

export function ruleLines({ chain, rule, text, elements }: Explanation['rules'][number]): string {
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
