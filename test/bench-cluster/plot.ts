/** Horizontal bars in groups, on a logarithmic scale, as SVG. */
export interface Plotted {
  readonly title: string
  readonly unit: string
  readonly groups: readonly Bars[]
}

export interface Bars {
  readonly label: string
  readonly bars: readonly { readonly name: string; readonly value: number }[]
}

const WIDTH = 760
const NAMES = 190
const VALUES = 90
const BAR = 16
const GAP = 5
const HEADING = 26

const STYLE = `
  text { font: 12px sans-serif; fill: #222; }
  .title { font: 600 14px sans-serif; }
  .group { font: 600 12px sans-serif; }
  .kprobe { fill: #326ce5; }
  .other { fill: #b0b4ba; }`

export function barPlot({ title, unit, groups }: Plotted): string {
  const values = groups.flatMap(({ bars }) => bars.map(({ value }) => value)).filter(value => value > 0)
  const least = 10 ** Math.floor(Math.log10(Math.min(...values)) - 0.01)
  const decades = Math.log10(Math.max(...values) / least)
  const length = (value: number): number =>
    value <= 0 ? 0 : (Math.log10(value / least) / decades) * (WIDTH - NAMES - VALUES)
  const parts: string[] = []
  let y = 24
  for (const { label, bars } of groups) {
    y += HEADING
    parts.push(`<text class="group" x="12" y="${y - 8}">${label}</text>`)
    for (const { name, value } of bars) {
      const kind = name.startsWith('kprobe') ? 'kprobe' : 'other'
      const end = NAMES + length(value)
      parts.push(
        `<text x="12" y="${y + BAR - 4}">${name}</text>`,
        `<rect class="${kind}" x="${NAMES}" y="${y}" width="${(end - NAMES).toFixed(1)}" height="${BAR}"/>`,
        `<text x="${(end + 6).toFixed(1)}" y="${y + BAR - 4}">${valueText(value)} ${unit}</text>`,
      )
      y += BAR + GAP
    }
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${y + 12}" width="${WIDTH}" height="${y + 12}">
<style>${STYLE}
</style>
<rect width="${WIDTH}" height="${y + 12}" fill="#fff"/>
<text class="title" x="12" y="24">${title} (each factor of ten has the same length)</text>
${parts.join('\n')}
</svg>
`
}

function valueText(value: number): string {
  return value >= 100 ? Math.round(value).toLocaleString('en-US') : value.toPrecision(2)
}
