import { execFileSync } from 'node:child_process'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { fieldOf, numberAt, textAt } from '../../src/base/plain-data.ts'
import { count } from '../../src/base/text.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { eventually } from '../support/patience.ts'
import { NODE_NAME } from '../support/pipeline.ts'
import { entry, inject } from '../unit/kernel/conntrack/flows.ts'
import { becomes, contrast, forwarded, ORIGIN, PageRig, rowTexts, shop, shown, texts, truth } from './page.ts'

const MANY = 10_000

let rig: PageRig

beforeAll(async () => {
  rig = await PageRig.start(shop(MANY))
})

afterEach(() => rig.closePages())

afterAll(() => rig?.end())

describe('the page', () => {
  it('says whether the node is well, and what the admin socket says, with no violation of its policy', async () => {
    const { page, complaints, foreign } = await rig.open('node')
    await shown(page, '.curve')
    const status = await truth(rig.socket, '/status')
    const [facts = ''] = await texts(page, '#content dl')
    for (const text of [textAt(status, 'mode'), '10003 served']) expect(facts).toContain(text)
    expect(await page.locator('.verdict').innerText()).toMatch(/kprobe serves 10003 Services on this node/)
    expect(await page.locator('time').getAttribute('title')).toBe(textAt(status, 'startedAt'))
    expect(await page.locator('time').innerText()).toMatch(/ ago$|just now/)
    expect(await texts(page, '.curve .name')).toEqual(
      expect.arrayContaining(['Connections / s', 'Commits / 5 s']),
    )

    await page.getByRole('link', { name: 'Events' }).click()
    const receipts = await truth(rig.socket, '/receipts')
    const bytes = (Array.isArray(receipts) ? receipts : []).toReversed().map(line => numberAt(line, 'bytes'))
    await becomes(
      async () =>
        JSON.stringify((await rowTexts(page, 'Commits')).map(row => Number(row[5]?.replaceAll(',', '')))),
      JSON.stringify(bytes),
    )

    await page.getByRole('link', { name: 'Configuration' }).click()
    await page.getByLabel('Filter').fill('ui-address')
    await becomes(
      async () => JSON.stringify(await rowTexts(page, 'Flags')),
      JSON.stringify([['--ui-address', '8080']]),
    )
    expect(complaints).toEqual([])
    expect(foreign).toEqual([])
  })

  it('leads from a problem to its place', async () => {
    const watched = await rig.blank()
    const { page } = watched
    const problems = [
      {
        level: 'error',
        kind: 'unanswered',
        text: 'no reply',
        service: 'shop/cart',
        hint: '`kprobe why shop/cart`',
      },
      { level: 'warning', kind: 'services-refused', text: 'refused: 10,000 objects', service: 'shop/cart' },
    ]
    await page.route('**/data/node*', async route => {
      const response = await route.fetch()
      const document = { verdict: 'impaired', sentence: 'two problems', problems, facts: [] }
      await route.fulfill({ json: { ...(await response.json()), document } })
    })
    await page.goto(`${ORIGIN}/ui/`)
    await shown(page, '.verdict')
    expect(await page.locator('header .state').innerText()).toBe(`✖ ${NODE_NAME}: impaired`)
    expect(await page.locator('.problems code').innerText()).toBe('kprobe why shop/cart')
    await page.getByRole('link', { name: 'no reply' }).click()
    await shown(page, '.steps')
    await page.goto(`${ORIGIN}/ui/#node`)
    await page.getByRole('link', { name: 'refused: 10,000' }).click()
    await shown(page, 'tbody a')
    expect(await page.getByLabel('Only with problems').isChecked()).toBe(true)
  })

  it('shows 10,003 Services in pages, the worst first, and finds some by name, address, pod and problem', async () => {
    const { page } = await rig.open('services')
    const status = (wanted: string) => becomes(() => page.locator('.status').innerText(), wanted)
    const firstRow = (name: string) =>
      becomes(async () => (await rowTexts(page, 'Services'))[0]?.[0] ?? '', name)
    await status('1 to 50 of 10,003')
    expect(await rowTexts(page, 'Services')).toHaveLength(50)
    await firstRow('shop/checkout')
    expect((await rowTexts(page, 'Services'))[0]?.[1]).toBe('▲ no usable endpoint')
    await page.getByRole('button', { name: 'Service', exact: true }).click()
    await firstRow('many/svc-00000')
    await page.getByRole('button', { name: 'Next' }).click()
    await status('51 to 100 of 10,003')
    await firstRow('many/svc-00050')
    for (const [filter, number, name] of [
      ['svc-0999', '10', 'many/svc-09990'],
      ['10.2.0.77', '1', 'many/svc-00077'],
      ['cart-7f9', '1', 'shop/cart'],
      ['no usable', '1', 'shop/checkout'],
    ] as const) {
      await page.getByLabel('Filter').fill(filter)
      await status(`1 to ${number} of ${number} that match; 10,003 in all`)
      await firstRow(name)
    }
    await page.getByLabel('Filter').fill('')
    await page.getByLabel('Only with problems').check()
    await status('1 to 1 of 1 that match; 10,003 in all')
  })

  it('draws the path to a Service with pods, shares, nodes and reasons, and shows text of objects as text', async () => {
    const { page, complaints } = await rig.open('services/shop/cart')
    await shown(page, '.steps')
    const steps = (await texts(page, '.steps strong')).join('\n')
    for (const text of ['outside', '10.96.0.1:80/tcp', 'Cluster']) expect(steps).toContain(text)
    expect(await page.locator('.steps details').getAttribute('open')).toBeNull()
    const [first = '', second = '', third = ''] = await page.locator('.endpoints li').allInnerTexts()
    expect(first).toMatch(/^✔\s+shop\/cart-7f9c\s+10\.1\.0\.1:8080\s+50 %/)
    expect(second).toMatch(/on other-node/)
    expect(third).toContain('\\u{202e}node<img src=x onerror=alert(1)>')
    expect(third).toContain('out: ')
    expect(await page.locator('img').count()).toBe(0)
    await page.getByLabel('Frontend').selectOption({ index: 1 })
    await becomes(async () => (await texts(page, '.steps small')).join(), /NodePort/)
    await page.getByLabel('Client').fill('pod/none/none')
    await page.getByRole('button', { name: 'Show' }).click()
    await becomes(async () => (await texts(page, '#content [role=alert]')).join(), /pod none\/none/)
    expect(await page.locator('.steps').count()).toBe(0)
    // The browser names the failed question, and nothing else.
    expect(complaints.filter(text => !text.includes('status of 422'))).toEqual([])
  })

  it('maps who talks to what: namespaces, and the Services of one', async () => {
    const injector = openNetlink({ protocol: NETLINK_NETFILTER })
    const talks = [
      entry('10.1.0.1:2000', '10.96.0.3:80', '10.1.0.5:8080', { protocol: 'TCP' }),
      entry('203.0.113.7:2000', '10.97.0.9:80', '10.2.0.9:8080', { protocol: 'TCP' }),
    ]
    expect(inject(injector, talks)).toBe(2)
    await injector.close()
    const { page, complaints } = await rig.open('map')
    await shown(page, '.map a')
    const links = () => texts(page, '.map .link title')
    expect(await links()).toEqual(expect.arrayContaining(['shop to shop: 1', '(outside) to many: 1']))
    await page.getByRole('link', { name: 'many: 1 connections' }).click()
    await becomes(async () => (await links()).join(), '(outside) to many/svc-00009:http: 1')
    await page.getByRole('link', { name: 'many/svc-00009:http' }).click()
    await shown(page, '.steps')
    expect(await page.locator('h2').first().innerText()).toBe('many/svc-00009')
    expect(complaints).toEqual([])
  })

  it('counts connections while somebody looks', async () => {
    const { page } = await rig.open('rates')
    await shown(page, 'table')
    const injector = openNetlink({ protocol: NETLINK_NETFILTER })
    let sent = 0
    const cell = async () => {
      const row = (await rowTexts(page, 'New connections')).find(([name]) => name === 'shop/search:http')
      return Number(row?.[3] ?? 0)
    }
    await eventually(async () => {
      sent++
      const from = `10.3.${sent >> 8}.${sent & 255}:1024`
      expect(inject(injector, [entry(from, '10.96.0.3:80', '10.1.0.5:8080', { protocol: 'TCP' })])).toBe(1)
      return (await cell()) > 0
    })
    await injector.close()
    expect(await cell()).toBeLessThanOrEqual(sent)
    expect(await page.locator('.status').innerText()).toMatch(/new connections a second/)
  })

  it('marks the repair of a damaged rule among the commits', async () => {
    const { page } = await rig.open('events')
    await becomes(() => page.locator('.repairs').innerText(), /^No repair/)
    execFileSync('nft', ['flush', 'chain', 'ip', 'kube-proxy', 'services'])
    await becomes(
      async () => (await texts(page, 'tbody .drift')).join(),
      /repaired changes of another program/,
    )
    const repairs = fieldOf(await truth(rig.socket, '/status'), 'repairs')
    const number = count(numberAt(repairs, 'passes') ?? 0, 'repair')
    await becomes(() => page.locator('.repairs').innerText(), new RegExp(`^${number} of`))
    await page.getByLabel('Only drift and failures').check()
    expect(await page.locator('tbody tr').count()).toBe(await page.locator('tbody .drift').count())
  })

  it('is the same behind a forwarded admin socket, and refuses the name of another site', async () => {
    const { port, end } = await forwarded(rig.socket)
    const body = await (await fetch(`http://127.0.0.1:${port}/ui/`)).text()
    expect(body).toBe(await (await fetch(`${ORIGIN}/ui/`)).text())
    end()
    const rebound = execFileSync('curl', [
      '-s',
      '--resolve',
      'evil.example:8080:127.0.0.1',
      'http://evil.example:8080/ui/',
    ])
    expect(String(rebound)).toContain('421 misdirected request: "evil.example:8080" is not this daemon')
  })
})

