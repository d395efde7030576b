import { spawnSync } from 'node:child_process'
import { loadavg } from 'node:os'
import type { ClusterSize } from '../bench/cluster.ts'
import { goal, print } from '../bench/report.ts'
import { FIGURES, type Figure, type Figures, type Measured, measure } from './measure.ts'
import { type Contender, contenderText, findContenders } from './proxies.ts'
import { keptResults, sceneNow, writePage } from './table.ts'

const SIZES: readonly ClusterSize[] = [
  { services: 1_000, endpoints: 10 },
  { services: 10_000, endpoints: 2 },
]
/** Of the page: a large cluster, and a Service whose endpoints fill ten slices. */
const TABLE_SIZES: readonly ClusterSize[] = [
  ...SIZES,
  { services: 30_000, endpoints: 1 },
  { services: 1, endpoints: 10_000 },
]
/** Of the last minute. What is measured above it is not worth a page, unless the page says what ran beside it. */
const LOAD_MAX = 0.5

/** What options.mjs has read of the command line. */
interface BenchRequest {
  readonly command: string
  /** Empty: those of the command. */
  readonly sizes: readonly ClusterSize[]
  readonly runs: number
  readonly beside?: string
  /** The program of an older kube-proxy. */
  readonly baseline?: string
}

const [first = '', asked = ''] = process.argv.slice(2)
if (first === 'measure') await measureHere(JSON.parse(asked))
else {
  const request: BenchRequest = JSON.parse(first)
  if (request.command === 'table') makeTable(request)
  else compare(request)
}

/** One size, in a process of its own: it goes into namespaces that it does not come back from. */
async function measureHere({ size, contenders, runs }: Asked): Promise<void> {
  console.log(JSON.stringify(await measure(size, contenders, runs)))
}

interface Asked {
  readonly size: ClusterSize
  readonly contenders: readonly Contender[]
  readonly runs: number
}

/** All proxies in both modes, by turns, as a page of the documentation; sizes that are not measured now keep their figures. */
function makeTable({ sizes, runs, beside, baseline }: BenchRequest): void {
  const [load = 0] = loadavg()
  if (load > LOAD_MAX && beside === undefined) {
    console.error(
      `the load average is ${load.toFixed(1)}: wait until it is ${LOAD_MAX} at most, or say with --beside=TEXT what runs on this machine`,
    )
    process.exit(1)
  }
  const contenders = findContenders(baseline)
  for (const size of sizes.length === 0 ? TABLE_SIZES : sizes) {
    const scene = sceneNow(beside)
    const result = { size, scene, measured: measureApart({ size, contenders, runs }) }
    // After each size: the next may take an hour.
    writePage([...keptResults().filter(each => !isEqualSize(each.size, size)), result])
  }
}

function isEqualSize(one: ClusterSize, other: ClusterSize): boolean {
  return one.services === other.services && one.endpoints === other.endpoints
}

function compare({ command, sizes, baseline }: BenchRequest): void {
  const isAsked = ({ name, mode }: Contender): boolean =>
    mode === 'nftables' && (command === 'both' || name.startsWith(command))
  const contenders = findContenders(baseline).filter(isAsked)
  for (const size of sizes.length === 0 ? SIZES : sizes) {
    const { runs, failed } = measureApart({ size, contenders, runs: 1 })
    for (const { contender, reason } of failed) console.error(`${contenderText(contender)}: ${reason}`)
    print(
      `${size.services} Services x ${size.endpoints} endpoints, from one API server`,
      FIGURES.map(figure => ({
        '': figure.title,
        ...Object.fromEntries(
          runs.map(({ contender, figures }) => [
            contenderText(contender),
            cell({ name: contender.name, figure, figures, services: size.services }),
          ]),
        ),
      })),
    )
  }
}

function measureApart(asked: Asked): Measured {
  const { size } = asked
  const run = spawnSync(process.execPath, [process.argv[1] ?? '', 'measure', JSON.stringify(asked)], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  if (run.status !== 0) throw new Error(`${size.services} x ${size.endpoints} failed`)
  return JSON.parse(run.stdout.trimEnd().split('\n').at(-1) ?? '')
}

interface CellOptions {
  readonly name: string
  readonly figure: Figure
  readonly figures: Figures
  readonly services: number
}

function cell({ name, figure, figures, services }: CellOptions): string {
  const value = figure.value(figures)
  const text = value.toFixed(figure.digits)
  if (name !== 'kprobe' || figure.most === undefined) return text
  return `${text} ${goal(value, figure.most[services < 10_000 ? 0 : 1])}`
}
