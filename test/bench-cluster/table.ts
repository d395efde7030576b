import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { cpus, release } from 'node:os'
import { join } from 'node:path'
import type { ClusterSize } from '../bench/cluster.ts'
import { median } from '../bench/report.ts'
import { FIGURES, type Figure, type Measured, type Run } from './measure.ts'
import type { PathFigures } from './path.ts'
import { type Bars, barPlot } from './plot.ts'
import { CONTENDERS, type Contender, contenderText } from './proxies.ts'

/** The page docs/benchmarks.md and its plots. */

export interface SizeResult {
  readonly size: ClusterSize
  readonly measured: Measured
}

interface Plot {
  readonly file: string
  readonly title: string
  readonly unit: string
  readonly figure: string
}

const PLOTS: readonly Plot[] = [
  {
    file: 'start.svg',
    title: 'Start of the process to every Service answering',
    unit: 'ms',
    figure: 'process start to every VIP answering, ms',
  },
  {
    file: 'change.svg',
    title: 'One endpoint replaced to the first packet that it gets',
    unit: 'ms',
    figure: 'one endpoint replaced to first packet, p50 ms',
  },
  {
    file: 'storm.svg',
    title: '100 changes a second: processor time',
    unit: '% of a core',
    figure: 'CPU in the storm, % of a core',
  },
  { file: 'memory.svg', title: 'Memory of the idle process', unit: 'MiB', figure: 'idle RSS, MiB' },
]

const root = process.env.KPROBE_ROOT ?? '.'
const FOLDER = join(root, 'docs/benchmarks')

/** Writes the page of all sizes that were measured so far. */
export function writePage(results: readonly SizeResult[], runs: number): void {
  mkdirSync(FOLDER, { recursive: true })
  for (const plot of PLOTS) writeFileSync(join(FOLDER, plot.file), drawn(plot, results))
  const page = [...head(runs), ...PLOTS.map(({ file, title }) => `![${title}](benchmarks/${file})\n`)]
  for (const result of results) page.push(...section(result))
  writeFileSync(join(root, 'docs/benchmarks.md'), `${page.join('\n').trimEnd()}\n`)
}

function head(runs: number): readonly string[] {
  const [processor] = cpus()
  const memory = /^MemTotal:\s+(\d+)/m.exec(readFileSync('/proc/meminfo', 'utf8'))?.[1]
  const commit = execFileSync('git', ['-C', root, 'describe', '--always', '--dirty'], { encoding: 'utf8' })
  return [
    '# Benchmarks',
    '',
    `\`npm run bench:cluster -- table\` made this page on ${new Date().toISOString().slice(0, 10)}, of commit`,
    `${commit.trim()}: kprobe and kube-proxy 1.36.3, each in two modes, on the same real API server and the`,
    `same objects, in a network namespace of their own. ${cpus().length} processors (${processor?.model.trim()}),`,
    `${Math.round(Number(memory) / 1024 / 1024)} GiB, Linux ${release()}, Node.js ${process.versions.node}.`,
    '',
    runs === 1
      ? 'Each figure is of one run.'
      : `A figure is the median of ${runs} runs, with the least and the most of them. The proxies run by turns.`,
    '',
  ]
}

function section({ size, measured }: SizeResult): readonly string[] {
  const contenders = CONTENDERS.filter(contender => runsOf(measured, contender).length > 0)
  const names = contenders.map(contenderText)
  const rows = FIGURES.map(figure => [
    figure.title,
    ...contenders.map(contender => spread(figure, runsOf(measured, contender))),
  ])
  const paths: (readonly [string, readonly PathFigures[]])[] = [
    ['no proxy', [measured.bare]],
    ...contenders.map(
      contender =>
        [contenderText(contender), runsOf(measured, contender).map(({ figures }) => figures.path)] as const,
    ),
  ]
  return [
    `## ${sizeText(size)}`,
    '',
    ...markdown(['', ...names], rows),
    '',
    'First packets of connections a second and core, from a socket of the node through all rules:',
    '',
    ...markdown(
      ['to', 'first Service', 'middle', 'last', 'no Service'],
      paths.map(([name, figures]) => [name, ...perSecond(figures)]),
    ),
    '',
  ]
}

function perSecond(figures: readonly PathFigures[]): readonly string[] {
  return (['first', 'middle', 'last', 'elsewhere'] as const).map(key =>
    Math.round(1e9 / median(figures.map(each => each[key])) / 1_000)
      .toLocaleString('en-US')
      .concat(',000'),
  )
}

function runsOf({ runs }: Measured, { name, mode }: Contender): readonly Run[] {
  return runs.filter(({ contender }) => contender.name === name && contender.mode === mode)
}

function spread({ value, digits }: Figure, runs: readonly Run[]): string {
  // What JSON has no number for was not measured.
  const values = runs.map(({ figures }) => value(figures)).filter(Number.isFinite)
  if (values.length === 0) return '–'
  const [middle, least, most] = [median(values), Math.min(...values), Math.max(...values)].map(each =>
    each.toFixed(digits),
  )
  return least === most ? `${middle}` : `${middle} (${least} to ${most})`
}

function markdown(head: readonly string[], rows: readonly (readonly string[])[]): readonly string[] {
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`
  return [line(head), line(head.map((_, index) => (index === 0 ? '---' : '---:'))), ...rows.map(line)]
}

function drawn({ title, unit, figure }: Plot, results: readonly SizeResult[]): string {
  const found = FIGURES.find(each => each.title === figure)
  if (found === undefined) throw new Error(`no figure ${figure}`)
  const groups: Bars[] = results.map(({ size, measured }) => ({
    label: sizeText(size),
    bars: CONTENDERS.flatMap(contender => {
      const values = runsOf(measured, contender).map(({ figures }) => found.value(figures))
      return values.length === 0 ? [] : [{ name: contenderText(contender), value: median(values) }]
    }),
  }))
  return barPlot({ title, unit, groups })
}

function sizeText({ services, endpoints }: ClusterSize): string {
  const count = (number: number, noun: string): string =>
    `${number.toLocaleString('en-US')} ${noun}${number === 1 ? '' : 's'}`
  return `${count(services, 'Service')} with ${count(endpoints, 'endpoint')}${services === 1 ? '' : ' each'}`
}
