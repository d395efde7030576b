// Writes the tables of docs/sizing.md and deploy/helm/kprobe/sizing.yaml from docs/benchmarks/results.json, which
// `npm run bench:cluster -- table` measures; --print writes the page, --chart the file of the chart to standard output instead.
import { readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const pathOf = path => fileURLToPath(new URL(`../../${path}`, import.meta.url))
const [PAGE, CHART, RESULTS] = [
  'docs/sizing.md',
  'deploy/helm/kprobe/sizing.yaml',
  'docs/benchmarks/results.json',
].map(pathOf)
const MODES = ['nftables', 'iptables']
/** Changes of EndpointSlices a second. The last one is that of the storm of the benchmark. */
const RATES = [1, 10, 100]
const STORM_RATE_MIN = 90
/** Of the memory limit, what kprobe gives to Services: src/daemon/process-room.ts, decision 0022. */
const SERVICES_SHARE = 0.45
/** Least request and limit, MiB, and the steps that figures are rounded up to. */
const [REQUEST_MIN, LIMIT_MIN, REQUEST_STEP, LIMIT_STEP, CPU_STEP] = [128, 512, 32, 64, 5]

const roundUp = (value, step) => Math.ceil(value / step) * step
const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length

/** What kprobe took in one mode at one size: means of the runs. */
function measuredOf({ size, measured }, mode) {
  const runs = measured.runs
    .filter(({ contender, figures }) => contender.name === 'kprobe' && contender.mode === mode && figures)
    .map(({ figures }) => figures)
    // A storm on one large Service is one of fewer changes a second: its CPU is not that of a hundred.
    .filter(({ stormRate }) => stormRate >= STORM_RATE_MIN)
  if (runs.length === 0) return undefined
  const of = field => mean(runs.map(figures => figures[field]))
  return {
    services: size.services,
    endpoints: size.services * size.endpoints,
    idleMiB: of('idleMiB'),
    changeCpuMs: of('changeCpuMs'),
    stormCpuPercent: of('stormCpuPercent'),
  }
}

/** Thousandths of a core at this rate: so many changes by themselves, or the storm, in which they share commits. */
const cpuAt = ({ changeCpuMs, stormCpuPercent }, rate) => Math.min(changeCpuMs * rate, stormCpuPercent * 10)

/** The most that was measured at a size with no more Services and endpoints. */
function rowsOf(results) {
  return MODES.flatMap(mode => {
    const all = results.flatMap(result => measuredOf(result, mode) ?? [])
    return all
      .filter(({ services }) => services > 1)
      .sort((a, b) => a.services - b.services)
      .map(({ services, endpoints }) => {
        const within = all.filter(one => one.services <= services && one.endpoints <= endpoints)
        const most = of => Math.max(...within.map(of))
        const idleMiB = most(one => one.idleMiB)
        return {
          mode,
          services,
          endpoints,
          idleMiB,
          cpu: RATES.map(rate => most(one => cpuAt(one, rate))),
          request: Math.max(REQUEST_MIN, roundUp(idleMiB, REQUEST_STEP)),
          limit: Math.max(LIMIT_MIN, roundUp(idleMiB / SERVICES_SHARE, LIMIT_STEP)),
        }
      })
  })
}

const grouped = value => value.toLocaleString('en-US')

function pageTable(rows) {
  const rates = RATES.map(rate => `CPU at ${rate}/s, millicores`)
  const head = ['mode', 'Services', 'endpoints', 'idle memory, MiB', ...rates, 'memory request', 'limit']
  const cells = rows.map(({ mode, services, endpoints, idleMiB, cpu, request, limit }) => [
    mode,
    `to ${grouped(services)}`,
    `to ${grouped(endpoints)}`,
    Math.round(idleMiB),
    ...cpu.map(value => Math.round(value)),
    `${request}Mi`,
    `${limit}Mi`,
  ])
  return [head, head.map(() => '---'), ...cells].map(line => `| ${line.join(' | ')} |`).join('\n')
}

const MARK = '<!-- computed -->'

function withTable(page, table) {
  const [before, , after] = page.split(MARK)
  if (after === undefined) throw new Error(`docs/sizing.md has no two lines ${MARK}`)
  return `${before}${MARK}\n\n${table}\n\n${MARK}${after}`
}

function chartText(rows) {
  const lines = rows.flatMap(({ mode, services, endpoints, cpu, request, limit }) =>
    RATES.map((rate, index) => {
      const figures = `cpu: ${roundUp(cpu[index], CPU_STEP)}m, memory: ${request}Mi, limit: ${limit}Mi`
      return `  - { mode: ${mode}, services: ${services}, endpoints: ${endpoints}, changes: ${rate}, ${figures} }`
    }),
  )
  const head =
    '# docs/sizing.md, as node test/bench/sizing-table.mjs writes it: the first row that has room for what `sizing` of values.yaml says.\n'
  return `${head}rows:\n${lines.join('\n')}\n`
}

const rows = rowsOf(JSON.parse(readFileSync(RESULTS, 'utf8')))
const page = withTable(readFileSync(PAGE, 'utf8'), pageTable(rows))
if (process.argv.includes('--print')) process.stdout.write(page)
else if (process.argv.includes('--chart')) process.stdout.write(chartText(rows))
else {
  writeFileSync(PAGE, page)
  writeFileSync(CHART, chartText(rows))
}
