import { describe, expect, it } from 'vitest'
import type { FlowGroup } from '../../../../src/inspect/live/flow-groups.ts'
import {
  FIRST_VIEW,
  fitted,
  keyPressed,
  type Size,
  scrollMax,
  type TopView,
  tablePicture,
  textWidth,
} from '../../../../src/inspect/live/live-table.ts'
import { topContent, topText } from '../../../../src/inspect/live/top.ts'
import { rowsOf, TopRows } from '../../../../src/inspect/live/top-rows.ts'
import { daemonState, type TopState } from '../../../../src/inspect/live/top-sampler.ts'
import { topRow as row, topState, unansweredRow } from './rows.ts'

const ESCAPE = String.fromCharCode(27)
const RIGHT_TO_LEFT_MARK = String.fromCodePoint(0x200f)

const MANY = topState({
  rows: Array.from({ length: 200 }, (_, n) => row(`ns/service-${n}:http`, { perSecond: n, total: n * 2 })),
  table: { entries: 1_234, entriesMax: 262_144 },
  largest: [{ service: 'ns/service-1:http', open: 9 }],
  daemon: daemonState({
    mode: 'nftables',
    services: 200,
    source: { silentMs: 300 },
    repairs: { passes: 2 },
  }),
  lost: 3,
  notices: ['a notice'],
})

const view = (more: Partial<TopView> = {}): TopView => ({ ...FIRST_VIEW, ...more })

function topPicture(its: TopState, at: TopView, size: Size) {
  return tablePicture(topContent(its, at, size.columns), at, size)
}

describe('the picture of top', () => {
  it.each([
    [39, 24],
    [80, 9],
    [10, 2],
    [1, 1],
  ])('says that %d columns and %d rows are too few', (columns, rows) => {
    const { lines } = topPicture(MANY, view(), { columns, rows })
    expect(lines).toHaveLength(1)
    expect(lines.map(textWidth)).toEqual([columns])
  })

  it('shows what is known, and leaves out what is not', () => {
    const { lines } = topPicture(MANY, view(), { columns: 80, rows: 24 })
    const text = lines.join('\n')
    expect(text).toContain('nftables mode | 200 Services | source 0.300s ago')
    expect(text).toContain('table 1234 of 262144 (0.5 %)')
    expect(text).toContain('3 events lost')
    expect(text).not.toContain('rejects')
    expect(text).not.toContain('last commit')
    expect(text).toMatch(/ns\/service-199:http +TCP +199 +- +398/)
  })

  it('keeps the columns right with names of control, direction and wide characters', () => {
    const names = [
      `ns/a${ESCAPE}[2J`,
      `ns/${RIGHT_TO_LEFT_MARK}b\n`,
      'ns/日本語のとても長い名前です',
      'ns/e\u0301\u0301x',
      'ns/😀😀',
    ]
    const rows = names.map(name => row(name, { perSecond: 1, total: 5 }))
    for (const columns of [40, 61, 80]) {
      const { lines } = topPicture(topState({ rows }), view(), { columns, rows: 12 })
      expect(lines.map(textWidth)).toEqual(lines.map(() => columns))
      expect(lines.join('')).not.toMatch(/\p{Cc}|\p{Cf}/u)
    }
  })
})

