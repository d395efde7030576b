import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { createConnection, createServer } from 'node:net'
import { join } from 'node:path'
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core'
import { demandAnswer } from '../../src/inspect/admin-client.ts'
import { Daemons } from '../support/daemon.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { endpoint, serviceOf, sliceOf } from '../support/objects.ts'
import { eventually, patientMs } from '../support/patience.ts'
import { NODE_NAME } from '../support/pipeline.ts'

/** Debian's wrapper reads settings of the user; the program behind it does not. */
const CHROMIUM = '/usr/lib/chromium/chromium'

/** A sandbox of the browser's own would need namespaces inside ours. */
export function openBrowser(): Promise<Browser> {
  return chromium.launch({
    executablePath: CHROMIUM,
    args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu'],
    timeout: 0,
  })
}

/** A page with everything that went wrong in it. */
export interface Watched {
  readonly page: Page
  /** Errors and warnings of the console, which violations of the CSP are among, and exceptions. */
  readonly complaints: readonly string[]
  /** Requests to any other place than the daemon. */
  readonly foreign: readonly string[]
}

/** Opens an empty page that may ask only `origin`. */
export async function watchedPage(
  browser: Browser,
  origin: string,
  options: BrowserContextOptions = {},
): Promise<Watched> {
  const context = await browser.newContext(options)
  context.setDefaultTimeout(patientMs())
  const page = await context.newPage()
  const complaints: string[] = []
  const foreign: string[] = []
  page.on('console', message => {
    if (message.type() === 'error' || message.type() === 'warning') complaints.push(message.text())
  })
  page.on('pageerror', error => complaints.push(String(error)))
  page.on('request', request => {
    const url = request.url()
    if (!url.startsWith(`${origin}/`) && !url.startsWith('data:')) foreign.push(url)
  })
  return { page, complaints, foreign }
}

const PORT = 8_080
export const ORIGIN = `http://127.0.0.1:${PORT}`

/** A daemon with these objects in a network namespace of its own, and a browser beside it. */
export class PageRig {
  readonly daemons = new Daemons()
  readonly socket: string
  readonly #opened: Watched[] = []
  readonly #browser: Browser

  private constructor(browser: Browser) {
    this.#browser = browser
    this.socket = join(this.daemons.folder(), 'admin.sock')
  }

