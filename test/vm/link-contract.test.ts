import { execFileSync, spawnSync } from 'node:child_process'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { DummyClient } from '../../src/kernel/link/dummy.ts'
import { NETLINK_ROUTE } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { ips, type LinkTarget, linkSuite } from '../contract/link-suite.ts'

/** What the guest's kernel and ip(8) say. Each test begins without the devices of the one before. */
const NAMES = ['kube-ipvs0', 'other0']
const NETNS = 'client'
const opened = new Set<Transport>()

function ip(...words: readonly string[]): string {
  return execFileSync('ip', words, { encoding: 'utf8' })
}

function open(): Transport {
  const transport = openNetlink({ protocol: NETLINK_ROUTE })
  opened.add(transport)
  return transport
}

interface Told {
  readonly ifname: string
  readonly flags: readonly string[]
  readonly linkinfo?: { readonly info_kind?: string }
  readonly addr_info: readonly {
    readonly local: string
    readonly prefixlen: number
    readonly scope: string
    readonly tentative?: boolean
  }[]
}

function told(name: string): Told | undefined {
  const list: readonly Told[] = JSON.parse(ip('-d', '-j', 'addr'))
  return list.find(({ ifname }) => ifname === name)
}

const kernel = (): LinkTarget => ({
  open,
  sight(name) {
    const link = told(name)
    if (link === undefined) return undefined
    const addresses = link.addr_info
      .filter(({ scope }) => scope === 'global')
      .map(({ local, prefixlen }) => `${local}/${prefixlen}`)
    return { kind: link.linkinfo?.info_kind, up: link.flags.includes('UP'), addresses }
  },
  addLink: (name, kind) => ip('link', 'add', name, 'type', kind),
  addAddress: (name, address) => ip('addr', 'add', address, 'dev', name),
})

function batch(lines: readonly string[], ...options: readonly string[]): void {
  execFileSync('ip', [...options, '-batch', '-'], { input: lines.join('\n') })
}

/** In one go: starting programs is what takes the time here. Those that are not there are complained of, and no matter. */
function clear(): void {
  const lines = NAMES.map(name => `link del ${name}`).join('\n')
  spawnSync('ip', ['-force', '-batch', '-'], { input: lines })
}

beforeAll(clear)

afterEach(async () => {
  await Promise.all([...opened].map(transport => transport.close()))
  opened.clear()
  clear()
})

describe('the kernel of the guest', () => linkSuite(kernel))

describe('a device that is down', () => {
  let client: DummyClient
  beforeAll(() => {
    batch([
      `netns add ${NETNS}`,
      `link add wire0 type veth peer name wire1 netns ${NETNS}`,
      'link set wire0 up',
      'addr add 192.0.2.1/24 dev wire0',
      'addr add fd00:2::1/64 dev wire0 nodad',
    ])
    const there = ['addr add 192.0.2.9/24 dev wire1', 'addr add fd00:2::9/64 dev wire1 nodad']
    batch(['link set wire1 up', ...there, 'route add default via 192.0.2.1'], '-n', NETNS)
    batch(['route add default via fd00:2::1'], '-6', '-n', NETNS)
  })
  afterAll(() => batch(['link del wire0', `netns del ${NETNS}`]))
  beforeEach(() => {
    client = new DummyClient({ transport: open(), clock: systemClock })
  })

  /** Whether one of five packets is answered: an emulated machine takes its time. */
  const reached = (address: string): boolean => Array.from({ length: 5 }).some(() => answers(address, 10))
  /** Whether a packet of another machine's is answered by this one, within so many seconds. */
  const answers = (address: string, waitS = 1): boolean => {
    const ping = address.includes(':') ? 'ping6' : 'ping'
    try {
      ip('netns', 'exec', NETNS, 'busybox', ping, '-c', '1', '-W', String(waitS), address)
      return true
    } catch {
      return false
    }
  }
  const localRoutes = (): readonly string[] =>
    [ip('route', 'show', 'table', 'local'), ip('-6', 'route', 'show', 'table', 'local')]
      .flatMap(text => text.split('\n'))
      .filter(line => line.includes('dev kube-ipvs0'))
      .map(line => line.split(' ').slice(0, 2).join(' '))

  test('takes in packets for its addresses, in both families', async () => {
    const addresses = ['10.96.0.1', 'fd00:96::1']
    expect(addresses.map(each => answers(each))).toEqual([false, false])
    client.ensure('kube-ipvs0')
    await client.commit('kube-ipvs0', { add: ips(...addresses), remove: [] })
    expect(told('kube-ipvs0')?.flags).not.toContain('UP')
    expect(told('kube-ipvs0')?.addr_info.some(({ tentative }) => tentative === true)).toBe(false)
    expect(localRoutes()).toEqual(['local 10.96.0.1', 'local fd00:96::1'])
    expect(addresses.map(reached)).toEqual([true, true])
    await client.commit('kube-ipvs0', { add: [], remove: ips(...addresses) })
    expect(localRoutes()).toEqual([])
    expect(addresses.map(each => answers(each))).toEqual([false, false])
  })

  test('loses its addresses of IPv6 when somebody switches it on and off, and gets them back', async () => {
    const addresses = ips('10.96.0.1', 'fd00:96::1')
    client.ensure('kube-ipvs0')
    await client.commit('kube-ipvs0', { add: addresses, remove: [] })
    batch(['link set kube-ipvs0 up', 'link set kube-ipvs0 down'])
    expect(await client.addresses('kube-ipvs0')).toEqual(ips('10.96.0.1'))
    expect(await client.commit('kube-ipvs0', { add: addresses, remove: [] })).toMatchObject({ failures: [] })
    expect(localRoutes()).toEqual(['local 10.96.0.1', 'local fd00:96::1'])
    expect(reached('fd00:96::1')).toBe(true)
  })
})
