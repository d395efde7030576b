/**
 * Draws the SVG of a description: boxes on a grid and arrows between them. Prints it, or with --write replaces the file beside
 * the description. A test compares both.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const BOX = { width: 168, height: 64, gapX: 64, gapY: 56, margin: 12 }
const SOURCE = fileURLToPath(new URL('kprobe.txt', import.meta.url))
export const TARGET = fileURLToPath(new URL('kprobe.svg', import.meta.url))

/** Reads `box NAME COLUMN ROW: text; text` and `arrow FROM TO: label`. */
function parse(text) {
  const boxes = new Map()
  const arrows = []
  for (const line of text.split('\n')) {
    const [, kind, words, label] = /^(box|arrow) ([^:]+):(.*)$/.exec(line) ?? []
    const [a, b, c] = words?.split(' ') ?? []
    if (kind === 'box')
      boxes.set(a, { column: Number(b), row: Number(c), lines: label.split(';').map(each => each.trim()) })
    else if (kind === 'arrow') arrows.push({ from: a, to: b, label: label.trim() })
    else if (line !== '' && !line.startsWith('#')) throw new Error(`kprobe.txt: ${line}`)
  }
  return { boxes, arrows }
}

function rectangle({ column, row }) {
  const x = BOX.margin + column * (BOX.width + BOX.gapX)
  const y = BOX.margin + row * (BOX.height + BOX.gapY)
  return {
    left: x,
    right: x + BOX.width,
    top: y,
    bottom: y + BOX.height,
    x: x + BOX.width / 2,
    y: y + BOX.height / 2,
  }
}

function drawBox(box) {
  const { left, top, x, y } = rectangle(box)
  const [title, ...rest] = box.lines
  const texts = rest.map(
    (line, index) => `<text class="small" x="${x}" y="${y + 18 + 14 * index}">${line}</text>`,
  )
  return [
    `<rect x="${left}" y="${top}" width="${BOX.width}" height="${BOX.height}" rx="6"/>`,
    `<text x="${x}" y="${y}">${title}</text>`,
    ...texts,
  ].join('\n')
}

/** Draws a straight line within a row, and a bent one between two rows. */
function drawArrow({ from, to, label }, boxes) {
  const [a, b] = [from, to].map(name => {
    const box = boxes.get(name)
    if (box === undefined) throw new Error(`kprobe.txt: no box ${name}`)
    return rectangle(box)
  })
  const text = (x, y) => (label === '' ? '' : `\n<text class="small" x="${x}" y="${y}">${label}</text>`)
  if (a.y === b.y) {
    const [start, end] = a.x < b.x ? [a.right, b.left] : [a.left, b.right]
    return `<path d="M${start} ${a.y} H${end}"/>${text((start + end) / 2, a.y - 8)}`
  }
  if (a.y < b.y) {
    // Arrows that go farther keep to the outside, so that no two lie on each other.
    const lane = a.x - b.x > 1.5 * BOX.width + BOX.gapX ? 1 : 0
    return `<path d="M${a.x + 20 * lane} ${a.bottom} V${b.bottom + 14 + 12 * lane} H${b.x} V${b.bottom}"/>`
  }
  const middle = (a.top + b.bottom) / 2
  return `<path d="M${a.x} ${a.top} V${middle} H${b.x} V${b.bottom}"/>${text((a.x + b.x) / 2, middle - 6)}`
}

export function draw(text = readFileSync(SOURCE, 'utf8')) {
  const { boxes, arrows } = parse(text)
  const all = [...boxes.values()].map(rectangle)
  const width = Math.max(...all.map(({ right }) => right)) + BOX.margin
  const height = Math.max(...all.map(({ bottom }) => bottom)) + 40
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}">
<style>
  rect { fill: #eef3fb; stroke: #326ce5; }
  path { fill: none; stroke: #555; marker-end: url(#head); }
  text { font: 600 14px sans-serif; text-anchor: middle; fill: #222; }
  .small { font: 11px sans-serif; }
</style>
<rect width="${width}" height="${height}" style="fill: #fff; stroke: none"/>
<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto"><path d="M0 0 L7 3 L0 6 z" style="fill: #555; marker-end: none"/></marker></defs>
${[...boxes.values()].map(drawBox).join('\n')}
${arrows.map(arrow => drawArrow(arrow, boxes)).join('\n')}
</svg>
`
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  if (process.argv.includes('--write')) writeFileSync(TARGET, draw())
  else process.stdout.write(draw())
}
