import { useState } from 'preact/hooks'
import { fieldOf, listAt, numberAt, textAt } from '../base/plain-data.ts'
import { count } from '../base/text.ts'
import { useData } from './data.ts'
import { numberText } from './format.ts'
import { Ago, Check, type Column, Filter, Sign, Table, Trouble } from './parts.tsx'

/** The journal of commits, the newest first; drift and failures are marked, and can be had alone. */
export function EventsView({ node }: { readonly node: unknown }) {
  const [isOnlyDrift, only] = useState(false)
  const shown = useData('receipts', {}, 5_000)
  const lines = listAt({ list: shown?.data }, 'list')
  const repairs = fieldOf(node, 'repairs')
  const passes = numberAt(repairs, 'passes') ?? 0
  const rows = lines.filter(line => !isOnlyDrift || /drift|failure/.test(kindOf(line))).toReversed()
  return (
    <>
      <p aria-live="polite" class="repairs">
        {passes === 0
          ? 'No repair since the start '
          : `${count(passes, 'repair')} of ${count(numberAt(repairs, 'objects') ?? 0, 'object')} since the start `}
        <Ago at={textAt(node, 'startedAt')} />.
      </p>
      <search aria-label="Events">
        <Check label="Only drift and failures" isOn={isOnlyDrift} take={only} />
      </search>
      <Trouble error={shown?.error} />
      {shown?.data === undefined ? null : (
        <Table caption="Commits" empty="no commit yet" columns={COLUMNS} rows={rows} />
      )}
    </>
  )
}

type EventKind = 'change' | 'drift' | 'failure'

/** Classifies a commit for a reader who searches for drift. Pure. */
export function kindOf(line: unknown): EventKind {
  if (textAt(line, 'outcome') !== 'committed' || listAt(line, 'refusals').length > 0) return 'failure'
  return textAt(line, 'reason') === 'drift' ? 'drift' : 'change'
}

const WORDS: Readonly<Record<EventKind, string>> = {
  change: 'change',
  drift: 'repaired changes of another program',
  failure: 'not committed as a whole',
}

const LEVELS = { change: 'well', drift: 'warning', failure: 'error' } as const

const COLUMNS: readonly Column<unknown>[] = [
  { title: 'Time', cell: line => <Ago at={textAt(line, 'time')} /> },
  {
    title: 'Event',
    cell: line => (
      <span class={kindOf(line)}>
        <Sign level={LEVELS[kindOf(line)]} /> {WORDS[kindOf(line)]}
      </span>
    ),
  },
  { title: 'Reason', isWide: true, cell: line => textAt(line, 'reason') },
  { title: 'Outcome', isWide: true, cell: line => textAt(line, 'outcome') },
  { title: 'Changes', isNumber: true, cell: line => numberText(numberAt(line, 'changes')) },
  { title: 'Bytes', isNumber: true, isWide: true, cell: line => numberText(numberAt(line, 'bytes')) },
  { title: 'Took, ms', isNumber: true, cell: line => numberAt(line, 'durationMs')?.toFixed(1) ?? '' },
  { title: 'Rejected', cell: line => listAt(line, 'refusals').map(refusalText).join('; ') },
]

function refusalText(refusal: unknown): string {
  return `${listAt(refusal, 'services').map(String).join(', ')}: ${textAt(refusal, 'error')}`
}

type Pair = readonly [string, string]

/** The flags as they hold, and the configuration as kube-proxy's API type. */
export function ConfigurationView() {
  const [filter, set] = useState('')
  const shown = useData('config', {}, 10_000)
  const config = shown?.data
  const isWanted = (pair: Pair) => pair.some(text => text.toLowerCase().includes(filter.trim().toLowerCase()))
  const tables = [
    ['Flags', pairsOf(fieldOf(config, 'flags')).map(([name, value]): Pair => [`--${name}`, value])],
    ['Configuration', pairsOf(fieldOf(config, 'configuration'))],
  ] as const
  return (
    <>
      <search aria-label="Configuration">
        <Filter label="Filter" value={filter} take={set} />
      </search>
      <Trouble error={shown?.error} />
      {tables.map(([caption, rows]) =>
        config === undefined ? null : (
          <Table key={caption} caption={caption} empty="none" columns={PAIRS} rows={rows.filter(isWanted)} />
        ),
      )}
    </>
  )
}

const PAIRS: readonly Column<Pair>[] = [
  { title: 'Name', cell: ([name]) => name },
  { title: 'Value', cell: ([, value]) => value },
]

function pairsOf(tree: unknown, path = ''): readonly Pair[] {
  if (typeof tree !== 'object' || tree === null || Array.isArray(tree))
    return [[path, typeof tree === 'string' ? tree : (JSON.stringify(tree) ?? '')]]
  return Object.entries(tree).flatMap(([name, value]) =>
    pairsOf(value, path === '' ? name : `${path}.${name}`),
  )
}
