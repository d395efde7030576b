import { afterEach, describe, expect, type TestAPI, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { formatIp, type Ip } from '../../src/base/ip.ts'
import { DummyClient } from '../../src/kernel/link/dummy.ts'
import { createAddressReader } from '../../src/kernel/link/links.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { ip } from '../support/addresses.ts'
import { lent } from './target.ts'

/** Devices of a network namespace, real or not, and what others see of them and do to them. */
export interface LinkTarget {
  open(): Transport
  /** As `ip -j addr` tells; undefined when there is no such device. Addresses are `192.0.2.1/32`, without link-local ones. */
  sight(name: string): LinkSight | undefined
  /** As `ip link add NAME type KIND`. */
  addLink(name: string, kind: 'veth' | 'bridge' | 'dummy'): void
  /** As `ip addr add ADDRESS dev NAME`. */
  addAddress(name: string, address: string): void
}

export interface LinkSight {
  readonly kind: string | undefined
  readonly up: boolean
  readonly addresses: readonly string[]
}

const NAME = 'kube-ipvs0'
const NOBODY = { add: [], remove: [] }

export function ips(...texts: readonly string[]): readonly Ip[] {
  return texts.map(ip)
}

/** The dummy device and its addresses, and the reader that leaves them out. Each test begins without such a device. */
export function linkSuite(factory: () => LinkTarget): void {
  const tools = test.extend<Tools>({
    target: ({ task: _ }, use) => use(factory()),
    client: ({ target }, use) => lent(new DummyClient({ transport: target.open(), clock: systemClock }), use),
  })

  describe('a dummy device', () => devices(tools))
  describe('addresses of a dummy device', () => {
    changes(tools)
    prefixesAndNumbers(tools)
    refusals(tools)
  })
  describe('addresses of all other devices', () => others(tools))
}

interface Tools {
  readonly target: LinkTarget
  readonly client: DummyClient
}

function devices(test: TestAPI<Tools>): void {
  test('is made once, of its kind, and left down', async ({ target, client }) => {
    expect(await client.addresses(NAME)).toBeUndefined()
    client.ensure(NAME)
    expect(target.sight(NAME)).toEqual({ kind: 'dummy', up: false, addresses: [] })
    client.ensure(NAME)
    expect(await client.addresses(NAME)).toEqual([])
  })

  test('that somebody else made is as good', async ({ target, client }) => {
    target.addLink(NAME, 'dummy')
    target.addAddress(NAME, '10.96.0.1/32')
    client.ensure(NAME)
    expect(await client.addresses(NAME)).toEqual(ips('10.96.0.1'))
  })

  test('goes with its addresses, and going twice is going', async ({ target, client }) => {
    client.ensure(NAME)
    await client.commit(NAME, { add: ips('10.96.0.1', 'fd00:96::1'), remove: [] })
    client.remove(NAME)
    expect(target.sight(NAME)).toBeUndefined()
    client.remove(NAME)
    expect(await client.addresses(NAME)).toBeUndefined()
  })

  test('is not what another device of that name is taken for, which stays as it is', async ({
    target,
    client,
  }) => {
    target.addLink(NAME, 'bridge')
    target.addAddress(NAME, '10.96.0.1/32')
    const before = target.sight(NAME)
    const words = /kube-ipvs0: EEXIST .*not a dummy device but of kind bridge/
    expect(() => client.ensure(NAME)).toThrow(words)
    expect(() => client.remove(NAME)).toThrow(words)
    await expect(client.addresses(NAME)).rejects.toThrow(words)
    await expect(client.commit(NAME, { add: ips('10.96.0.2'), remove: ips('10.96.0.1') })).rejects.toThrow(
      words,
    )
    expect(target.sight(NAME)).toEqual(before)
  })

  test('cannot have a name that is too long, nor be the loopback device', ({ client }) => {
    expect(() => client.ensure('n'.repeat(16))).toThrow(/ERANGE/)
    expect(() => client.ensure('lo')).toThrow(/not a dummy device/)
  })
}

function changes(test: TestAPI<Tools>): void {
  test('come in both families, for one host each, and go', async ({ target, client }) => {
    client.ensure(NAME)
    const add = ips('10.96.0.10', '10.96.0.1', 'fd00:96::10', '203.0.113.7', 'fd00:96::1')
    const added = await client.commit(NAME, { add, remove: [] })
    expect(added).toMatchObject({ unknown: undefined, failures: [], messages: 5 })
    expect(target.sight(NAME)?.addresses.toSorted()).toEqual(
      ['10.96.0.1/32', '10.96.0.10/32', '203.0.113.7/32', 'fd00:96::10/128', 'fd00:96::1/128'].sort(),
    )
    expect(await client.addresses(NAME)).toEqual([...add].sort())
    const remove = ips('10.96.0.1', 'fd00:96::10')
    expect(await client.commit(NAME, { add: ips('10.96.0.2'), remove })).toMatchObject({ failures: [] })
    expect((await client.addresses(NAME))?.map(formatIp).toSorted()).toEqual(
      ['10.96.0.10', '10.96.0.2', '203.0.113.7', 'fd00:96::1'].sort(),
    )
  })

  test('are no error when they are there, or gone, already', async ({ target, client }) => {
    client.ensure(NAME)
    const both = ips('10.96.0.1', 'fd00:96::1')
    for (let round = 0; round < 2; round++) {
      expect(await client.commit(NAME, { add: both, remove: [] })).toMatchObject({ failures: [] })
      expect(target.sight(NAME)?.addresses).toHaveLength(2)
    }
    for (let round = 0; round < 2; round++) {
      expect(await client.commit(NAME, { add: [], remove: both })).toMatchObject({ failures: [] })
      expect(target.sight(NAME)?.addresses).toEqual([])
    }
    expect(await client.commit(NAME, NOBODY)).toMatchObject({ failures: [], messages: 0, bytes: 0 })
  })

  test('are its own alone', async ({ target, client }) => {
    target.addLink('other0', 'dummy')
    target.addAddress('other0', '192.0.2.1/24')
    target.addAddress('other0', '10.96.0.1/32')
    client.ensure(NAME)
    await client.commit(NAME, { add: ips('10.96.0.1'), remove: ips('192.0.2.1') })
    expect(await client.addresses(NAME)).toEqual(ips('10.96.0.1'))
    expect(target.sight('other0')?.addresses).toEqual(['192.0.2.1/24', '10.96.0.1/32'])
  })
}

function prefixesAndNumbers(test: TestAPI<Tools>): void {
  test('go whatever prefix somebody gave them, in IPv4', async ({ target, client }) => {
    client.ensure(NAME)
    target.addAddress(NAME, '10.96.0.1/24')
    expect(await client.addresses(NAME)).toEqual(ips('10.96.0.1'))
    expect(await client.commit(NAME, { add: [], remove: ips('10.96.0.1') })).toMatchObject({ failures: [] })
    expect(target.sight(NAME)?.addresses).toEqual([])
  })

  test('are sent by the hundred', async ({ client }) => {
    client.ensure(NAME)
    const many = ips(...Array.from({ length: 450 }, (_, i) => `10.97.${i >> 8}.${i & 255}`))
    expect(await client.commit(NAME, { add: many, remove: [] })).toMatchObject({
      failures: [],
      messages: 450,
    })
    expect(await client.addresses(NAME)).toEqual([...many].sort())
    expect(await client.commit(NAME, { add: [], remove: many })).toMatchObject({ failures: [] })
    expect(await client.addresses(NAME)).toEqual([])
  })
}

function refusals(test: TestAPI<Tools>): void {
  test('that the kernel refuses are named, and the others are there', async ({ target, client }) => {
    client.ensure(NAME)
    const { failures, unknown } = await client.commit(NAME, {
      add: ips('10.96.0.1', '::1', '10.96.0.2'),
      remove: [],
    })
    expect(unknown).toBeUndefined()
    expect(failures.map(({ ip, code }) => [formatIp(ip), code])).toEqual([['::1', 'EADDRNOTAVAIL']])
    expect(failures[0]?.error.message).toMatch(/add address ::1 dev kube-ipvs0: EADDRNOTAVAIL/)
    expect(target.sight(NAME)?.addresses).toEqual(['10.96.0.1/32', '10.96.0.2/32'])
  })

  test('cannot be added without the device, and need not be removed', async ({ client }) => {
    const changes = { add: ips('10.96.0.1'), remove: ips('10.96.0.2') }
    const { failures } = await client.commit(NAME, changes)
    expect(failures.map(({ ip, code }) => [formatIp(ip), code])).toEqual([['10.96.0.1', 'ENODEV']])
  })
}

function others(test: TestAPI<Tools>): void {
  const readers: { close(): Promise<void> }[] = []
  afterEach(async () => {
    await Promise.all(readers.splice(0).map(reader => reader.close()))
  })
  const readerOf = (target: LinkTarget, except?: string) => {
    const openTransport = () => target.open()
    const options = { openTransport, clock: systemClock }
    const reader = createAddressReader(except === undefined ? options : { ...options, except })
    readers.push(reader)
    return reader
  }

  test('are read without those of the device, whether it is there or not', async ({ target, client }) => {
    target.addLink('other0', 'dummy')
    target.addAddress('other0', '192.0.2.1/32')
    const all = readerOf(target)
    const reader = readerOf(target, NAME)
    const before = await all.read()
    expect(before).toContain(ips('192.0.2.1')[0])
    expect(await reader.read()).toEqual(before)
    for (let round = 0; round < 2; round++) {
      client.ensure(NAME)
      await client.commit(NAME, { add: ips('10.96.0.1', 'fd00:96::1'), remove: [] })
      expect(await reader.read()).toEqual(before)
      expect(await all.read()).toEqual([...before, ...ips('10.96.0.1', 'fd00:96::1')].sort())
      client.remove(NAME)
      expect(await reader.read()).toEqual(before)
    }
  })

  test('are read again when they change, and not when those of the device do', async ({ target, client }) => {
    target.addLink('other0', 'dummy')
    client.ensure(NAME)
    const reader = readerOf(target, NAME)
    await reader.read()
    let hints = 0
    let hinted = (): void => undefined
    const hint = new Promise<void>(resolve => {
      hinted = resolve
    })
    const stop = reader.watch(() => {
      hints++
      hinted()
    })
    await client.commit(NAME, { add: ips('10.96.0.1', 'fd00:96::1'), remove: [] })
    await client.commit(NAME, { add: [], remove: ips('10.96.0.1') })
    await new Promise(resolve => setTimeout(resolve, 50))
    expect(hints).toBe(0)
    target.addAddress('other0', '192.0.2.1/32')
    await hint
    expect(await reader.read()).toContain(ips('192.0.2.1')[0])
    await stop?.()
  })
}
