import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'
import type { Page } from 'playwright-core'
import { openBrowser, shop, watchedPage } from '../browser/page.ts'
import { Daemons } from '../support/daemon.ts'
import { between, cpuOf } from './daemon-cost.ts'
import { goal, median, print } from './report.ts'

/* The web page of a daemon with 10,000 Services, in chromium: when it is seen, and what it costs the daemon. */

const ORIGIN = 'http://127.0.0.1:8080'
const SERVICES = 10_000
const LOADS = 9
const WATCHED_MS = 20_000
const PAINT_MS_MAX = 1_000
const COMPRESSED_KB_MAX = 150

const daemons = new Daemons()
execFileSync('ip', ['link', 'set', 'lo', 'up'])
const folder = daemons.folder()
const source = join(folder, 'objects.json')
writeFileSync(source, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: shop(SERVICES) }))
const args = [`--admin-socket=${join(folder, 'admin.sock')}`, '--ui-address=8080']
const daemon = await daemons.running({ source, args })
const browser = await openBrowser()
try {
  printSize()
  await printPaint()
  await printCost()
} finally {
  await browser.close()
  await daemons.end()
}

function printSize(): void {
  const ui = join(process.env.KPROBE_ROOT ?? '', 'dist/ui')
  const kb =
    readdirSync(ui).reduce((sum, name) => sum + gzipSync(readFileSync(join(ui, name))).length, 0) / 1e3
  console.log(`bundle: ${kb.toFixed(1)} KB compressed ${goal(kb, COMPRESSED_KB_MAX)}`)
}

/** Each load in a context of its own: nothing is cached. The first one warms the daemon up, and is not counted. */
async function printPaint(): Promise<void> {
  const loads: { readonly paint: number; readonly rows: number }[] = []
  for (let load = 0; load <= LOADS; load++) {
    const { page } = await watchedPage(browser, ORIGIN)
    await page.goto(`${ORIGIN}/ui/#services`)
    await page.locator('tbody a').first().waitFor()
    // Since the start of the navigation; what the driver takes until it looks is in it.
    const rows = await page.evaluate<number>('performance.now()')
    const paint = await page.evaluate<number>(
      "performance.getEntriesByName('first-contentful-paint')[0].startTime",
    )
    if (load > 0) loads.push({ paint, rows })
    await page.context().close()
  }
  const [paint, rows] = [median(loads.map(load => load.paint)), median(loads.map(load => load.rows))]
  console.log(
    `first paint, ${SERVICES} Services: ${paint.toFixed(0)} ms ${goal(Math.round(paint), PAINT_MS_MAX)}`,
  )
  console.log(`first rows of the table: ${rows.toFixed(0)} ms ${goal(Math.round(rows), PAINT_MS_MAX)}`)
}

/** Processor time of the daemon in a time, in percent of one. */
async function costOf(look: (() => Promise<Page>) | undefined): Promise<string> {
  const page = await look?.()
  await pause(WATCHED_MS / 4)
  const before = cpuOf(daemon.pid)
  await pause(WATCHED_MS)
  const { main, others } = between(before, cpuOf(daemon.pid))
  await page?.context().close()
  return `${((100 * (main + others)) / WATCHED_MS).toFixed(2)} %`
}

async function printCost(): Promise<void> {
  const looking = (view: string) => async () => {
    const { page } = await watchedPage(browser, ORIGIN)
    await page.goto(`${ORIGIN}/ui/#${view}`)
    await page.locator('#content:not([hidden])').waitFor()
    return page
  }
  const views = ['overview', 'services', 'rates']
  const rows = [{ viewer: 'none', daemon: await costOf(undefined) }]
  for (const view of views) rows.push({ viewer: view, daemon: await costOf(looking(view)) })
  // The counting of connections ends some seconds after the last viewer.
  await pause(12_000)
  rows.push({ viewer: 'none again', daemon: await costOf(undefined) })
  print('processor time of the daemon', rows)
}
