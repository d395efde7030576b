import { fieldOf, listAt, numberAt, textAt } from '../base/plain-data.ts'
import { Curve } from './curve.tsx'
import { useData } from './data.ts'
import { serviceHash } from './format.ts'
import { Ago, Sign, Table } from './parts.tsx'
import { SERVICE_COLUMNS } from './services.tsx'

interface NodeProps {
  /** The answer of data/node. */
  readonly node: unknown
  /** The answer of data/curves; undefined before the first. */
  readonly curves: unknown
}

/** Whether this node is well, what is wrong, and the last 15 minutes. */
export function NodeView({ node, curves }: NodeProps) {
  const document = fieldOf(node, 'document')
  const problems = listAt(document, 'problems')
  return (
    <>
      <Verdict document={document} />
      <Problems problems={problems} />
      <Curves curves={curves} />
      <Worst />
      <dl>
        {listAt(document, 'facts').map(fact => (
          <div key={textAt(fact, 'name')}>
            <dt>{textAt(fact, 'name')}</dt>
            <dd>{textAt(fact, 'text')}</dd>
          </div>
        ))}
        <div>
          <dt>started</dt>
          <dd>
            <Ago at={textAt(node, 'startedAt')} />
          </dd>
        </div>
      </dl>
    </>
  )
}

/** The Services that a reader opens first. */
function Worst() {
  const rows = listAt(useData('services', WORST, 5_000)?.data, 'rows')
  const caption = 'Services, the worst and the busiest first'
  return rows.length === 0 ? null : <Table caption={caption} columns={SERVICE_COLUMNS} rows={rows} empty="" />
}

const WORST = { sort: 'worst', limit: '5' } as const

export type Level = 'well' | 'warning' | 'error'

/** The worst level of a StatusDocument. Pure. */
export function levelOf(document: unknown): Level {
  const levels = listAt(document, 'problems').map(problem => textAt(problem, 'level'))
  if (textAt(document, 'verdict') === 'down' || levels.includes('error')) return 'error'
  return textAt(document, 'verdict') === 'well' ? 'well' : 'warning'
}

function Verdict({ document }: { readonly document: unknown }) {
  const level = levelOf(document)
  return (
    <p class={`verdict ${level}`} aria-live="polite">
      <Sign level={level} /> <span>{textAt(document, 'sentence')}</span>
    </p>
  )
}

/** Problems on show; the others fold away below them. */
const SHOWN = 6

function Problems({ problems }: { readonly problems: readonly unknown[] }) {
  if (problems.length === 0) return null
  const rest = problems.slice(SHOWN)
  return (
    <section class="problems" aria-label="What is wrong">
      <h2>What is wrong</h2>
      <ul>{problems.slice(0, SHOWN).map(item)}</ul>
      {rest.length === 0 ? null : (
        <details>
          <summary>{`${rest.length} more`}</summary>
          <ul>{rest.map(item)}</ul>
        </details>
      )}
    </section>
  )
}

function item(problem: unknown, index: number) {
  const level = textAt(problem, 'level') === 'error' ? 'error' : 'warning'
  const hint = textAt(problem, 'hint')
  return (
    <li key={index}>
      <Sign level={level} />
      <span>
        <a href={linkOf(problem)} data-row>
          {textAt(problem, 'text')}
        </a>
        {hint === '' ? null : <small>{hint.split('`').map(partOfHint)}</small>}
      </span>
    </li>
  )
}

/** Every second part stands between backquotes: a command to copy. */
function partOfHint(text: string, index: number) {
  return index % 2 === 0 ? text : <code key={text}>{text}</code>
}

/** The place of the page that shows more of a problem. */
function linkOf(problem: unknown): string {
  const [service, kind] = [textAt(problem, 'service'), textAt(problem, 'kind')]
  if (kind.startsWith('services')) return '#services?problems=1'
  if (service !== '') return serviceHash(service)
  if (kind.startsWith('conntrack')) return '#rates'
  return /^(sync|repaired|not-programmed)/.test(kind) ? '#events' : '#configuration'
}

const CURVES: readonly {
  readonly name: string
  readonly title: string
  readonly link: string
  readonly isBad?: boolean
}[] = [
  { name: 'rate', title: 'Connections / s', link: '#rates' },
  { name: 'rejects', title: 'Rejects / s', link: '#rates', isBad: true },
  {
    name: 'unanswered',
    title: 'Unanswered / min',
    link: '#services?problems=1',
    isBad: true,
  },
  { name: 'lag', title: 'Slowest commit, ms', link: '#events' },
  { name: 'commits', title: 'Commits / 5 s', link: '#events' },
]

function Curves({ curves }: { readonly curves: unknown }) {
  const given = listAt(curves, 'curves')
  const stepS = numberAt(curves, 'stepS') ?? 5
  const shown = CURVES.flatMap(curve => {
    const values = listAt(
      given.find(each => textAt(each, 'name') === curve.name),
      'values',
    ).map(value => (typeof value === 'number' ? value : null))
    return values.every(value => value === null) ? [] : [{ ...curve, values }]
  })
  return (
    <section aria-label="The last 15 minutes">
      <div class="curves">
        {shown.map(({ name, ...curve }) => (
          <Curve key={name} stepS={stepS} {...curve} />
        ))}
      </div>
      {listAt(curves, 'notices').map(notice => (
        <p key={String(notice)} class="hint">
          {String(notice)}
        </p>
      ))}
    </section>
  )
}