describe('connections without a reply', () => {
  it('are a column while an endpoint has such, and add up for a Service', () => {
    const rows = [
      row('shop/cart:http', { unanswered: { unanswered: 41, connections: 41 } }),
      row('shop/cart:http', { endpoint: '10.1.0.2:80', unanswered: { unanswered: 1, connections: 9 } }),
      row('shop/checkout:http'),
    ]
    const text = topText(topState({ rows }), view({ sort: 'unanswered' }), { limit: 9, columns: 80 })
    expect(text).toMatch(/^SERVICE .* NO REPLYv +TOTAL$/m)
    expect(text).toMatch(/^shop\/cart:http .* 42\/50 +0$/m)
    expect(text).toMatch(/^shop\/checkout:http .* - +0$/m)
    const calm = topText(topState({ rows: [row('a/b')] }), view(), { limit: 9, columns: 80 })
    expect(calm).not.toContain('NO REPLY')
  })

  it('name the two worst endpoints above the table', () => {
    const rows = [1, 2, 3].map(last => unansweredRow({ endpoint: `10.1.0.${last}:80` }))
    const text = (its: TopState['unanswered']) =>
      topText(topState({ unanswered: its }), view(), { limit: 9, columns: 200 })
    expect(text({ rows, seenS: 60 })).toContain(
      'shop/cart:http: 41 of 41 connections to 10.1.0.1:80 had no reply in the last minute | shop/cart:http: 41 of 41 connections to 10.1.0.2:80 had no reply in the last minute | 1 more endpoint\n',
    )
    expect(text({ rows: [unansweredRow({ isOneWay: true })], seenS: 60 })).not.toContain('no reply')
    expect(text({ rows: [], seenS: 0, limits: 'no conntrack' })).toContain('no reply: no conntrack')
  })

  it('come and go with the reads of the table', () => {
    const all = new TopRows()
    all.takeUnanswered([unansweredRow(), unansweredRow({ endpoint: '10.1.0.2:80', isOneWay: true })])
    expect(all.all).toMatchObject([
      { endpoint: '10.1.0.1:80', unanswered: { unanswered: 41, connections: 41 } },
    ])
    all.takeUnanswered([])
    expect(all.all).toMatchObject([{ endpoint: '10.1.0.1:80', unanswered: undefined }])
  })
})

describe('topText', () => {
  it('prints so many rows, and counts the rest', () => {
    const lines = topText(MANY, view(), { limit: 10, columns: 100 }).trimEnd().split('\n')
    expect(lines.filter(line => line.includes('ns/service-') && line.includes('TCP'))).toHaveLength(10)
    expect(lines.at(-1)).toBe('and 190 more rows; --limit prints more')
  })

  it.each([
    [-5, 40],
    [1e9, 1_000],
  ])('is as wide as a name needs where $COLUMNS is %d', (columns, width) => {
    const lines = topText(MANY, view(), { limit: 1, columns }).split('\n')
    expect(lines.find(line => line.startsWith('SERVICE'))).toHaveLength(width)
    expect(lines.some(line => line.includes('ns/ser'))).toBe(true)
  })
})

describe('rowsOf', () => {
  const two = topState({
    rows: [
      row('ns/a:http', { perSecond: 1, total: 9, open: 2 }),
      row('ns/a:http', { perSecond: 2, total: 1, open: 1, endpoint: '10.1.0.2:80' }),
      row('ns/b:http', { perSecond: 2, total: 3, open: 8 }),
    ],
  })

  it('adds up the endpoints of a Service', () => {
    expect(rowsOf(two, view())).toMatchObject([
      { service: 'ns/a:http', endpoint: '', perSecond: 3, total: 10, open: 3 },
      { service: 'ns/b:http', perSecond: 2 },
    ])
  })

  it.each([1, 5, 24, 199, 200])('gives the first %d rows of a sorted list', max => {
    const rows = Array.from({ length: 200 }, (_, n) =>
      row(`ns/service-${(n * 37) % 200}:http`, { perSecond: n % 7, total: n % 3 }),
    )
    const sorted = rowsOf({ rows }, view())
    expect(sorted).toHaveLength(200)
    expect(sorted.map(({ perSecond }) => perSecond)).toEqual(
      rows.map(({ perSecond }) => perSecond).sort((a, b) => b - a),
    )
    expect(rowsOf({ rows }, view(), max)).toEqual(sorted.slice(0, max))
  })

  it('sorts and filters', () => {
    const names = (more: Partial<TopView>) => rowsOf(two, view(more)).map(({ service }) => service)
    expect(names({ sort: 'open' })).toEqual(['ns/b:http', 'ns/a:http'])
    expect(names({ sort: 'name' })).toEqual(['ns/a:http', 'ns/b:http'])
    expect(names({ filter: '/b' })).toEqual(['ns/b:http'])
    expect(rowsOf(two, view({ by: 'endpoint', filter: '0.2:' }))).toHaveLength(1)
  })
})

