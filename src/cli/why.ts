import { count, oneLine } from '../base/text.ts'
import { wrapLines } from '../config/help.ts'
import { writeDocument } from './document.ts'
import { ruleLines } from './explain.ts'
import { outText, rounded, shareByDestination } from './explain-reasons.ts'

import { type Asked, type Explanation, questionCommand } from './explanation.ts'
import { BOLD, type Io } from './io.ts'
import { missingIn, type Outcome, shownOf } from './outcome.ts'
import { dotText, mermaidText, pictureOf, svgText } from './why-picture.ts'

const OUTPUTS = ['text', 'json', 'yaml', 'mermaid', 'dot', 'svg'] as const

export const command = questionCommand({
  name: 'why',
  description:
    'Says in one sentence what becomes of a connection. Then prints its path with the rule that decided at each step,\n' +
    'and every endpoint of the Service with the reason that it is in or out. Asks the daemon and the kernel, and names\n' +
    'what they could not say. `kprobe explain` prints the same in full. Exits 3 when the rules in the kernel lead\n' +
    'elsewhere, or when a daemon runs and its rules are missing.',
  examples: [
    '  kprobe why --from pod/shop/cart-1 --to svc/shop/checkout:https',
    '  kprobe why --from outside --to node/NAME:30080',
    '  kprobe why --from 203.0.113.7 --to checkout.shop.svc -o dot | dot -Tpng > why.png',
  ],
  outputs: OUTPUTS,
  write: async (explanation, output, { asked, io }) => {
    const picture = () => pictureOf(explanation, asked)
    switch (output) {
      case 'text':
        return io.out(whyText(explanation, asked, io))
      case 'mermaid':
        return io.out(mermaidText(picture()))
      case 'dot':
        return io.out(dotText(picture()))
      case 'svg':
        return io.out(svgText(picture()))
      default:
        return await writeDocument(explanation, output, io)
    }
  },
})

/** Formats an explanation for people. Only a terminal gets colors and wrapped lines. */
export function whyText(
  explanation: Explanation,
  asked: Asked,
  { color, columns }: Pick<Io, 'color' | 'columns'>,
): string {
  const inWidth = (lines: readonly string[]) => (columns === undefined ? lines : wrapLines(lines, columns))
  const [on, off] = color ? BOLD : ['', '']
  const lines = [
    ...connectionLines(explanation, asked),
    ...pathLines(explanation),
    ...endpointLines(explanation),
  ]
  const unknown = explanation.notKnown.map(text => `  ${oneLine(text)}`)
  return [
    ...inWidth([oneLine(explanation.answer)]).map(line => `${on}${line}${off}`),
    ...inWidth([...lines, ...(unknown.length === 0 ? [] : ['', 'Not known:', ...unknown])]),
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

/** Endpoints that text and pictures name; JSON and YAML name all. */
const ENDPOINTS_SHOWN = 20

function endpointLines({ endpoints, list, outcomes, kernel }: Explanation): readonly string[] {
  if (list === undefined || endpoints.length === 0) return []
  const shares = shareByDestination(kernel.kind === 'different' ? [] : outcomes)
  const inFirst = [...endpoints].sort((a, b) => Number(b[list].isIn) - Number(a[list].isIn))
  const rows = inFirst.slice(0, ENDPOINTS_SHOWN).map(({ address, node, [list]: { isIn, reason } }) => {
    const share = shares.get(address)
    const part = share === undefined ? (isIn ? 'in' : 'out') : `${rounded(share)} %`
    return { part, text: `${address}${node === '' ? '' : ` on ${node}`}: ${reason}` }
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
