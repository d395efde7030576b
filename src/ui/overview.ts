import { fieldOf, listAt, numberAt, textAt } from '../base/plain-data.ts'
import { ask } from './daemon.ts'
import { element, facts, replaceChildren, Table } from './dom.ts'
import { ageText, numberText, type View } from './view.ts'

/** What the daemon is, how well it knows its objects, and its last commits. */
export function overview(): View {
  const state = element('div')
  const commits = new Table<unknown>({
    caption: 'Last commits',
    empty: 'no commit yet',
    columns: COMMIT_COLUMNS,
  })
  return {
    node: element('div', {}, state, commits.node),
    everyMs: 2_000,
    async refresh() {
      const status = await ask('status')
      replaceChildren(state, facts(statusFacts(status)))
      commits.show(listAt(status, 'commits').toReversed())
    },
  }
}

const COMMIT_COLUMNS = [
  { title: 'Time', cell: (line: unknown) => textAt(line, 'time') },
  { title: 'Reason', cell: (line: unknown) => textAt(line, 'reason') },
  { title: 'Outcome', cell: (line: unknown) => textAt(line, 'outcome') },
  { title: 'Changes', isNumber: true, cell: (line: unknown) => numberText(numberAt(line, 'changes')) },
  {
    title: 'Took, ms',
    isNumber: true,
    cell: (line: unknown) => numberAt(line, 'durationMs')?.toFixed(1) ?? '',
  },
] as const

/** Terms and values, in words. Pure. */
function statusFacts(status: unknown): readonly (readonly [string, string])[] {
  const [snapshot, synced] = [numberAt(status, 'snapshot'), numberAt(status, 'synced')]
  const repairs = fieldOf(status, 'repairs')
  const passes = numberAt(repairs, 'passes') ?? 0
  const last = textAt(repairs, 'lastAt')
  return [
    ['Node', textAt(status, 'node')],
    ['Mode', textAt(status, 'mode') || 'none yet'],
    ['Version', textAt(status, 'version')],
    ['Started', textAt(status, 'startedAt')],
    ['Services', numberText(numberAt(status, 'services'))],
    ['Rejected by the kernel', numberText(numberAt(status, 'quarantined') || undefined)],
    [
      'Kernel',
      synced === snapshot ? 'holds everything' : `behind: holds ${synced ?? 'nothing'} of ${snapshot}`,
    ],
    ['Source', sourceText(fieldOf(status, 'source'))],
    ['Error', textAt(status, 'error')],
    [
      'Repairs',
      passes === 0
        ? 'none'
        : `${numberText(passes)}, ${numberText(numberAt(repairs, 'objects'))} objects, last ${last}`,
    ],
  ]
}

function sourceText(source: unknown): string {
  const missing = listAt(source, 'missing').map(String)
  const [trouble, silent] = [textAt(source, 'trouble'), numberAt(source, 'silentMs')]
  return [
    fieldOf(source, 'stale') === true ? 'objects of the last run' : missing.length === 0 ? 'complete' : '',
    missing.length === 0 ? '' : `lacks ${missing.join(', ')}`,
    trouble,
    silent === undefined ? '' : `last message ${ageText(silent)} ago`,
  ]
    .filter(text => text !== '')
    .join('; ')
}