  static async start(items: readonly object[], ...args: readonly string[]): Promise<PageRig> {
    freshNetns()
    execFileSync('ip', ['link', 'set', 'lo', 'up'])
    const rig = new PageRig(await openBrowser())
    const source = join(rig.daemons.folder(), 'objects.json')
    writeFileSync(source, JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
    const flags = [`--admin-socket=${rig.socket}`, `--ui-address=${PORT}`, '--log-rejects=7', ...args]
    await rig.daemons.running({ source, args: flags })
    return rig
  }

  /** An empty page. */
  async blank(options: BrowserContextOptions = {}): Promise<Watched> {
    const watched = await watchedPage(this.#browser, ORIGIN, options)
    this.#opened.push(watched)
    return watched
  }

  /** A view of the page, with its data on show. */
  async open(view: string, options: BrowserContextOptions = {}): Promise<Watched> {
    const watched = await this.blank(options)
    await watched.page.goto(`${ORIGIN}/#${view}`)
    await shown(watched.page, '#content:not([hidden])')
    return watched
  }

  async closePages(): Promise<void> {
    for (const { page } of this.#opened.splice(0)) await page.context().close()
  }

  async end(): Promise<void> {
    await this.#browser.close()
    await this.daemons.end()
  }
}

export const texts = (page: Page, selector: string) => page.locator(selector).allTextContents()

export async function rowTexts(page: Page, caption: string): Promise<readonly string[][]> {
  const rows = page.getByRole('table', { name: caption }).locator('tbody tr')
  return (await rows.allInnerTexts()).map(text => text.split('\t').map(cell => cell.trim()))
}

/** Waits until the page shows a view's data, or its banner. */
export async function shown(page: Page, selector: string): Promise<void> {
  await page.locator(selector).first().waitFor({ state: 'visible' })
}

/** Waits until what is read of the page is this, or matches it. */
export async function becomes(read: () => Promise<string>, wanted: string | RegExp): Promise<void> {
  let text = ''
  await eventually(
    async () => {
      text = await read()
      return typeof wanted === 'string' ? text === wanted : wanted.test(text)
    },
    { describe: () => text.slice(0, 2_000) },
  )
}

/** Reads a page of the admin socket. */
export async function truth(socket: string, path: string): Promise<unknown> {
  return await demandAnswer(socket, path)
}

/** Forwards a port to a unix socket, as `ssh -L 8080:/run/kprobe/admin.sock` does. Gives the port and the end of it. */
export async function forwarded(
  socket: string,
): Promise<{ readonly port: number; readonly end: () => void }> {
  const server = createServer(client => {
    const daemon = createConnection({ path: socket })
    const end = () => {
      client.destroy()
      daemon.destroy()
    }
    client.pipe(daemon).pipe(client)
    for (const each of [client, daemon]) each.on('error', end).on('close', end)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const address = server.address()
  if (typeof address !== 'object' || address === null) throw new Error('no port to forward')
  return { port: address.port, end: () => server.close() }
}

/** As long as the name of a Pod may be. */
export const LONG_POD = `cart-${'0123456789'.repeat(25)}`.slice(0, 253)

/** A direction mark and markup where Kubernetes lets any text be: in the name of an endpoint's node. */
export const HOSTILE = '\u202enode<img src=x onerror=alert(1)>'

/** The Node that the daemon is on. */
export const NODE = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: NODE_NAME },
  status: { addresses: [{ type: 'InternalIP', address: '192.0.2.1' }] },
}

/** Three Services of a shop, and as many others as are asked for. */
export function shop(others: number): readonly object[] {
  return [
    NODE,
    serviceOf('shop/cart', '10.96.0.1', {
      type: 'NodePort',
      ports: [{ name: 'http', port: 80, nodePort: 30_080 }],
    }),
    sliceOf('shop/cart', [
      endpoint('10.1.0.1', { pod: 'cart-7f9c' }),
      endpoint('10.1.0.2', { nodeName: 'other-node', pod: LONG_POD }),
      endpoint('10.1.0.3', { ready: false, nodeName: HOSTILE }),
    ]),
    serviceOf('shop/checkout', '10.96.0.2'),
    sliceOf('shop/checkout', [endpoint('10.1.0.4', { ready: false })]),
    serviceOf('shop/search', '10.96.0.3'),
    sliceOf('shop/search', ['10.1.0.5', '10.1.0.6']),
    ...Array.from({ length: others }, (_, index) => {
      const [name, host] = [`many/svc-${String(index).padStart(5, '0')}`, `${index >> 8}.${index & 255}`]
      return [serviceOf(name, `10.97.${host}`), sliceOf(name, [`10.2.${host}`])]
    }).flat(),
  ]
}

/** The least contrast of texts of the page against what is behind them, by WCAG 2. */
export async function contrast(page: Page): Promise<number> {
  return await page.evaluate<number>(`(() => {
    const light = color => {
      const [r, g, b] = color.match(/[0-9.]+/g).map(Number).map(each => each / 255)
        .map(each => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
      return 0.2126 * r + 0.7152 * g + 0.0722 * b
    }
    const backOf = each => {
      const color = getComputedStyle(each).backgroundColor
      return color === 'rgba(0, 0, 0, 0)' && each.parentElement ? backOf(each.parentElement) : color
    }
    const ratios = [...document.querySelectorAll('header a, main :not(svg, svg *, button, input, select, option)')]
      .filter(each => each.getClientRects().length > 0)
      .map(each => [light(getComputedStyle(each).color), light(backOf(each))])
      .map(([text, back]) => (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05))
    return Math.min(...ratios)
  })()`)
}

/** Where the pictures in the documents are written; undefined to write none. */
export const PICTURES =
  process.env.KPROBE_SCREENSHOTS === '1' ? join(import.meta.dirname, '../../docs/picture') : undefined
