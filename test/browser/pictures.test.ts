import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { endpoint, serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { NODE_NAME } from '../support/pipeline.ts'
import { entry, inject } from '../unit/kernel/conntrack/flows.ts'
import { NODE, ORIGIN, PageRig, PICTURES, shown } from './page.ts'

const NAMESPACES = 'shop payments search identity monitoring ingress mail media batch crm erp ci'.split(' ')
const NAMES = 'cart checkout catalog orders login gateway api worker redis postgres kafka images'.split(' ')
const SERVICES = 500

/** The name of a Service, and the bytes of its addresses. */
function place(index: number) {
  const round = Math.floor(index / NAMESPACES.length)
  const name = NAMES[(index + round) % NAMES.length] ?? ''
  const more = round < NAMES.length ? '' : `-${Math.floor(round / NAMES.length)}`
  const namespace = NAMESPACES[index % NAMESPACES.length] ?? ''
  return { key: `${namespace}/${name}${more}`, host: `${index >> 8}.${index & 255}` }
}

function market(): readonly object[] {
  const all = Array.from({ length: SERVICES }, (_, index) => {
    const { key, host } = place(index)
    const pods = Array.from({ length: 1 + (index % 3) }, (_, pod) =>
      endpoint(`10.${pod + 1}.${host}`, {
        pod: `${key.slice(key.indexOf('/') + 1)}-7f9c4-${index}${'abc'[pod]}`,
        nodeName: pod === 0 ? NODE_NAME : `node-${pod + 1}`,
        ready: index % 90 !== 40,
      }),
    )
    return [serviceOf(key, `10.96.${host}`), sliceOf(key, pods)]
  })
  return [NODE, ...all.flat()]
}

/** Connections of pods to each other and from outside. Those to the second endpoint of one Service meet no reply. */
function talk(injector: Transport, round: number): void {
  const entries = Array.from({ length: 60 }, (_, n) => {
    const to = (n * n + 12 * (round % 12)) % 180
    const [client, served] = [place(to + 1 + (n % 3) * 5).host, place(to).host]
    const from = n % 9 === 0 ? `203.0.113.${n}` : `10.1.${client}`
    return entry(`${from}:${10_000 + round}`, `10.96.${served}:80`, `10.1.${served}:8080`, {
      protocol: 'TCP',
    })
  })
  const silent = place(13).host
  const lost = Array.from({ length: 4 }, (_, n) =>
    entry(`10.1.${place(n).host}:${20_000 + round}`, `10.96.${silent}:80`, `10.2.${silent}:8080`, {
      protocol: 'TCP',
      isHalfOpen: true,
      // SYN_SENT, five seconds ago.
      tcpState: 1,
      timeoutS: 115,
    }),
  )
  inject(injector, [...entries, ...lost])
}

const VIEWS = [
  ['node', 'node', 'light', 1_100],
  ['services', 'services', 'light', 1_100],
  ['path', `services/${place(13).key}`, 'dark', 1_100],
  ['map', 'map', 'dark', 1_100],
  ['narrow', 'node', 'dark', 390],
] as const

describe.runIf(PICTURES !== undefined)('pictures for the documents', () => {
  let rig: PageRig
  beforeAll(async () => {
    rig = await PageRig.start(market())
    writeFileSync('/proc/sys/net/ipv4/ip_forward', '1')
  })
  afterAll(() => rig?.end())

  it('are taken', async () => {
    const injector = openNetlink({ protocol: NETLINK_NETFILTER })
    const { page } = await rig.open('node')
    let round = 0
    await eventually(
      async () => {
        talk(injector, round++)
        return round > 8 && (await page.locator('.problems').count()) > 0
      },
      { stepMs: 1_000 },
    )
    for (const [name, view, colorScheme, width] of VIEWS) {
      const viewport = { width, height: width < 500 ? 844 : 720 }
      const its = await rig.blank({ colorScheme, viewport })
      await its.page.goto(`${ORIGIN}/ui/#${view}`)
      await shown(its.page, 'tbody th, .endpoints li, .map a')
      talk(injector, round++)
      await its.page.screenshot({ path: join(PICTURES ?? '', `page-${name}.png`) })
      expect(its.complaints).toEqual([])
    }
    await injector.close()
  })
})
