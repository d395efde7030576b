import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { takeLock } from '../../src/daemon/network-lock.ts'

/** What came of one test of upstream's. */
export interface Outcome {
  readonly name: string
  readonly state: 'passed' | 'failed' | 'skipped'
  readonly seconds: number
  /** The first line of its failure, or why it skipped itself. */
  readonly why?: string
}

/** A set of tests, run once. */
export interface Report {
  readonly kubernetes: string
  readonly proxy: string
  readonly mode: string
  /** How the proxy is on the nodes (pods.ts); as a process where it is not said. */
  readonly form?: string
  readonly suite: string
  readonly nodes: number
  readonly zones: number
  readonly families: string
  readonly procs: number
  readonly seconds: number
  readonly tests: readonly Outcome[]
}

/** What a baseline in the repository keeps of a report: the state of each test. */
export type Baseline = Omit<Report, 'tests'> & { readonly tests: Readonly<Record<string, Outcome['state']>> }

interface Spec {
  readonly LeafNodeType: string
  readonly LeafNodeText: string
  readonly ContainerHierarchyTexts: readonly string[] | null
  readonly State: string
  /** Nanoseconds. */
  readonly RunTime: number
  readonly Failure?: { readonly Message?: string }
}

const WHY_CHARACTERS = 200

/** The tests of a JSON report of ginkgo's that were chosen; undefined when there is no such file. */
export function readGinkgoReport(file: string): readonly Outcome[] | undefined {
  if (!existsSync(file)) return undefined
  const suites: readonly { readonly SpecReports: readonly Spec[] | null }[] = JSON.parse(
    readFileSync(file, 'utf8'),
  )
  return outcomesOf(suites.flatMap(({ SpecReports }) => SpecReports ?? []))
}

export function outcomesOf(specs: readonly Spec[]): readonly Outcome[] {
  return specs
    .filter(spec => spec.LeafNodeType === 'It' && !isLeftOut(spec))
    .map(spec => {
      const why = (spec.Failure?.Message ?? '').trim().split('\n')[0]?.slice(0, WHY_CHARACTERS) ?? ''
      return {
        name: [...(spec.ContainerHierarchyTexts ?? []), spec.LeafNodeText].join(' '),
        state: stateOf(spec.State),
        seconds: Math.round(spec.RunTime / 1e8) / 10,
        ...(why === '' ? {} : { why }),
      }
    })
    .sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** A test that the focus leaves out is in the report as well, without a word. */
function isLeftOut({ State, Failure }: Spec): boolean {
  return State === 'skipped' && (Failure?.Message ?? '') === ''
}

/** Panicked, interrupted, timed out: all of it is failed. */
function stateOf(state: string): Outcome['state'] {
  return state === 'passed' ? 'passed' : state === 'skipped' || state === 'pending' ? 'skipped' : 'failed'
}

export function baselineOf(report: Report): Baseline {
  return { ...report, tests: Object.fromEntries(report.tests.map(({ name, state }) => [name, state])) }
}

/** A baseline in which the results of some tests are those of a later run. */
export function withPart(baseline: Baseline, later: Report): Baseline {
  return { ...baseline, tests: { ...baseline.tests, ...baselineOf(later).tests } }
}

export function countsOf(tests: readonly Outcome[]): Readonly<Record<Outcome['state'], number>> {
  const count = (wanted: Outcome['state']) => tests.filter(({ state }) => state === wanted).length
  return { passed: count('passed'), failed: count('failed'), skipped: count('skipped') }
}

/** A line for each test that did not pass, and one for the whole set. */
export function tableOf(report: Report): readonly string[] {
  const { passed, failed, skipped } = countsOf(report.tests)
  const others = report.tests
    .filter(({ state }) => state !== 'passed')
    .map(
      ({ name, state, seconds, why }) =>
        `  ${state.padEnd(8)} ${seconds} s  ${name}${why === undefined ? '' : `: ${why}`}`,
    )
  const { proxy, form = 'process', mode, suite } = report
  const what = [proxy, ...(form === 'process' ? [] : [`(${form})`]), mode, suite].join(' ').padEnd(34)
  const total = passed + failed
  return [...others, `${what} ${passed} of ${total} passed, ${skipped} skipped, ${report.seconds} s`]
}

/** Of the tests that `chosen` names, those that pass with the other proxy, by its baseline, and not here. */
export function worseThan(baseline: Baseline, report: Report, chosen: RegExp): readonly string[] {
  const here = new Map(report.tests.map(test => [test.name, test]))
  return Object.entries(baseline.tests)
    .filter(([name, state]) => chosen.test(name) && state === 'passed' && here.get(name)?.state !== 'passed')
    .map(
      ([name]) =>
        `${name}: passed with ${baseline.proxy}, ${here.get(name)?.state ?? 'not run'} with ${report.proxy}`,
    )
}

/**
 * Throws when another run, in another cluster of this checkout, writes its results into the folder. The result gives it
 * back; so does the end of the process.
 */
export async function holdFolder(folder: string): Promise<() => Promise<void>> {
  // A name of a socket is shorter than a path may be.
  const name = `kprobe-test-${createHash('sha256').update(folder).digest('hex')}`
  const lock = await takeLock(name, `process ${process.pid}`)
  if (lock.kind === 'held') return lock.release
  throw new Error(
    `${folder}: ${lock.holder || 'another run'} writes its results there; wait until it has ended`,
  )
}
