import { oneLine } from '../../base/text.ts'
import { podText } from '../../model/pod-names.ts'
import { rounded, shareByDestination } from './answer.ts'
import type { Asked, Explanation } from './explanation.ts'

/** Boxes and arrows for the path of one connection: from the client down to its rules, and from there to its ends. */
interface Picture {
  readonly title: string
  readonly path: readonly Box[]
  /** Endpoints and verdicts behind the last box of the path. */
  readonly ends: readonly (Box & { readonly share: string; readonly isReached: boolean })[]
}

interface Box {
  /** Lines without control characters. */
  readonly lines: readonly string[]
}

const ENDS_MAX = 20

const VERDICTS = { reject: 'rejected', drop: 'dropped', accept: 'passes unchanged', dnat: '' } as const

export function pictureOf(explanation: Explanation, asked: Asked): Picture {
  const { connection, service, frontend, kernel, rules, answer } = explanation
  const isDamaged = kernel.kind === 'different' && kernel.part === 'rules'
  const path = isDamaged ? kernel.rules : kernel.kind === 'same' ? (kernel.rules ?? rules) : rules
  return {
    title: oneLine(answer),
    path: [
      box(asked.from, connection.from === asked.from ? '' : connection.from),
      box(`${connection.to}/${connection.protocol}`, service === undefined ? '' : `${service} (${frontend})`),
      ...path.map(({ chain, rule, text }) => box(rule === 0 ? chain : `${chain}, rule ${rule}`, text)),
    ],
    ends: endsOf(explanation),
  }
}

function box(...lines: readonly string[]): Box {
  // Characters of a line in a box.
  return { lines: lines.filter(line => line !== '').flatMap(line => wrapped(oneLine(line), 60)) }
}

function endsOf({ kernel, outcomes: wanted, endpoints, list }: Explanation): Picture['ends'] {
  const outcomes = kernel.kind === 'different' ? kernel.outcomes : wanted
  const shares = shareByDestination(outcomes)
  const known = new Map(endpoints.map(each => [each.address, each]))
  const reached = [...shares].map(([address, share]) => {
    const { node = '', pod } = known.get(address) ?? {}
    return {
      ...box(podText(address, pod), node === '' ? '' : `on ${node}`),
      share: `${rounded(share)} %`,
      isReached: true,
    }
  })
  const verdicts = outcomes.flatMap(({ verdict, percent }) =>
    verdict === 'dnat'
      ? []
      : [{ ...box(VERDICTS[verdict]), share: `${rounded(percent)} %`, isReached: true }],
  )
  const others = endpoints.flatMap(endpoint => {
    if (list === undefined || shares.has(endpoint.address)) return []
    const { isIn, reason } = endpoint[list]
    const share = `${isIn ? 'in' : 'out'}: ${reason}`
    return [
      {
        ...box(podText(endpoint.address, endpoint.pod), endpoint.node === '' ? '' : `on ${endpoint.node}`),
        share,
        isReached: false,
      },
    ]
  })
  const all = [...reached, ...verdicts, ...others]
  const more = all.length - ENDS_MAX
  if (more <= 0) return all
  return [...all.slice(0, ENDS_MAX), { ...box(`${more} more endpoints`), share: '', isReached: false }]
}

/** Breaks a line at blanks, and words that are too long at any place. */
function wrapped(line: string, width: number): readonly string[] {
  return line.match(new RegExp(`.{1,${width}}(?= |$)|.{1,${width}}`, 'gu'))?.map(each => each.trim()) ?? ['']
}

/** Measures of an SVG, in pixels; its font has characters of one width. */
const SVG = { margin: 16, character: 7.3, line: 16, pad: 8, gap: 24 } as const

interface Point {
  readonly x: number
  readonly y: number
}

interface Rectangle extends Point {
  readonly width: number
  readonly height: number
}

interface Placed extends Rectangle {
  readonly lines: readonly string[]
}

interface Drawing {
  readonly title: string
  readonly width: number
  readonly height: number
  readonly shapes: readonly Shape[]
}

type Shape =
  | (Point & { readonly kind: 'text'; readonly text: string; readonly isTitle: boolean })
  | (Rectangle & { readonly kind: 'box' })
  | { readonly kind: 'arrow'; readonly d: string; readonly isReached: boolean }

