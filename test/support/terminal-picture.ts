/* Draws what a command printed as a picture of a terminal. test/kernel/demo.long.test.ts writes and compares the pictures. */

const COLUMNS = 112
const CELL = { width: 7.25, height: 17, margin: 14, size: 12 }

const escaped = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
const plain = (text: string): string =>
  text.replaceAll('&lt;', '<').replaceAll('&gt;', '>').replaceAll('&amp;', '&')

/** The colors of src/cli/palette.ts, by their code. */
const TONES: Readonly<Record<string, string>> = { 32: 'good', 31: 'bad', 33: 'warning', 2: 'dim' }
const ESCAPE = String.fromCharCode(27)
const CODE = new RegExp(`${ESCAPE}\\[([0-9;?]*)[A-Za-z]`)

/** A text without its escapes, and the color of each of its characters. */
function colored(text: string): { readonly text: string; readonly tones: readonly string[] } {
  const [first = '', ...rest] = text.split(CODE)
  const tones = Array<string>(first.length).fill('')
  let plainText = first
  for (let at = 0; at < rest.length; at += 2) {
    const part = rest[at + 1] ?? ''
    plainText += part
    tones.push(...Array<string>(part.length).fill(TONES[rest[at] ?? ''] ?? ''))
  }
  return { text: plainText, tones }
}

/** Spans of one color each. */
function spans(text: string, tones: readonly string[]): string {
  let written = ''
  for (let at = 0, end = 0; at < text.length; at = end) {
    const tone = tones[at] ?? ''
    while (end < text.length && (tones[end] ?? '') === tone) end++
    const part = escaped(text.slice(at, end))
    written += tone === '' ? part : `<tspan class="${tone}">${part}</tspan>`
  }
  return written
}

/** The text of a terminal without colors. */
export const withoutColors = (output: string): string => colored(output.replaceAll('\r', '')).text

/** A terminal of 112 columns: longer lines are wrapped at words, and go on in the next row, of class `on`. */
export function drawTerminal(command: string, output: string): string {
  const lines = [`$ ${command}`, ...output.replaceAll('\r', '').trimEnd().split('\n')]
  const rows = lines.flatMap((line, at) => {
    const { text, tones } = colored(line)
    let from = 0
    // A row keeps the blank at its end, so that the rows together are the line.
    return (text.match(new RegExp(`.{1,${COLUMNS - 1}}(?: |$)|.{1,${COLUMNS}}`, 'g')) ?? ['']).map(
      (row, part) => {
        const its = tones.slice(from, from + row.length)
        from += row.length
        return { kind: part > 0 ? 'on' : at === 0 ? 'command' : 'line', text: row, tones: its }
      },
    )
  })
  const width = Math.ceil(Math.max(...rows.map(({ text }) => text.length)) * CELL.width + 2 * CELL.margin)
  const height = rows.length * CELL.height + 2 * CELL.margin
  const texts = rows.map(({ kind, text, tones }, row) => {
    const y = CELL.margin + row * CELL.height + CELL.size
    return `<text class="${kind}" x="${CELL.margin}" y="${y}">${spans(text, tones)}</text>`
  })
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img">`,
    `<title>${escaped(command)}</title>`,
    `<style>rect{fill:#16181d}text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#d6dae3;white-space:pre}${COLORS}</style>`,
    `<rect width="${width}" height="${height}" rx="8"/>`,
    ...texts,
    '</svg>',
    '',
  ].join('\n')
}

const COLORS = '.command,.good{fill:#8fd18f}.bad{fill:#ff8a80}.warning{fill:#e6c36a}.dim{fill:#949cad}'

/** Reads the lines of a picture, without the command and colors. */
export function linesOf(svg: string): readonly string[] {
  const lines: string[] = []
  for (const [, kind, row = ''] of svg.matchAll(/<text class="(\w+)"[^>]*>(.*)<\/text>/g)) {
    const text = plain(row.replaceAll(/<\/?tspan[^>]*>/g, ''))
    if (kind === 'on') lines.push(`${lines.pop() ?? ''}${text}`)
    else if (kind === 'line') lines.push(text)
  }
  return lines
}
