import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { eventually } from '../support/patience.ts'
import { becomes, ORIGIN, PageRig, shop, shown, texts } from './page.ts'

let rig: PageRig

beforeAll(async () => {
  rig = await PageRig.start(shop(100))
})

afterEach(() => rig.closePages())

afterAll(() => rig?.end())

describe('instead of a wrong table', () => {
  it('a late answer is not shown in place of a newer one', async () => {
    const { page } = await rig.open('services/shop/cart')
    await shown(page, '.steps')
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
    const steps = async () => (await texts(page, '.steps')).join('\n')
    await ask('10.9.9.9')
    await ask('10.8.8.8')
    await becomes(steps, /10\.8\.8\.8/)
    release()
    await eventually(() => isAnswered)
    // Whatever the answer leads to happens before the next one.
    await page.evaluate("fetch('data/status').then(response => response.json())")
    expect(await steps()).toContain('10.8.8.8')
    expect(await steps()).not.toContain('10.9.9.9')
  })

  it('a path that is not followed has no empty tables', async () => {
    const watched = await rig.blank()
    const answer = 'shop/cart is not served'
    await watched.page.route('**/data/path?*', route => route.fulfill({ json: { targets: [], answer } }))
    await watched.page.goto(`${ORIGIN}/#services/shop/cart`)
    await becomes(() => watched.page.locator('.answer span').last().innerText(), answer)
    expect(await watched.page.locator('.steps, .endpoints').count()).toBe(0)
  })

  it('rates never stand under the order of another question', async () => {
    const { page } = await rig.open('rates')
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
      const [head, cell] = [document.querySelector('th[aria-sort]'), document.querySelector('tbody td:nth-child(4)')]
      document.body.dataset.seen = (document.body.dataset.seen ?? '') + head?.innerText + cell?.innerText + ';'
    }).observe(document.querySelector('tbody'), { childList: true, characterData: true, subtree: true })`)
    await page.getByRole('button', { name: 'New since opened' }).click()
    release()
    await becomes(sorted, 'New since opened')
    const seen = await page.evaluate<string>('document.body.dataset.seen')
    expect(seen).not.toContain('New since opened11')
    expect(seen).toContain('New since opened22')
  })

  it('F174: a banner says that the daemon is of another version', async () => {
    const watched = await rig.blank()
    await watched.page.route('**/data/node*', route => route.fulfill({ json: { version: '99.0.0' } }))
    await watched.page.goto(`${ORIGIN}/ui/#services`)
    await shown(watched.page, '#banner')
    expect(await watched.page.getByRole('alert').first().innerText()).toMatch(
      /the daemon of version 99\.0\.0/,
    )
    expect(await watched.page.locator('#content').isVisible()).toBe(false)
  })

  it('a viewer that the daemon limits keeps its rows, and sees why they are not new', async () => {
    const { page } = await rig.open('services')
    await shown(page, 'tbody a')
    let isLimited = true
    await page.route('**/data/services?*', route =>
      isLimited ? route.fulfill({ status: 429, json: { error: 'too many requests' } }) : route.continue(),
    )
    await page.getByLabel('Filter').fill('cart')
    await becomes(async () => (await texts(page, '#content [role=alert]')).join(), 'too many requests')
    expect(await page.locator('tbody a').count()).toBe(50)
    isLimited = false
    await becomes(() => page.locator('.status').innerText(), /^1 to 1 of 1 /)
    expect(await page.locator('#content [role=alert]').count()).toBe(0)
  })

  it('F174: a banner says that the daemon is away', async () => {
    const { page } = await rig.open('services')
    await shown(page, 'tbody a')
    await rig.daemons.end()
    await shown(page, '#banner')
    expect(await page.locator('#banner').innerText()).toContain('The daemon does not answer')
    expect(await page.locator('#content').isVisible()).toBe(false)
  })
})