/** Lays a picture out: the path on the left, its ends on the right. */
export function drawingOf({ title, path, ends }: Picture): Drawing {
  const top = SVG.margin + SVG.line * (wrapped(title, 100).length + 1)
  const way = placed(path, SVG.margin, top)
  const wayWidth = Math.max(...way.map(({ width }) => width))
  const label =
    Math.max(...ends.map(({ share }) => share.length), 0) * SVG.character + 2 * (SVG.gap + SVG.pad)
  const found = placed(ends, SVG.margin + wayWidth + label, top)
  const all = [...way, ...found]
  const last = way.at(-1)
  return {
    title,
    width: Math.ceil(Math.max(...all.map(its => its.x + its.width), 100 * SVG.character) + SVG.margin),
    height: Math.ceil(Math.max(...all.map(its => its.y + its.height)) + SVG.margin),
    shapes: [
      ...texts(wrapped(title, 100), { x: SVG.margin, y: SVG.margin, isTitle: true }),
      ...way.slice(1).flatMap((to, index) => down(way[index], to)),
      ...found.flatMap((to, index) =>
        across({ from: last, to, end: ends[index], bend: SVG.margin + wayWidth + SVG.gap }),
      ),
      ...all.flatMap(({ lines, ...box }): Shape[] => [
        { kind: 'box', ...box },
        ...texts(lines, { x: box.x + SVG.pad, y: box.y + SVG.pad }),
      ]),
    ],
  }
}

/** Writes a picture as SVG, which follows the light or dark mode of the reader. */
export function svgText(picture: Picture): string {
  const { title, width, height, shapes } = drawingOf(picture)
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img">`,
    `<title>${xml(title)}</title>`,
    `<style>${STYLE}</style>`,
    ...shapes.map(shapeText),
    '</svg>',
    '',
  ].join('\n')
}

function shapeText(shape: Shape): string {
  switch (shape.kind) {
    case 'text':
      return `<text x="${shape.x}" y="${shape.y}"${shape.isTitle ? ' class="title"' : ''}>${xml(shape.text)}</text>`
    case 'box':
      return `<rect x="${shape.x}" y="${shape.y}" width="${shape.width}" height="${shape.height}" rx="4"/>`
    case 'arrow':
      return `<path${shape.isReached ? '' : ' class="out"'} d="${shape.d}"/>`
  }
}

const STYLE =
  'svg{background:#fff;color:#222}text{font:12px monospace;fill:currentColor}.title{font-weight:bold}' +
  'rect{fill:none;stroke:currentColor}path{fill:none;stroke:currentColor}.out{stroke-dasharray:4 4}' +
  '@media(prefers-color-scheme:dark){svg{background:#111;color:#eee}}'

function placed(boxes: readonly Box[], x: number, top: number): readonly Placed[] {
  let y = top
  return boxes.map(box => {
    const { lines } = box
    const width = Math.ceil(Math.max(...lines.map(line => line.length)) * SVG.character) + 2 * SVG.pad
    const height = lines.length * SVG.line + 2 * SVG.pad
    const at = { lines, x, y, width, height }
    y += height + SVG.gap
    return at
  })
}

function down(from: Placed | undefined, to: Placed): readonly Shape[] {
  if (from === undefined) return []
  const x = from.x + 24
  return [{ kind: 'arrow', d: `M${x} ${from.y + from.height}V${to.y}m-4-6l4 6l4-6`, isReached: true }]
}

interface Arrow {
  readonly from: Placed | undefined
  readonly to: Placed
  readonly end: Picture['ends'][number] | undefined
  readonly bend: number
}

/** An arrow from the path to an end, with a bend behind the widest box of the path. */
function across({ from, to, end, bend }: Arrow): readonly Shape[] {
  if (from === undefined || end === undefined) return []
  const [y, target] = [from.y + from.height / 2, to.y + to.height / 2]
  const d = `M${from.x + from.width} ${y}H${bend}V${target}H${to.x}m-6-4l6 4l-6 4`
  return [
    { kind: 'arrow', d, isReached: end.isReached },
    ...texts([end.share], { x: bend + SVG.pad, y: target - SVG.line - 2 }),
  ]
}

function texts(
  lines: readonly string[],
  { x, y, isTitle = false }: Point & { readonly isTitle?: boolean },
): readonly Shape[] {
  return lines.map((text, index) => ({ kind: 'text', x, y: y + 12 + index * SVG.line, text, isTitle }))
}

function xml(text: string): string {
  return text.replace(/[&<>"]/g, character => `&#${character.charCodeAt(0)};`)
}
