import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Browser, Page } from 'playwright-core'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { fieldOf, listAt, numberAt, textAt } from '../../src/base/plain-data.ts'
import { count } from '../../src/base/text.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { Daemons, EXAMPLES } from '../support/daemon.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { eventually } from '../support/patience.ts'
import { NODE_NAME } from '../support/pipeline.ts'
import { entry, inject } from '../unit/kernel/conntrack/flows.ts'
import {
  becomes,
  forwarded,
  openBrowser,
  PICTURES,
  shop,
  shown,
  truth,
  type Watched,
  watchedPage,
} from './page.ts'

const PORT = 8_080
const ORIGIN = `http://127.0.0.1:${PORT}`
const MANY = 10_000

const daemons = new Daemons()
let browser: Browser
let socket: string
let source: string
const opened: Watched[] = []

beforeAll(async () => {
  freshNetns()
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  const folder = daemons.folder()
  socket = join(folder, 'admin.sock')
  source = join(folder, 'objects.json')
  const items = shop(MANY)
  writeFileSync(source, JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
  await startDaemon()
  browser = await openBrowser()
})

afterEach(async () => {
  for (const { page } of opened.splice(0)) await page.context().close()
})

afterAll(async () => {
  await browser?.close()
  await daemons.end()
})

async function startDaemon(...more: readonly string[]) {
  const args = [`--admin-socket=${socket}`, `--ui-address=${PORT}`, '--log-rejects=7', ...more]
  return await daemons.running({ source, args })
}

/** A view of the page, with its data on show. */
async function open(view: string, options: Parameters<typeof watchedPage>[2] = {}): Promise<Watched> {
  const watched = await watchedPage(browser, ORIGIN, options)
  opened.push(watched)
  await watched.page.goto(`${ORIGIN}/#${view}`)
  await shown(watched.page, '#content:not([hidden])')
  return watched
}

const texts = (page: Page, selector: string) => page.locator(selector).allTextContents()
const rowTexts = async (page: Page, caption: string) => {
  const rows = page.getByRole('table', { name: caption }).locator('tbody tr')
  return (await rows.allInnerTexts()).map(text => text.split('\t').map(cell => cell.trim()))
}

describe('the page', () => {
  it('shows what the admin socket says, with no violation of its policy and no request to others', async () => {
    const { page, complaints, foreign } = await open('overview')
    const status = await truth(socket, '/status')
    const [facts = ''] = await texts(page, '#content dl')
    for (const text of [
      NODE_NAME,
      textAt(status, 'mode'),
      textAt(status, 'startedAt'),
      'holds everything',
      '10,003',
    ])
      expect(facts).toContain(text)
    const commits = listAt(status, 'commits')
      .toReversed()
      .map(line => textAt(line, 'reason'))
    expect((await rowTexts(page, 'Last commits')).map(([, reason]) => reason)).toEqual(commits)

    await page.getByRole('link', { name: 'Receipts' }).click()
    const receipts = await truth(socket, '/receipts')
    const bytes = (Array.isArray(receipts) ? receipts : []).toReversed().map(line => numberAt(line, 'bytes'))
    await becomes(
      async () =>
        JSON.stringify((await rowTexts(page, 'Receipts')).map(row => Number(row[4]?.replaceAll(',', '')))),
      text => text === JSON.stringify(bytes),
    )

    await page.getByRole('link', { name: 'Configuration' }).click()
    await page.getByLabel('Filter').fill('ui-address')
    await becomes(
      async () => JSON.stringify(await rowTexts(page, 'Flags')),
      text => text === JSON.stringify([['--ui-address', `${PORT}`]]),
    )
    expect(complaints).toEqual([])
    expect(foreign).toEqual([])
  })

  it('shows 10,003 Services in pages, finds one among them, and those with problems', async () => {
    const { page } = await open('services')
    await becomes(
      () => page.locator('.status').innerText(),
      text => text === '1 to 50 of 10,003',
    )
    expect(await rowTexts(page, 'Services')).toHaveLength(50)
    await page.getByRole('button', { name: 'Next' }).click()
    await becomes(
      () => page.locator('.status').innerText(),
      text => text === '51 to 100 of 10,003',
    )
    expect((await rowTexts(page, 'Services'))[0]?.[0]).toBe('many/svc-00050')
    await page.getByLabel('Filter by name').fill('svc-0999')
    await becomes(
      () => page.locator('.status').innerText(),
      text => text === '1 to 10 of 10 that match; 10,003 in all',
    )
    await page.getByLabel('Filter by name').fill('')
    await page.getByRole('button', { name: 'Endpoints' }).click()
    await becomes(
      async () => (await rowTexts(page, 'Services'))[0]?.[0] ?? '',
      text => text === 'shop/cart' || text === 'shop/search',
    )
    await page.getByLabel('Only with problems').check()
    const rows = await becomes(
      async () => JSON.stringify(await rowTexts(page, 'Services')),
      text => text.startsWith('[["shop/checkout"'),
    )
    expect(rows).toContain('no usable endpoint: shop/checkout:http')
  })

  it('draws the path to a Service with weights, nodes and reasons, and shows text of objects as text', async () => {
    const { page, complaints } = await open('services/shop/cart')
    await shown(page, '.drawing svg')
    const labels = (await texts(page, '.drawing svg text')).join('\n')
    for (const text of ['outside', 'shop/cart:http (ClusterIP)', '50 %', '10.1.0.1:8080', 'on other-node'])
      expect(labels).toContain(text)
    const rows = await rowTexts(page, 'Endpoints')
    expect(rows.map(([address, share, why]) => [address, share, why?.split(':')[0]])).toEqual([
      ['10.1.0.1:8080', '50 %', 'in'],
      ['10.1.0.2:8080', '50 %', 'in'],
      ['10.1.0.3:8080', '', 'out'],
    ])
    expect(rows[2]?.[3]).toBe('\\u{202e}node<img src=x onerror=alert(1)>')
    expect(await page.locator('img').count()).toBe(0)
    await page.getByLabel('Frontend').selectOption({ index: 1 })
    await page.getByRole('button', { name: 'Show' }).click()
    await becomes(
      async () => (await texts(page, '.drawing svg text')).join('\n'),
      text => text.includes('shop/cart:http (NodePort)'),
    )
    await page.getByLabel('Client').fill('pod/none/none')
    await page.getByRole('button', { name: 'Show' }).click()
    await becomes(
      () => page.locator('.answer').innerText(),
      text => text.includes('pod none/none'),
    )
    expect(await page.locator('.drawing svg').count()).toBe(0)
    // The browser names the failed question, and nothing else.
    expect(complaints.filter(text => !text.includes('status of 422'))).toEqual([])
  })

  it('counts connections while somebody looks', async () => {
    const { page } = await open('rates')
    await shown(page, 'table')
    const injector = openNetlink({ protocol: NETLINK_NETFILTER })
    let sent = 0
    const cell = async () => {
      const row = (await rowTexts(page, 'New connections')).find(([name]) => name === 'shop/search:http')
      return Number(row?.[4] ?? 0)
    }
    await eventually(async () => {
      sent++
      const from = `10.3.${sent >> 8}.${sent & 255}:1024`
      expect(inject(injector, [entry(from, '10.96.0.3:80', '10.1.0.5:8080', { protocol: 'TCP' })])).toBe(1)
      return (await cell()) > 0
    })
    await injector.close()
    expect(await cell()).toBeLessThanOrEqual(sent)
    expect(await page.locator('.spoken').innerText()).toMatch(/new connections a second/)
  })

  it('puts the repair of a damaged rule on the timeline', async () => {
    const { page } = await open('timeline')
    await becomes(
      () => page.locator('#content p').innerText(),
      text => text.startsWith('No repair'),
    )
    execFileSync('nft', ['flush', 'chain', 'ip', 'kube-proxy', 'services'])
    await becomes(
      () => page.locator('.events').innerText(),
      text => text.includes('repaired changes of another program'),
    )
    const repairs = fieldOf(await truth(socket, '/status'), 'repairs')
    expect(await page.locator('#content p').innerText()).toContain(
      `${count(numberAt(repairs, 'passes') ?? 0, 'repair')} of`,
    )
    expect(await page.locator('.strip .drift').count()).toBeGreaterThan(0)
  })

  it('is the same behind a forwarded admin socket, and refuses the name of another site', async () => {
    const { port, end } = await forwarded(socket)
    const body = await (await fetch(`http://127.0.0.1:${port}/ui/`)).text()
    expect(body).toBe(await (await fetch(`${ORIGIN}/ui/`)).text())
    end()
    const rebound = execFileSync('curl', [
      '-s',
      '--resolve',
      `evil.example:${PORT}:127.0.0.1`,
      `http://evil.example:${PORT}/ui/`,
    ])
    expect(String(rebound)).toContain('421 misdirected request: "evil.example:8080" is not this daemon')
  })
})

describe('everybody can use it:', () => {
  it('landmarks, headings, names of controls and headers of tables', async () => {
    const { page } = await open('services')
    await shown(page, 'tbody a')
    const tree = await page.locator('body').ariaSnapshot()
    for (const part of [
      'banner:',
      'navigation "Views":',
      'main:',
      'heading "Services" [level=1]',
      'search "Services":',
      'searchbox "Filter by name"',
      'checkbox "Only with problems"',
      'table "Services":',
      'columnheader "Service"',
      'rowheader "many/svc-00000"',
    ])
      expect(tree).toContain(part)
    expect(await page.locator('[aria-current=page]').innerText()).toBe('Services')
    expect(await page.locator('.status').getAttribute('aria-live')).toBe('polite')
  })

  it('a keyboard alone opens a Service, and the focus can be seen', async () => {
    const { page } = await open('overview')
    const focused = () => page.evaluate<string>("document.activeElement.innerText ?? ''")
    const press = async (key: string, until: string) => {
      for (let presses = 0; presses < 30 && (await focused()) !== until; presses++)
        await page.keyboard.press(key)
      expect(await focused()).toBe(until)
    }
    await press('Tab', 'Skip to the content')
    await press('Tab', 'Services')
    const outline = await page.evaluate<string>('getComputedStyle(document.activeElement).outlineStyle')
    expect(outline).toBe('solid')
    await page.keyboard.press('Enter')
    await shown(page, 'tbody a')
    expect(await focused()).toBe('Services')
    await page.keyboard.press('Tab')
    await page.keyboard.type('cart')
    await becomes(
      () => page.locator('.status').innerText(),
      text => text.startsWith('1 to 1 of 1 '),
    )
    await press('Tab', 'shop/cart')
    await page.evaluate("document.activeElement.dataset.before = 'refresh'")
    await eventually(() => page.evaluate<boolean>('document.activeElement.dataset.before === undefined'))
    expect(await focused()).toBe('shop/cart')
    await page.keyboard.press('Enter')
    await shown(page, '.drawing svg')
    expect(await page.locator('h2').innerText()).toBe('shop/cart')
  })

  it.each(['light', 'dark'] as const)('%s, 40 columns wide, without motion', async colorScheme => {
    const options = { colorScheme, viewport: { width: 320, height: 600 }, reducedMotion: 'reduce' } as const
    const { page } = await open('services/shop/cart', options)
    await shown(page, '.drawing svg')
    for (const view of ['services/shop/cart', 'services', 'configuration']) {
      await page.goto(`${ORIGIN}/ui/#${view}`)
      await shown(page, '#content:not([hidden])')
      expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(320)
    }
    expect(await contrast(page)).toBeGreaterThanOrEqual(4.5)
    const dark = await page.evaluate<boolean>(
      "getComputedStyle(document.body).backgroundColor === 'rgb(20, 23, 26)'",
    )
    expect(dark).toBe(colorScheme === 'dark')
  })
})

/** The least contrast of texts of the page against its background, by WCAG 2. */
async function contrast(page: Page): Promise<number> {
  return await page.evaluate<number>(`(() => {
    const light = color => {
      const [r, g, b] = color.match(/[0-9.]+/g).map(Number).map(each => each / 255)
        .map(each => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
      return 0.2126 * r + 0.7152 * g + 0.0722 * b
    }
    const back = light(getComputedStyle(document.body).backgroundColor)
    const ratios = [...document.querySelectorAll('main *')].map(each => light(getComputedStyle(each).color))
      .map(text => (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05))
    return Math.min(...ratios)
  })()`)
}

describe('instead of a wrong table', () => {
  it('a late answer is not shown in place of a newer one', async () => {
    const { page } = await open('services/shop/cart')
    await shown(page, '.drawing svg')
    let release: () => void = () => undefined
    const held = new Promise<void>(resolve => {
      release = resolve
    })
    let isAnswered = false
    await page.route('**/data/path?*from=10.9.9.9*', async route => {
      await held
      await route.continue()
      await route.request().response()
      isAnswered = true
    })
    const ask = async (client: string) => {
      await page.getByLabel('Client').fill(client)
      await page.getByRole('button', { name: 'Show' }).click()
    }
    const drawing = async () => (await texts(page, '.drawing svg text')).join('\n')
    await ask('10.9.9.9')
    await ask('10.8.8.8')
    await becomes(drawing, text => text.includes('10.8.8.8'))
    release()
    await eventually(() => isAnswered)
    // Whatever the answer leads to happens before the next one.
    await page.evaluate("fetch('data/status').then(response => response.json())")
    expect(await drawing()).toContain('10.8.8.8')
    expect(await drawing()).not.toContain('10.9.9.9')
  })

  it('a path that is not followed has no empty tables', async () => {
    const watched = await watchedPage(browser, ORIGIN)
    opened.push(watched)
    const answer = 'shop/cart is not served'
    await watched.page.route('**/data/path?*', route => route.fulfill({ json: { targets: [], answer } }))
    await watched.page.goto(`${ORIGIN}/#services/shop/cart`)
    await becomes(
      () => watched.page.locator('.answer').innerText(),
      text => text === answer,
    )
    expect(await watched.page.getByRole('table').count()).toBe(0)
    expect(await watched.page.locator('#content dl').isVisible()).toBe(false)
  })

  it('rates never stand under the order of another question', async () => {
    const { page } = await open('rates')
    await shown(page, 'table')
    const sorted = () => page.locator('th[aria-sort]').innerText()
    expect(await sorted()).toBe('New a second')
    let release: () => void = () => undefined
    const held = new Promise<void>(resolve => {
      release = resolve
    })
    const asked: string[] = []
    await page.route('**/data/rates?*', async route => {
      const sort = new URL(route.request().url()).searchParams.get('sort') ?? ''
      asked.push(sort)
      if (asked.length === 1) await held
      const total = sort === 'rate' ? 11 : 22
      await route.fulfill({ json: { rows: [{ service: 'shop/search', total }], largest: [], notices: [] } })
    })
    await eventually(() => asked.length === 1)
    await page.evaluate(`new MutationObserver(() => {
      const [head, cell] = [document.querySelector('th[aria-sort]'), document.querySelector('tbody td:nth-child(5)')]
      document.body.dataset.seen = (document.body.dataset.seen ?? '') + head?.innerText + cell?.innerText + ';'
    }).observe(document.querySelector('tbody'), { childList: true })`)
    await page.getByRole('button', { name: 'New since opened' }).click()
    release()
    await becomes(sorted, text => text === 'New since opened')
    const seen = await page.evaluate<string>('document.body.dataset.seen')
    expect(seen).not.toContain('New since opened11')
    expect(seen).toContain('New since opened22')
  })

  it('F174: a banner says that the daemon is of another version', async () => {
    const watched = await watchedPage(browser, ORIGIN)
    opened.push(watched)
    await watched.page.route('**/data/status*', route => route.fulfill({ json: { version: '99.0.0' } }))
    await watched.page.goto(`${ORIGIN}/ui/#services`)
    await shown(watched.page, '#banner')
    expect(await watched.page.getByRole('alert').first().innerText()).toMatch(
      /the daemon of version 99\.0\.0/,
    )
    expect(await watched.page.locator('#content').isVisible()).toBe(false)
  })

  it('F174: a banner says that the daemon is away', async () => {
    const { page } = await open('services')
    await shown(page, 'tbody a')
    await daemons.end()
    await shown(page, '#banner')
    expect(await page.locator('#banner').innerText()).toContain('The daemon does not answer')
    expect(await page.locator('#content').isVisible()).toBe(false)
  })
})

describe.runIf(PICTURES !== undefined)('pictures', () => {
  it('are taken for the documents', async () => {
    socket = join(daemons.folder(), 'admin.sock')
    source = EXAMPLES
    await startDaemon('--hostname-override=example-node')
    for (const [name, view, colorScheme] of [
      ['page-services', 'services', 'light'],
      ['page-path', 'services/shop/storefront', 'dark'],
    ] as const) {
      const { page } = await open(view, { colorScheme, viewport: { width: 1_000, height: 640 } })
      await shown(page, 'tbody th')
      await page.screenshot({ path: join(PICTURES ?? '', `${name}.png`) })
    }
  })
})
