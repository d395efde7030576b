import { execFileSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Browser, Page } from 'playwright-core'
import { openBrowser, shop, shown } from '../browser/page.ts'
import { Daemons } from '../support/daemon.ts'
import { cpuOf } from './daemon-cost.ts'
import { goal, median, print } from './report.ts'

/* What the web page costs with 10,000 Services: the first paint, and a filter, by the trace of chromium. */

const SERVICES = 10_000
const RUNS = 5
const PORT = 8_080
const CATEGORIES = ['toplevel', 'blink.user_timing', 'loading', 'devtools.timeline']

/** What this reads of an event of a trace; times are microseconds. */
interface TraceEvent {
  readonly name: string
  readonly pid: number
  readonly tid: number
  readonly ts: number
  /** Processor time of a task. */
  readonly tdur?: number
  readonly args: { readonly name?: string; readonly data?: { readonly isOutermostMainFrame?: boolean } }
}

const daemons = new Daemons()
execFileSync('ip', ['link', 'set', 'lo', 'up'])
const source = join(daemons.folder(), 'objects.json')
writeFileSync(source, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: shop(SERVICES) }))
const { pid } = await daemons.running({ source, args: ['--admin-socket=', `--ui-address=${PORT}`] })
const browser = await openBrowser()
const load = readFileSync('/proc/loadavg', 'utf8').split(' ')[0]
try {
  const opened = []
  const filtered = []
  for (let run = 0; run < RUNS; run++) {
    opened.push(await traced(browser, async page => open(page)))
    filtered.push(await traced(browser, async page => filter(page, `svc-0${run}99`), open))
  }
  const row = (what: string, runs: readonly Cost[], most: Partial<Record<Figure, number>>) => {
    const figure = (name: Figure) => {
      const value = median(runs.map(each => each[name]))
      const limit = most[name]
      return `${value.toFixed(0)}${limit === undefined ? '' : ` ${goal(value, limit)}`}`
    }
    return {
      what,
      'first paint ms': Number.isNaN(runs[0]?.firstPaintMs) ? '' : figure('firstPaintMs'),
      'rows on show ms': figure('shownMs'),
      'browser CPU ms': figure('browserMs'),
      'daemon CPU ms': figure('daemonMs'),
      'both CPU ms': figure('cpuMs'),
    }
  }
  print(`the page at ${SERVICES} Services, medians of ${RUNS} runs, load of the machine ${load}`, [
    row('open', opened, { firstPaintMs: 1_000 }),
    row('filter', filtered, { cpuMs: 50 }),
  ])
} finally {
  await browser.close()
  await daemons.end()
}

interface Cost {
  readonly firstPaintMs: number
  readonly shownMs: number
  readonly browserMs: number
  readonly daemonMs: number
  readonly cpuMs: number
}

type Figure = keyof Cost

/** Opens all Services, and waits for the first rows. */
async function open(page: Page): Promise<void> {
  await page.goto(`http://127.0.0.1:${PORT}/#services`)
  await shown(page, '#content tbody tr')
}

async function filter(page: Page, text: string): Promise<void> {
  // Nothing here looks at the page meanwhile: that would cost as much as the filter.
  const answered = page.waitForResponse(response => response.url().includes(`filter=${text}`))
  await page.getByLabel('Filter').fill(text)
  await answered
  await page.evaluate('new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))')
}

/** Runs `act` in a new page, after `before`, and gives what it cost. */
async function traced(
  browser: Browser,
  act: (page: Page) => Promise<void>,
  before: (page: Page) => Promise<void> = async () => undefined,
): Promise<Cost> {
  const context = await browser.newContext()
  const page = await context.newPage()
  await before(page)
  await browser.startTracing(page, { categories: CATEGORIES })
  const [beganMs, cpu] = [performance.now(), cpuOf(pid)]
  await act(page)
  const shownMs = performance.now() - beganMs
  const after = cpuOf(pid)
  const trace: { readonly traceEvents: readonly TraceEvent[] } = JSON.parse(
    (await browser.stopTracing()).toString('utf8'),
  )
  await context.close()
  const daemonMs = after.main + after.others - cpu.main - cpu.others
  const its = costOf(trace.traceEvents)
  return { ...its, shownMs, daemonMs, cpuMs: its.browserMs + daemonMs }
}

/** The main threads of pages, and the first paint of the last one that was opened. */
function costOf(events: readonly TraceEvent[]): Pick<Cost, 'firstPaintMs' | 'browserMs'> {
  const key = ({ pid, tid }: TraceEvent) => `${pid} ${tid}`
  const isMain = ({ name, args }: TraceEvent) => name === 'thread_name' && args.name === 'CrRendererMain'
  const mains = new Set(events.filter(isMain).map(key))
  const tasks = events.filter(each => each.name === 'ThreadControllerImpl::RunTask' && mains.has(key(each)))
  const at = (name: string) => events.findLast(each => each.name === name)?.ts ?? Number.NaN
  return {
    firstPaintMs: (at('firstContentfulPaint') - at('navigationStart')) / 1_000,
    browserMs: tasks.reduce((sum, { tdur = 0 }) => sum + tdur, 0) / 1_000,
  }
}
