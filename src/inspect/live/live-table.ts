import { oneLine } from '../../base/text.ts'
import { BOLD, type Io } from '../../cli/io.ts'
import { paletteOf, type Tone } from '../palette.ts'

export const SORTS = ['rate', 'total', 'open', 'unanswered', 'name'] as const
export type TopSort = (typeof SORTS)[number]

/** The user's choices; the filter selects Services or endpoints by name. */
export interface TopView {
  readonly by: 'service' | 'endpoint'
  readonly sort: TopSort
  readonly filter: string
  readonly offset: number
  /** The help pane explains the keys; in the filter pane the user types. */
  readonly pane: 'table' | 'help' | 'filter'
}

export const FIRST_VIEW: TopView = { by: 'service', sort: 'rate', filter: '', offset: 0, pane: 'table' }

type KeyResult = TopView | 'quit' | 'suspend'

interface LiveTableOptions {
  readonly io: Io
  readonly suspend: NonNullable<Io['suspend']>
  readonly view: TopView
  /** Undefined until there is something to show. */
  readonly content: (view: TopView, columns: number) => TableContent | undefined
}

/** A table on the terminal that is drawn again and again, until the user quits. */
export class LiveTable {
  readonly #options: LiveTableOptions
  readonly #screen: Screen
  readonly #quit = new AbortController()
  #view: TopView