describe('everybody can use it:', () => {
  it('landmarks, headings, names of controls and headers of tables', async () => {
    const { page } = await rig.open('services')
    await shown(page, 'tbody a')
    const tree = await page.locator('body').ariaSnapshot()
    for (const part of [
      'banner:',
      'navigation "Views":',
      'main:',
      'heading "Services" [level=1]',
      'search "Services":',
      'searchbox "Filter"',
      'checkbox "Only with problems"',
      'table "Services":',
      'columnheader "Service"',
      'rowheader "shop/checkout"',
    ])
      expect(tree).toContain(part)
    expect(await page.locator('[aria-current=page]').innerText()).toBe('Services')
    expect(await page.locator('.status').getAttribute('aria-live')).toBe('polite')
  })

  it('a keyboard alone opens a Service, and the focus can be seen', async () => {
    const { page } = await rig.open('node')
    const focused = () => page.evaluate<string>("document.activeElement.innerText ?? ''")
    await page.keyboard.press('Tab')
    expect(await focused()).toBe('Skip to the content')
    await page.keyboard.press('Tab')
    const outline = await page.evaluate<string>('getComputedStyle(document.activeElement).outlineStyle')
    expect(outline).toBe('solid')
    await page.keyboard.press('2')
    await becomes(focused, 'Services')
    await shown(page, 'main [data-row] >> text=shop/checkout')
    await page.keyboard.press('j')
    expect(await focused()).toBe('shop/checkout')
    await page.keyboard.press('j')
    await page.keyboard.press('k')
    expect(await focused()).toBe('shop/checkout')
    await page.keyboard.press('/')
    await page.keyboard.type('cart')
    await becomes(() => page.locator('.status').innerText(), /^1 to 1 of 1 /)
    await page.keyboard.press('Enter')
    expect(await focused()).toBe('shop/cart')
    await page.keyboard.press('Enter')
    await shown(page, '.steps')
    expect(await page.locator('h2').first().innerText()).toBe('shop/cart')
    await page.keyboard.press('Escape')
    // The list has its filter again; the next Esc clears it, and one more leaves the list.
    await becomes(() => page.getByLabel('Filter').inputValue(), 'cart')
    await page.keyboard.press('Escape')
    await becomes(() => page.locator('.status').innerText(), '1 to 50 of 10,003')
    await page.keyboard.press('Escape')
    await shown(page, '.verdict')
    await page.keyboard.press('?')
    await shown(page, 'dialog[open]')
    await page.keyboard.press('Escape')
    expect(await page.locator('dialog[open]').count()).toBe(0)
  })

  it.each(['light', 'dark'] as const)('%s, 40 columns wide, without motion', async colorScheme => {
    const options = { colorScheme, viewport: { width: 320, height: 600 }, reducedMotion: 'reduce' } as const
    const { page } = await rig.open('services/shop/cart', options)
    await shown(page, '.steps')
    for (const view of ['services/shop/cart', 'services', 'configuration', 'map', 'events', 'node']) {
      await page.goto(`${ORIGIN}/ui/#${view}`)
      await shown(page, '#content:not([hidden])')
      expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(320)
      expect(await contrast(page)).toBeGreaterThanOrEqual(4.5)
    }
    // The answer is in the window without scrolling.
    const box = await page.locator('.verdict').boundingBox()
    expect((box?.y ?? 600) + (box?.height ?? 0)).toBeLessThan(600)
    const dark = await page.evaluate<boolean>(
      "getComputedStyle(document.body).backgroundColor === 'rgb(20, 23, 26)'",
    )
    expect(dark).toBe(colorScheme === 'dark')
  })
})
