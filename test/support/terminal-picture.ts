/* Draws what a command printed as a picture of a terminal. test/kernel/demo.long.test.ts writes and compares the pictures. */

const COLUMNS = 112
const CELL = { width: 7.25, height: 17, margin: 14, size: 12 }

const escaped = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
const plain = (text: string): string =>
  text.replaceAll('&lt;', '<').replaceAll('&gt;', '>').replaceAll('&amp;', '&')

/** A terminal of 112 columns: longer lines are wrapped at words, and go on in the next row, of class `on`. */
export function drawTerminal(command: string, output: string): string {
  const lines = [`$ ${command}`, ...output.trimEnd().split('\n')]
  const rows = lines.flatMap((line, at) =>
    // A row keeps the blank at its end, so that the rows together are the line.
    (line.match(new RegExp(`.{1,${COLUMNS - 1}}(?: |$)|.{1,${COLUMNS}}`, 'g')) ?? ['']).map((text, part) => ({
      kind: part > 0 ? 'on' : at === 0 ? 'command' : 'line',
      text,
    })),
  )
  const width = Math.ceil(Math.max(...rows.map(({ text }) => text.length)) * CELL.width + 2 * CELL.margin)
  const height = rows.length * CELL.height + 2 * CELL.margin
  const texts = rows.map(({ kind, text }, row) => {
    const y = CELL.margin + row * CELL.height + CELL.size
    return `<text class="${kind}" x="${CELL.margin}" y="${y}">${escaped(text)}</text>`
  })
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img">`,
    `<title>${escaped(command)}</title>`,
    '<style>rect{fill:#16181d}text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#d6dae3;white-space:pre}.command{fill:#8fd18f}</style>',
    `<rect width="${width}" height="${height}" rx="8"/>`,
    ...texts,
    '</svg>',
    '',
  ].join('\n')
}

/** Reads the lines of a picture, without the command. */
export function linesOf(svg: string): readonly string[] {
  const lines: string[] = []
  for (const [, kind, text = ''] of svg.matchAll(/<text class="(\w+)"[^>]*>([^<]*)<\/text>/g))
    if (kind === 'on') lines.push(`${lines.pop() ?? ''}${plain(text)}`)
    else if (kind === 'line') lines.push(plain(text))
  return lines
}
