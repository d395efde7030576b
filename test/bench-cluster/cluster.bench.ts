import { spawnSync } from 'node:child_process'
import type { ClusterSize } from '../bench/cluster.ts'
import { goal, print } from '../bench/report.ts'
import { type AttackFigures, attackProxy } from './attacks.ts'
import { FIGURES, type Figure, type Figures, measure } from './measure.ts'
import type { ProxyName } from './proxies.ts'

const SIZES: readonly ClusterSize[] = [
  { services: 1_000, endpoints: 10 },
  { services: 10_000, endpoints: 2 },
]

const [mode = 'both', ...rest] = process.argv.slice(2)
if (mode === 'measure') await measureHere(rest)
else if (mode === 'attacks') await attack(rest.length === 0 ? ['kube-proxy', 'kprobe'] : rest)
else compare(mode, rest)

/** One size, in a process of its own: it goes into namespaces that it does not come back from. */
async function measureHere([services, endpoints, ...names]: readonly string[]): Promise<void> {
  const size = { services: Number(services), endpoints: Number(endpoints) }
  const results = await measure(size, names.filter(isProxy))
  console.log(JSON.stringify(results))
}

/** kube-proxy goes first, and each on empty nodes. */
async function attack(names: readonly string[]): Promise<void> {
  const results: [ProxyName, AttackFigures][] = []
  for (const name of names.filter(isProxy)) results.push([name, await attackProxy(name)])
  const titles = Object.keys(results[0]?.[1] ?? {})
  print(
    'Attacks of docs/threat-model.md, from one API server',
    titles.map(title => ({
      '': title,
      ...Object.fromEntries(results.map(([name, figures]) => [name, figures[title] ?? ''])),
    })),
  )
}

function compare(mode: string, sizes: readonly string[]): void {
  const proxies = mode === 'both' ? ['kube-proxy', 'kprobe'] : [mode]
  if (!proxies.every(isProxy)) throw new Error(`neither kube-proxy, kprobe nor both: ${mode}`)
  for (const { services, endpoints } of sizes.length === 0 ? SIZES : sizes.map(parseSize)) {
    const args = ['measure', String(services), String(endpoints), ...proxies]
    const run = spawnSync(process.execPath, [process.argv[1] ?? '', ...args], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    if (run.status !== 0) throw new Error(`${services} x ${endpoints} failed`)
    const results: ReadonlyArray<readonly [ProxyName, Figures]> = JSON.parse(
      run.stdout.trimEnd().split('\n').at(-1) ?? '',
    )
    print(
      `${services} Services x ${endpoints} endpoints, from one API server`,
      FIGURES.map(figure => ({
        '': figure.title,
        ...Object.fromEntries(
          results.map(([name, figures]) => [name, cell({ name, figure, figures, services })]),
        ),
      })),
    )
  }
}

interface CellOptions {
  readonly name: ProxyName
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

function isProxy(name: string): name is ProxyName {
  return name === 'kube-proxy' || name === 'kprobe'
}

function parseSize(text: string): ClusterSize {
  const [services, endpoints] = text.split('x').map(Number)
  if (!services || !endpoints) throw new Error(`not SERVICESxENDPOINTS: ${text}`)
  return { services, endpoints }
}