describe('the keys of top', () => {
  const pressed = (at: TopView, key: string, offsetMax = 99) => keyPressed(at, key, offsetMax)

  it('quits, suspends, sorts, switches, scrolls and helps', () => {
    expect(pressed(view(), 'q')).toBe('quit')
    expect(pressed(view(), '\u0003')).toBe('quit')
    expect(pressed(view(), '\u001a')).toBe('suspend')
    expect(pressed(view(), 's')).toMatchObject({ sort: 'total' })
    expect(pressed(view({ sort: 'name' }), 's')).toMatchObject({ sort: 'rate' })
    expect(pressed(view(), 'e')).toMatchObject({ by: 'endpoint' })
    expect(pressed(view(), `${ESCAPE}[B`)).toMatchObject({ offset: 1 })
    expect(pressed(view(), `${ESCAPE}[A`)).toMatchObject({ offset: 0 })
    expect(pressed(view(), '?')).toMatchObject({ pane: 'help' })
    expect(pressed(view(), 'x')).toEqual(view())
  })

  it('scrolls no further than there are rows', () => {
    expect(pressed(view({ offset: 95 }), `${ESCAPE}[6~`)).toMatchObject({ offset: 99 })
    expect(pressed(view(), `${ESCAPE}[B`, 0)).toMatchObject({ offset: 0 })
    const size = { columns: 80, rows: 24 }
    const offset = scrollMax(topContent(MANY, view(), size.columns), size)
    const last = topPicture(MANY, view({ offset }), size).lines.at(-1)
    expect(last).toMatch(/^\d+-200 of 200 /)
    expect(topPicture(MANY, view({ offset: offset + 1 }), size).lines.at(-1)).toBe(last)
  })

  it('takes a text to filter by, letters that are keys elsewhere too', () => {
    const typed = (...keys: readonly string[]) =>
      keys.reduce<ReturnType<typeof keyPressed>>(
        (at, key) => (typeof at === 'string' ? at : pressed(at, key)),
        view(),
      )
    const keys = ['/', 'q', 's', 'e', '\u0001', 'x', '\u007f']
    expect(typed(...keys)).toMatchObject({ pane: 'filter', filter: 'qse' })
    expect(typed(...keys, '\r')).toMatchObject({ pane: 'table', filter: 'qse' })
    expect(typed(...keys, ESCAPE)).toMatchObject({ filter: '' })
  })
})

describe('TopRows', () => {
  const group = (endpoint: string, begun: number): FlowGroup => ({
    protocol: 'TCP',
    service: 'shop/cart:http',
    endpoint,
    pod: undefined,
    client: undefined,
    begun,
    ended: 0,
    unanswered: 0,
    volume: undefined,
  })
  const shown = (rows: TopRows) => rows.all.map(({ endpoint }) => endpoint).toSorted()

  it('gives the room of endpoints without connections to new ones', () => {
    const rows = new TopRows(2)
    rows.takeBegun([group('a', 3), group('b', 2)], 1)
    rows.takeOpen([group('b', 1)])
    rows.takeBegun([group('c', 1)], 1)
    expect([shown(rows), rows.isCut]).toEqual([['b', 'c'], false])
  })

  it('says that endpoints with connections have no room', () => {
    const rows = new TopRows(2)
    rows.takeBegun([group('a', 3), group('b', 2), group('c', 1)], 1)
    expect([shown(rows), rows.isCut]).toEqual([['a', 'b'], true])
    rows.takeBegun([], 1)
    expect(rows.isCut).toBe(false)
    rows.takeOpen([group('a', 1), group('b', 1), group('c', 1)])
    expect(rows.isCut).toBe(true)
  })
})

describe('fitted', () => {
  it('cuts before a wide character that does not fit, and pads', () => {
    expect(fitted('日本語', 5)).toBe('日本…')
    expect(fitted('日本語', 4)).toBe('日… ')
    expect(fitted('ab', 4, 'right')).toBe('  ab')
    expect(fitted('abc', 0)).toBe('')
  })
})

describe('daemonState', () => {
  it('skips fields of another shape', () => {
    expect(
      daemonState({ mode: 7, source: 'x', repairs: null, commits: [1, { time: 3 }], services: 'many' }),
    ).toEqual({
      mode: 'no',
      services: undefined,
      failedOver: [],
      quarantined: 0,
      sourceAgeMs: undefined,
      error: undefined,
      repairs: 0,
      commits: [{ time: '', reason: '', changes: 0 }],
    })
  })
})
