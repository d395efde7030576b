import { useEffect, useState } from 'preact/hooks'
import { fieldOf, listAt, numberAt, textAt } from '../base/plain-data.ts'
import { useData } from './data.ts'
import { hashOf, numberText, type Place, rateText, serviceHash } from './format.ts'
import { Check, type Column, Filter, Name, Sign, Table, Trouble } from './parts.tsx'

/** Rows on show; the daemon finds them among any number of Services. */
const ROWS = 50

/** All Services in pages, the worst first: found by name, address, pod or problem. The address keeps the question. */
export function ServicesView({ query }: { readonly query: Place['query'] }) {
  const [asked, set] = useState({
    filter: query.filter ?? '',
    sort: query.sort ?? 'worst',
    problems: query.problems ?? '',
    offset: 0,
  })
  const change = (news: Partial<typeof asked>) => set(before => ({ ...before, offset: 0, ...news }))
  const { filter, sort, problems, offset } = asked
  useEffect(() => {
    const kept = { filter, problems, sort: sort === 'worst' ? '' : sort }
    window.history.replaceState(null, '', hashOf('services', [], kept))
  }, [filter, sort, problems])
  const shown = useData('services', { filter, sort, problems, offset: `${offset}`, limit: `${ROWS}` }, 5_000)
  const page = shown?.data
  const rows = listAt(page, 'rows')
  const matching = numberAt(page, 'matching') ?? 0
  const step = (name: string, by: number, isOff: boolean) => (
    <button type="button" disabled={isOff} onClick={() => change({ offset: Math.max(0, offset + by) })}>
      {name}
    </button>
  )
  return (
    <>
      <search aria-label="Services">
        <Filter
          label="Filter"
          value={filter}
          placeholder="name, IP, pod or problem"
          take={filter => change({ filter })}
        />
        <Check
          label="Only with problems"
          isOn={problems === '1'}
          take={isOn => change({ problems: isOn ? '1' : '' })}
        />
        {step('Previous', -ROWS, offset === 0)}
        {step('Next', ROWS, offset + rows.length >= matching)}
        <p class="status" aria-live="polite">
          {shown === undefined ? 'loading' : countText(offset, rows.length, page)}
        </p>
      </search>
      <Trouble error={shown?.error} />
      {page === undefined ? null : (
        <Table
          caption="Services"
          columns={SERVICE_COLUMNS}
          rows={rows}
          keyOf={row => textAt(row, 'service')}
          empty="no Service matches"
          sorted={shown?.query.sort ?? ''}
          sort={sort => change({ sort: sort === 'endpoints' && asked.sort === sort ? 'fewest' : sort })}
        />
      )}
    </>
  )
}

export const SERVICE_COLUMNS: readonly Column<unknown>[] = [
  {
    title: 'Service',
    sort: 'name',
    cell: row => (
      <a href={serviceHash(textAt(row, 'service'))} data-row>
        <Name text={textAt(row, 'service')} />
      </a>
    ),
  },
  { title: 'Problem', sort: 'worst', cell: problemCell },
  {
    title: 'New a second',
    sort: 'rate',
    isNumber: true,
    cell: row => rateText(numberAt(row, 'perSecond')),
  },
  {
    title: 'Endpoints',
    sort: 'endpoints',
    isNumber: true,
    isWide: true,
    cell: row => numberText(numberAt(row, 'endpoints')),
  },
  {
    title: 'On this node',
    isNumber: true,
    isWide: true,
    cell: row => numberText(numberAt(row, 'localEndpoints')),
  },
  { title: 'Type', isWide: true, cell: row => textAt(row, 'type') },
  { title: 'Served at', isWide: true, cell: frontendsText },
]

function problemCell(row: unknown) {
  const severity = textAt(row, 'severity')
  if (severity === 'none') return <Sign level="well" />
  return (
    <span class="problem">
      <Sign level={severity === 'refused' || severity === 'unanswered' ? 'error' : 'warning'} />{' '}
      {textAt(row, 'problem')}
    </span>
  )
}

