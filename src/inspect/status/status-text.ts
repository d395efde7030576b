import { oneLine } from '../../base/text.ts'
import type { Io } from '../../cli/io.ts'
import { fitted, startOf, textWidth } from '../live/live-table.ts'
import { paletteOf, type Tone } from '../palette.ts'
import type { Problem, StatusDocument } from './status-document.ts'

const TONES: Readonly<Record<StatusDocument['verdict'], Tone>> = {
  well: 'good',
  unknown: 'warning',
  impaired: 'warning',
  down: 'bad',
}
/** With the facts, these make less than 25 lines. */
const PROBLEMS_SHOWN = 4
const PROBLEM_LINES = 2
const WIDTH = { min: 40, max: 160, unknown: 100 } as const

/** Formats the status as one screen: less than 25 lines, whatever the length of names. */
export function statusText(
  { verdict, sentence, problems, facts }: StatusDocument,
  { color, columns = WIDTH.unknown }: Pick<Io, 'color' | 'columns'>,
): string {
  const width = Math.min(Math.max(columns, WIDTH.min), WIDTH.max)
  const palette = paletteOf({ color })
  const named = Math.max(0, ...facts.map(({ name }) => name.length))
  const shown = problems.slice(0, PROBLEMS_SHOWN)
  const more = problems.length - shown.length
  const word = verdict.toUpperCase()
  const lines = [
    `${palette[TONES[verdict]](word)}  ${clipped(oneLine(sentence), width - word.length - 2)}`,
    ...shown.flatMap(problem => problemLines(problem, { width, palette })),
    ...(more === 0 ? [] : [`  and ${more} more; -o json lists all`]),
    '',
    ...facts.map(({ name, text }) => {
      const label = name.padEnd(named)
      return `${palette.dim(label)}  ${clipped(oneLine(text), width - named - 2)}`
    }),
  ]
  return `${lines.join('\n')}\n`
}

interface Layout {
  readonly width: number
  readonly palette: ReturnType<typeof paletteOf>
}

function problemLines({ level, text, hint }: Problem, { width, palette }: Layout): readonly string[] {
  const mark = level === 'error' ? palette.bad('error') : palette.warning('warning')
  const indent = ' '.repeat(2 + level.length + 2)
  const [first = '', ...rest] = wrapped(oneLine(text), width - indent.length, PROBLEM_LINES)
  const last = hint === undefined ? [] : [indent + palette.dim(clipped(oneLine(hint), width - indent.length))]
  return [`  ${mark}  ${first}`, ...rest.map(line => indent + line), ...last]
}

/** Wraps at words; the last of `max` lines is cut. */
function wrapped(text: string, width: number, max: number): readonly string[] {
  const lines: string[] = []
  let rest = text
  while (textWidth(rest) > width && lines.length < max - 1) {
    const fits = startOf(rest, width).length
    const space = rest.lastIndexOf(' ', fits)
    const at = space > 0 ? space : fits
    lines.push(rest.slice(0, at))
    rest = rest.slice(at).trimStart()
  }
  return [...lines, clipped(rest, width)]
}

function clipped(text: string, width: number): string {
  return fitted(text, width).trimEnd()
}
