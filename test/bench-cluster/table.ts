import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { cpus, loadavg, release } from 'node:os'
import { join } from 'node:path'
import type { ClusterSize } from '../bench/cluster.ts'
import { median } from '../bench/report.ts'
import { FIGURES, type Figure, type Measured, type Run } from './measure.ts'
import type { PathFigures } from './path.ts'
import { type Bars, barPlot } from './plot.ts'
import { type Contender, contenderText } from './proxies.ts'

/** The page docs/benchmarks.md and its plots. */

export interface SizeResult {
  readonly size: ClusterSize
  readonly scene: Scene
  readonly measured: Measured
}

/** Under what a size was measured. */
export interface Scene {
  readonly date: string
  readonly commit: string
  readonly machine: string
  /** Of the last minute before it: what ran beside it. */
  readonly load: number
  /** What ran on the machine meanwhile, in words. */
  readonly beside?: string
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

const RESULTS = join(FOLDER, 'results.json')

/** What earlier runs of the command measured. */
export function keptResults(): readonly SizeResult[] {
  return existsSync(RESULTS) ? JSON.parse(readFileSync(RESULTS, 'utf8')) : []
}

export function sceneNow(beside?: string): Scene {
  const [processor] = cpus()
  const memory = /^MemTotal:\s+(\d+)/m.exec(readFileSync('/proc/meminfo', 'utf8'))?.[1]
  return {
    date: new Date().toISOString().slice(0, 10),
    commit: git('describe', '--always') + (git('status', '--porcelain', ...MEASURED) === '' ? '' : '-dirty'),
    machine: [
      `${cpus().length} processors (${processor?.model.trim()})`,
      `${Math.round(Number(memory) / 1024 / 1024)} GiB`,
      `Linux ${release()}`,
      `Node.js ${process.versions.node}`,
    ].join(', '),
    load: loadavg()[0] ?? 0,
    ...(beside === undefined ? {} : { beside }),
  }
}

/** Without the page, which an earlier size has changed. */
const MEASURED = ['--', '.', ':!docs']

function git(...argv: readonly string[]): string {
  return execFileSync('git', ['-C', root, ...argv], { encoding: 'utf8' }).trim()
}

/** Writes results and page of all sizes that were measured so far. */
export function writePage(results: readonly SizeResult[]): void {
  const sorted = results.toSorted((one, other) => rank(one.size) - rank(other.size))
  mkdirSync(FOLDER, { recursive: true })
  writeFileSync(RESULTS, `${JSON.stringify(sorted, null, 1)}\n`)
  for (const plot of PLOTS) writeFileSync(join(FOLDER, plot.file), drawn(plot, sorted))
  const page = [...HEAD, ...PLOTS.map(({ file, title }) => `![${title}](benchmarks/${file})\n`)]
  for (const result of sorted) page.push(...section(result))
  writeFileSync(join(root, 'docs/benchmarks.md'), `${page.join('\n').trimEnd()}\n`)
}

/** One Service of many endpoints comes last. */
function rank({ services }: ClusterSize): number {
  return services === 1 ? Number.POSITIVE_INFINITY : services
}

const HEAD: readonly string[] = [
  '# Benchmarks',
  '',
  '`npm run bench:cluster -- table --baseline` makes this page: kprobe and two versions of kube-proxy, each in two',
  'modes, on the same real API server and the same objects, in a network namespace of their own. With sizes as',
  'arguments (`-- table --runs=3 1000x10`) it measures those alone, and the others keep their figures. Above a load',
  'average of 0.5 it refuses, unless `--beside=TEXT` says what else runs on the machine.',
  '[Decision 0023](decisions/0023-cost-of-the-process.md) says what the figures of kprobe consist of.',
  '',
  "First packets in iptables mode: below, first, middle and last are Services by address. In kprobe's list they stand",
  "at places 907 to 937 of 1,000, and anywhere in kube-proxy's, so these rows do not compare. By their order in the list,",
  'nanoseconds of a first packet from a socket of the node on 2026-11-29, at a load average of 10 to 30:',
  '',
  '| | first | middle | last | no Service |',
  '| --- | ---: | ---: | ---: | ---: |',
  '| 1,000 x 10: kprobe | 4,780 | 7,250 | 9,422 | 8,103 |',
  '| 1,000 x 10: kube-proxy 1.36.3 | 4,757 | 13,222 | 21,419 | 20,298 |',
  '| 10,000 x 2: kprobe | 4,435 | 26,396 | 48,622 | 46,639 |',
  '| 10,000 x 2: the same rules by `iptables-nft-restore`, as kube-proxy loads them | 4,391 | 86,726 | 162,180 | 160,950 |',
  '',
]

function section({ size, scene, measured }: SizeResult): readonly string[] {
  const contenders = contendersOf(measured)
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
    ...sceneText(scene, Math.max(...contenders.map(contender => runsOf(measured, contender).length))),
    '',
    ...markdown(['', ...names], rows),
    '',
    ...measured.failed.flatMap(({ contender, reason }) => [
      `${contenderText(contender)} did not get to the end: ${reason.split('\n', 1)[0]?.slice(0, 200)}`,
      '',
    ]),
    'First packets of connections a second and core, from a socket of the node through all rules:',
    '',
    ...markdown(
      ['to', 'first Service', 'middle', 'last', 'no Service'],
      paths.map(([name, figures]) => [name, ...perSecond(figures)]),
    ),
    '',
  ]
}

function sceneText({ date, commit, machine, load, beside }: Scene, runs: number): readonly string[] {
  const figures =
    runs === 1
      ? 'Each figure is of one run.'
      : `A figure is the median of ${runs} runs by turns, with the least and the most of them.`
  return [
    `${date}, commit ${commit}; ${machine};`,
    `load average before it ${load.toFixed(1)}. ${figures}`,
    ...(beside === undefined ? [] : [beside]),
  ]
}

function perSecond(figures: readonly PathFigures[]): readonly string[] {
  return (['first', 'middle', 'last', 'elsewhere'] as const).map(key =>
    Math.round(1e9 / median(figures.map(each => each[key])) / 1_000)
      .toLocaleString('en-US')
      .concat(',000'),
  )
}

/** Those that got to the end, in the order of the first round. */
function contendersOf({ runs }: Measured): readonly Contender[] {
  return [...new Map(runs.map(({ contender }) => [contenderText(contender), contender])).values()]
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
    bars: contendersOf(measured).map(contender => ({
      name: contenderText(contender),
      value: median(runsOf(measured, contender).map(({ figures }) => found.value(figures))),
    })),
  }))
  return barPlot({ title, unit, groups })
}

function sizeText({ services, endpoints }: ClusterSize): string {
  const count = (number: number, noun: string): string =>
    `${number.toLocaleString('en-US')} ${noun}${number === 1 ? '' : 's'}`
  return `${count(services, 'Service')} with ${count(endpoints, 'endpoint')}${services === 1 ? '' : ' each'}`
}