function frontendsText(row: unknown): string {
  const more = numberAt(row, 'moreFrontends') ?? 0
  const shown = listAt(row, 'frontends').map(String).join(', ')
  return more === 0 ? shown : `${shown} and ${numberText(more)} more`
}

function countText(offset: number, rows: number, page: unknown): string {
  const [total = 0, matching = 0] = [numberAt(page, 'total'), numberAt(page, 'matching')]
  if (rows === 0) return `0 of ${numberText(total)}`
  const range = `${numberText(offset + 1)} to ${numberText(offset + rows)} of ${numberText(matching)}`
  return matching === total ? range : `${range} that match; ${numberText(total)} in all`
}

/** New connections by Service or endpoint, as `kprobe top` shows them. */
export function RatesView() {
  const [asked, set] = useState({ by: 'service', sort: 'rate', filter: '' })
  const [isPaused, pause] = useState(false)
  const shown = useData('rates', asked, isPaused ? undefined : 2_000)
  const state = shown?.data
  const table = fieldOf(state, 'table')
  const most = numberAt(table, 'entriesMax')
  const entries = numberText(numberAt(table, 'entries'))
  const facts = [
    `${rateText(numberAt(state, 'perSecond'))} new connections a second`,
    ...(entries === ''
      ? []
      : [`connection table: ${entries}${most === undefined ? '' : ` of ${numberText(most)}`}`]),
    ...((numberAt(state, 'lost') ?? 0) === 0 ? [] : [`${numberText(numberAt(state, 'lost'))} events lost`]),
    ...listAt(state, 'notices').map(String),
  ]
  return (
    <>
      <search aria-label="Rates">
        <Filter label="Filter" value={asked.filter} take={filter => set({ ...asked, filter })} />
        <Check
          label="By endpoint"
          isOn={asked.by === 'endpoint'}
          take={isOn => set({ ...asked, by: isOn ? 'endpoint' : 'service' })}
        />
        <button type="button" aria-pressed={isPaused} onClick={() => pause(!isPaused)}>
          Pause
        </button>
        {state === undefined ? null : <p class="status">{facts.join('; ')}</p>}
      </search>
      <Trouble error={shown?.error} />
      {state === undefined ? null : (
        <Table
          caption="New connections"
          columns={RATE_COLUMNS}
          rows={listAt(state, 'rows')}
          keyOf={row => `${textAt(row, 'service')} ${textAt(row, 'endpoint')} ${textAt(row, 'protocol')}`}
          empty="no connections to Services yet"
          sorted={shown?.query.sort ?? ''}
          sort={sort => set({ ...asked, sort })}
        />
      )}
    </>
  )
}

const RATE_COLUMNS: readonly Column<unknown>[] = [
  {
    title: 'Service',
    sort: 'name',
    cell: row => {
      const service = textAt(row, 'service')
      if (service === '') return 'no Service'
      return (
        <a href={serviceHash(service.replace(/:.*$/, ''))} data-row>
          <Name text={service} />
        </a>
      )
    },
  },
  {
    title: 'Endpoint',
    cell: row => {
      const pod = textAt(row, 'pod')
      return `${textAt(row, 'endpoint')}${pod === '' ? '' : ` (pod ${pod})`}`
    },
  },
  { title: 'New a second', sort: 'rate', isNumber: true, cell: row => rateText(numberAt(row, 'perSecond')) },
  {
    title: 'New since opened',
    sort: 'total',
    isNumber: true,
    cell: row => numberText(numberAt(row, 'total')),
  },
  { title: 'Open', sort: 'open', isNumber: true, cell: row => numberText(numberAt(row, 'open')) },
  { title: 'No reply', sort: 'unanswered', isNumber: true, cell: silenceText },
]

function silenceText(row: unknown): string {
  const silence = fieldOf(row, 'unanswered')
  const count = numberAt(silence, 'unanswered') ?? 0
  if (count === 0) return ''
  return `${numberText(count)} of ${numberText(numberAt(silence, 'connections'))}`
}