  constructor(options: LiveTableOptions) {
    this.#options = options
    this.#view = options.view
    this.#screen = new Screen({
      suspend: options.suspend,
      color: options.io.color,
      onKeys: keys => this.#keys(keys),
      redraw: () => this.draw(),
    })
  }

  /** Opens the screen while `measure` runs, which ends soon after `stop` is aborted. */
  async run(measure: (stop: AbortSignal) => Promise<void>): Promise<void> {
    const { io } = this.#options
    // The signal would end the process without an exit event, and leave the terminal in raw mode.
    const ignore = io.on('SIGHUP', () => this.#quit.abort())
    this.#screen.open()
    try {
      await measure(AbortSignal.any([io.signal, io.outLost, this.#quit.signal]))
    } finally {
      this.#screen.close()
      ignore()
    }
  }

  draw(): void {
    const { size } = this.#screen
    const content = this.#options.content(this.#view, size.columns)
    if (content !== undefined) this.#screen.draw(tablePicture(content, this.#view, size))
  }

  /** Takes keys that may have come together, as from a slow line. */
  #keys(keys: string): void {
    for (const [key] of keys.matchAll(/\p{Cc}(?:\[[0-9;]*[A-Za-z~]|O[A-Z])?|\P{Cc}/gu)) {
      const result = this.#pressed(key)
      if (result === 'quit') this.#quit.abort()
      else if (result === 'suspend') this.#screen.suspend()
      else this.#view = result
    }
    this.draw()
  }

  #pressed(key: string): KeyResult {
    const { size } = this.#screen
    const shown = this.#options.content(this.#view, size.columns)
    return keyPressed(this.#view, key, shown === undefined ? 0 : scrollMax(shown, size))
  }
}

/** The data of a table, without the user's choices. */
export interface TableContent {
  readonly head: readonly string[]
  /** The meaning of a line, which colors it. */
  readonly toneOf: (line: string) => Tone | undefined
  readonly count: number
  readonly lines: (offset: number, rows: number) => readonly string[]
}

const LEAST: Size = { columns: 40, rows: 10 }
const HEAD_LINES_MAX = 6

/** Lays a table out for a terminal. Pure. No line is wider than the terminal, and there are no more than its rows. */
export function tablePicture(content: TableContent, view: TopView, size: Size): Picture {
  const { columns, rows } = size
  if (columns < LEAST.columns || rows < LEAST.rows) {
    const text = `terminal of ${columns}x${rows}: kprobe top needs ${LEAST.columns}x${LEAST.rows}; q quits`
    return { lines: [fitted(text, columns)], bold: new Set() }
  }
  const head = content.head.slice(0, HEAD_LINES_MAX)
  if (view.pane === 'help')
    return {
      lines: [...head, '', ...HELP].slice(0, rows).map(line => fitted(line, columns)),
      bold: new Set([0]),
    }
  const room = roomFor(content, size)
  const offset = Math.min(view.offset, scrollMax(content, size))
  const table = content.lines(offset, room)
  const empty = Array.from({ length: Math.max(0, room + 1 - table.length) }, () => '')
  const lines = [...head, ...table, ...empty, footText(content, view, { offset, room })]
  const bold = new Set([0, head.length])
  return {
    lines: lines.map(line => fitted(line, columns)),
    bold,
    tones: lines.map(content.toneOf),
  }
}

export function scrollMax(content: Pick<TableContent, 'head' | 'count'>, size: Size): number {
  return Math.max(0, content.count - roomFor(content, size))
}

function roomFor({ head }: Pick<TableContent, 'head'>, { rows }: Size): number {
  return rows - Math.min(head.length, HEAD_LINES_MAX) - 2
}

function footText(
  { count }: TableContent,
  { filter, pane }: TopView,
  { offset, room }: { readonly offset: number; readonly room: number },
): string {
  if (pane === 'filter') return `/${oneLine(filter)}_  Enter keeps it, Esc clears it`
  const from = count === 0 ? 0 : offset + 1
  const filtered = filter === '' ? '' : ` with "${oneLine(filter)}"`
  return `${from}-${Math.min(count, offset + room)} of ${count}${filtered}  q quit  s sort  e endpoints  / filter  ? help`
}

const HELP: readonly string[] = [
  'e           Services, or their endpoints',
  'q, Ctrl-C   quit',
  's           sort by the next column: new/s, total, open, no reply, name',
  '/           show only names with a text; Esc clears it',
  'arrows      scroll; Home, PgUp, PgDn too',
  'Ctrl-Z      suspend',
  '?           back to the table',
]

/** Rows by the keys that scroll: arrows, PgUp, PgDn and Home. */
const SCROLLED: ReadonlyMap<string, number> = new Map([
  ['\u001b[A', -1],
  ['\u001b[B', 1],
  ['\u001b[5~', -10],
  ['\u001b[6~', 10],
  ['\u001b[H', Number.NEGATIVE_INFINITY],
])

/** Applies a key as a terminal sends it; at most `offsetMax` rows are scrolled away. Unknown keys change nothing. Pure. */
export function keyPressed(view: TopView, key: string, offsetMax: number): KeyResult {
  if (key === '\u0003') return 'quit'
  if (key === '\u001a') return 'suspend'
  if (view.pane === 'filter') return filterKey(view, key)
  switch (key) {
    case 'q':
      return 'quit'
    case '?':
    case 'h':
      return { ...view, pane: view.pane === 'help' ? 'table' : 'help' }
    case 's':
      return { ...view, sort: SORTS[(SORTS.indexOf(view.sort) + 1) % SORTS.length] ?? view.sort }
    case 'e':
      return { ...view, by: view.by === 'service' ? 'endpoint' : 'service', offset: 0 }
    case '/':
      return { ...view, pane: 'filter' }
    case '\u001b':
      return { ...view, filter: '', offset: 0, pane: 'table' }
    default: {
      const rows = SCROLLED.get(key)
      if (rows === undefined) return view
      return { ...view, offset: Math.max(0, Math.min(view.offset + rows, offsetMax)) }
    }
  }
}

function filterKey(view: TopView, key: string): TopView {
  if (key === '\r' || key === '\n') return { ...view, pane: 'table', offset: 0 }
  if (key === '\u001b') return { ...view, pane: 'table', filter: '', offset: 0 }
  if (key === '\u007f' || key === '\b') return { ...view, filter: view.filter.slice(0, -1) }
  const typed = key.startsWith('\u001b') ? '' : key.replace(/\p{C}/gu, '')
  return { ...view, filter: (view.filter + typed).slice(0, 64) }
}

const ESCAPE = '\u001b'
/** The second screen of the terminal, without a cursor; what the user had stays on the first. */
const ENTER = `${ESCAPE}[?1049h${ESCAPE}[?25l`
const LEAVE = `${ESCAPE}[?25h${ESCAPE}[?1049l`
const HOME = `${ESCAPE}[H`
const CLEAR_LINE = `${ESCAPE}[K`
const CLEAR_REST = `${ESCAPE}[J`

export interface Size {
  readonly columns: number
  readonly rows: number
}

interface Picture {
  readonly lines: readonly string[]
  readonly bold: ReadonlySet<number>
  readonly tones?: readonly (Tone | undefined)[]
}

interface ScreenOptions {
  readonly suspend: NonNullable<Io['suspend']>
  readonly color: boolean
  /** Takes keys as the terminal sends them: `q`, or `\u001b[A` for an arrow. */
  readonly onKeys: (keys: string) => void
  /** Draws again: the size changed, or the process was continued. */
  readonly redraw: () => void
}

/**
 * The terminal as a screen without line editing. However the process ends, short of SIGKILL, the terminal gets back what
 * it was before; so it does while the process is suspended.
 */
class Screen {
  readonly #options: ScreenOptions
  readonly #onKeys: (chunk: Buffer) => void
  #isOpen = false

  constructor(options: ScreenOptions) {
    this.#options = options
    this.#onKeys = chunk => options.onKeys(chunk.toString('utf8'))
  }

  open(): void {
    const { redraw } = this.#options
    process.stdin.on('data', this.#onKeys)
    process.stdout.on('resize', redraw)
    process.on('SIGTSTP', this.suspend)
    process.on('SIGCONT', this.#resume)
    process.on('exit', this.#leave)
    this.#resume()
  }

  get size(): Size {
    const { columns = 80, rows = 24 } = process.stdout
    return { columns, rows }
  }

  draw({ lines, bold, tones = [] }: Picture): void {
    // A terminal that is further behind gets no new picture: a slow line would fall ever further behind.
    if (!this.#isOpen || process.stdout.writableLength > 64 * 1024) return
    const [on, off] = this.#options.color ? BOLD : ['', '']
    const palette = paletteOf(this.#options)
    const texts = lines.map((line, at) => {
      const tone = tones[at]
      const painted = tone === undefined ? line : palette[tone](line)
      return `${bold.has(at) ? `${on}${line}${off}` : painted}${CLEAR_LINE}`
    })
    process.stdout.write(`${HOME}${texts.join('\r\n')}${CLEAR_REST}`)
  }

  /** Gives the terminal back to the shell until it continues the process. */
  readonly suspend = (): void => {
    this.#leave()
    this.#options.suspend()
  }

  close(): void {
    this.#leave()
    process.stdin.off('data', this.#onKeys)
    process.stdin.pause()
    process.stdout.off('resize', this.#options.redraw)
    process.off('SIGTSTP', this.suspend)
    process.off('SIGCONT', this.#resume)
    process.off('exit', this.#leave)
  }

  readonly #resume = (): void => {
    if (!this.#isOpen) process.stdout.write(ENTER)
    this.#isOpen = true
    // The shell set its own mode while the process was suspended.
    process.stdin.setRawMode(false)
    process.stdin.setRawMode(true)
    process.stdin.resume()
    this.#options.redraw()
  }

  readonly #leave = (): void => {
    if (!this.#isOpen) return
    this.#isOpen = false
    process.stdin.setRawMode(false)
    process.stdout.write(LEAVE)
  }
}

/** Characters that take two columns: East Asian wide and full-width ones, and pictures. */
const WIDE =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u
const WIDTHLESS = /\p{M}/u

function widthOf(character: string): number {
  if (character <= '~') return 1
  return WIDTHLESS.test(character) ? 0 : WIDE.test(character) ? 2 : 1
}

/** Counts the columns that a text takes, which has no control characters. */
export function textWidth(text: string): number {
  let width = 0
  for (const character of text) width += widthOf(character)
  return width
}

export function fitted(text: string, columns: number, side: 'left' | 'right' = 'left'): string {
  const width = textWidth(text)
  if (width <= columns) {
    const padding = ' '.repeat(columns - width)
    return side === 'left' ? text + padding : padding + text
  }
  if (columns < 1) return ''
  const cut = startOf(text, columns - 1)
  return `${cut}…${' '.repeat(columns - 1 - textWidth(cut))}`
}

/** Gives the start of a text that fits into so many columns. */
export function startOf(text: string, columns: number): string {
  let [start, used] = ['', 0]
  for (const character of text) {
    used += widthOf(character)
    if (used > columns) break
    start += character
  }
  return start
}

export function rateText(perSecond: number): string {
  return perSecond >= 100 ? perSecond.toFixed(0) : perSecond.toFixed(1)
}
