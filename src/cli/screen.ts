import type { Io } from './io.ts'
import { BOLD } from './output.ts'

const ESCAPE = '\u001b'
/** The second screen of the terminal, without a cursor; what the user had stays on the first. */
const ENTER = `${ESCAPE}[?1049h${ESCAPE}[?25l`
const LEAVE = `${ESCAPE}[?25h${ESCAPE}[?1049l`
const HOME = `${ESCAPE}[H`
const CLEAR_LINE = `${ESCAPE}[K`
const CLEAR_REST = `${ESCAPE}[J`

/** A terminal that is further behind gets no new picture: a slow line would fall ever further behind. */
const BACKLOG_BYTES_MAX = 64 * 1024

export interface Size {
  readonly columns: number
  readonly rows: number
}

/** What is drawn: lines that fit, and which of them stand out. */
export interface Picture {
  readonly lines: readonly string[]
  /** Indices of headings. */
  readonly bold: ReadonlySet<number>
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
export class Screen {
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

  draw({ lines, bold }: Picture): void {
    if (!this.#isOpen || process.stdout.writableLength > BACKLOG_BYTES_MAX) return
    const [on, off] = this.#options.color ? BOLD : ['', '']
    const texts = lines.map((line, at) => `${bold.has(at) ? `${on}${line}${off}` : line}${CLEAR_LINE}`)
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

/** Cuts or pads a text to exactly so many columns. */
export function fitted(text: string, columns: number, side: 'left' | 'right' = 'left'): string {
  const width = textWidth(text)
  if (width <= columns) {
    const padding = ' '.repeat(columns - width)
    return side === 'left' ? text + padding : padding + text
  }
  if (columns < 1) return ''
  let [cut, used] = ['', 0]
  for (const character of text) {
    const next = widthOf(character)
    if (used + next > columns - 1) break
    cut += character
    used += next
  }
  return `${cut}…${' '.repeat(columns - 1 - used)}`
}
