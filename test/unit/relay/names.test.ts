import { describe, expect, it } from 'vitest'
import { formatApiAddress, parseRelayAddress } from '../../../src/base/api-address.ts'
import { RelayNames } from '../../../src/relay/names.ts'
import { openLinks } from '../../../src/relay/open.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { Follower } from '../../support/follower.ts'
import { RelayWorld } from '../../support/relay.ts'

/** What a resolver says: addresses, or an error. */
type Zone = Map<string, readonly string[] | Error>

function begin(zone: Zone, lookUp?: (name: string) => Promise<readonly string[]>) {
  const clock = new FakeClock()
  const asked: string[] = []
  const said: string[] = []
  const names = [...zone.keys()]
    .map(name => parseRelayAddress(`dns:///${name}:12091@a`))
    .filter(its => 'port' in its)
  const its = new RelayNames({
    names,
    clock,
    random: () => 0.5,
    say: text => void said.push(text),
    lookup: name => {
      asked.push(name)
      if (lookUp !== undefined) return lookUp(name)
      const answer = zone.get(name)
      return answer instanceof Error || answer === undefined
        ? Promise.reject(answer)
        : Promise.resolve(answer)
    },
  })
  let changes = 0
  its.changed = () => void changes++
  const addresses = (): readonly string[] => its.addresses.map(({ address }) => formatApiAddress(address))
  return { its, clock, asked, said, addresses, changes: () => changes }
}

describe('names of relays', () => {
  it('lead to all their addresses, which are looked up again every 24 to 36 s', async () => {
    const zone: Zone = new Map([['r.test', ['10.0.0.2', '10.0.0.1', 'fd00::1', '10.0.0.2']]])
    const { its, clock, asked, said, addresses, changes } = begin(zone)
    await its.ready()
    expect(its.ready()).toBeUndefined()
    expect([...addresses()].sort()).toEqual([
      'tcp://10.0.0.1:12091',
      'tcp://10.0.0.2:12091',
      'tcp://[fd00::1]:12091',
    ])
    expect(its.addresses.every(({ zone, name }) => zone === 'a' && name === 'r.test')).toBe(true)
    await clock.advance(29_000)
    expect(asked).toHaveLength(1)
    zone.set('r.test', ['10.0.0.3'])
    await clock.advance(2_000)
    expect(addresses()).toEqual(['tcp://10.0.0.3:12091'])
    await clock.advance(60_000)
    expect([asked.length, changes(), said]).toEqual([4, 2, []])
    its.close()
    await clock.advance(60_000)
    expect(asked).toHaveLength(4)
  })

  it('F207: keep their last addresses while they cannot be resolved, and hurry when no relay answers', async () => {
    const zone: Zone = new Map([['r.test', ['10.0.0.1']]])
    const { its, clock, asked, said, addresses } = begin(zone)
    await its.ready()
    for (const answer of [new Error('EAI_AGAIN'), [], ['no address'], new Error('ENOTFOUND\nx')]) {
      zone.set('r.test', answer)
      await clock.advance(30_000)
      expect(addresses()).toEqual(['tcp://10.0.0.1:12091'])
    }
    expect(said).toEqual(['cannot resolve r.test: EAI_AGAIN; its last 1 addresses stay in use; retrying'])
    expect(its.troubles[0]).not.toContain('\n')
    const before = asked.length
    zone.set('r.test', ['10.0.0.9'])
    await clock.advance(5_000)
    for (let times = 0; times < 10; times++) its.hurry()
    await clock.advance(1)
    expect(asked).toHaveLength(before + 1)
    expect(addresses()).toEqual(['tcp://10.0.0.9:12091'])
    expect(said.at(-1)).toBe('r.test is resolved again')
  })

  it('F207: that could not be resolved are asked for after the others', async () => {
    const zone: Zone = new Map<string, readonly string[] | Error>([
      ['a.test', new Error('EAI_AGAIN')],
      ['b.test', ['10.0.0.1']],
    ])
    const { its, clock, asked } = begin(zone)
    await its.ready()
    await clock.advance(30_000)
    expect(asked).toEqual(['a.test', 'b.test', 'b.test', 'a.test'])
    its.close()
  })

  it('F207: are waited for by a first request for 5 s', async () => {
    const { its, clock } = begin(new Map([['r.test', []]]), () => new Promise(() => undefined))
    let isOver = false
    void its.ready()?.then(() => {
      isOver = true
    })
    await clock.advance(4_900)
    expect(isOver).toBe(false)
    await clock.advance(200)
    expect(isOver).toBe(true)
  })

  it('F207: are looked up one at a time, and one that hangs says so', async () => {
    const open: (() => void)[] = []
    let running = 0
    const zone: Zone = new Map(['a.test', 'b.test', 'c.test'].map(name => [name, []]))
    const { its, clock, said } = begin(zone, async () => {
      running++
      await new Promise<void>(resolve => open.push(resolve))
      running--
      return ['10.0.0.1']
    })
    void its.ready()
    for (let times = 0; times < 10; times++) {
      await clock.advance(6_000)
      its.hurry()
    }
    expect(running).toBe(1)
    expect(its.troubles).toEqual(['a.test: no answer within 5 s'])
    for (const name of ['b.test', 'c.test']) {
      open.at(-1)?.()
      await clock.advance(6_000)
      expect(running).toBe(1)
      expect(its.troubles).toEqual([`${name}: no answer within 5 s`])
    }
    open.at(-1)?.()
    await clock.advance(1)
    expect([running, its.troubles, its.addresses.length]).toEqual([0, [], 3])
    await clock.advance(5_000)
    its.hurry()
    expect(running).toBe(1)
    its.close()
    said.length = 0
    await clock.advance(6_000)
    expect(said).toEqual([])
  })

  it.each([
    'dns://r.test:1',
    'dns:///r.test',
    'dns:///r.test:0',
    'dns:///10.0.0.1:12091',
    'dns:///-a.test:1',
    `dns:///${'a.'.repeat(130)}test:1`,
    'dns:///r.test:70000',
  ])('refuse %s', text => {
    expect(() => parseRelayAddress(text)).toThrow('not a DNS name; write dns:///NAME:PORT')
  })
})

it('F207: `kprobe relay status` asks so many addresses of a name at most', async () => {
  const many = Array.from({ length: 10_000 }, (_, index) => `10.1.${index >> 8}.${index & 255}`)
  const options = { tls: undefined, tokenFile: '' }
  const links = await openLinks('dns:///r.test:12091', options, new FakeClock(), () =>
    Promise.resolve(['no address', ...many, ...many]),
  )
  for (const { link } of links) link.close()
  expect(new Set(links.map(({ address }) => address)).size).toBe(64)
  expect(links).toHaveLength(64)
})

it('F207: an address that another name leads to now is believed by that name', async () => {
  const zone: Zone = new Map([
    ['a.test', ['10.0.0.1']],
    ['b.test', ['10.0.0.2']],
  ])
  const { its: names, clock } = begin(zone)
  const links: string[] = []
  const client = new RelayWorld().client('node-0', [], names, (address, name) => {
    links.push(`${formatApiAddress(address)} ${name}`)
  })
  await names.ready()
  zone.set('a.test', ['10.0.0.2']).set('b.test', ['10.0.0.1'])
  await clock.advance(60_000)
  expect(links.sort()).toEqual([
    'tcp://10.0.0.1:12091 a.test',
    'tcp://10.0.0.1:12091 b.test',
    'tcp://10.0.0.2:12091 a.test',
    'tcp://10.0.0.2:12091 b.test',
  ])
  await client.close()
})

it('a node follows the relays that a name leads to, and their watches go on', async () => {
  const world = new RelayWorld({ relays: 2 })
  const { clock } = world
  for (const relay of world.relays) relay.start()
  await clock.advance(2_000)
  let addresses = ['127.0.0.1']
  const names = new RelayNames({
    // The port of a MemoryRelay is its number.
    names: [{ name: 'r.test', port: 0, zone: '' }],
    clock,
    random: () => 0.5,
    say: () => undefined,
    lookup: () => Promise.resolve(addresses),
  })
  const client = world.client('node-0', world.relays, names)
  const follower = new Follower(world.source(client, 'node-0'))
  await follower.start()
  await clock.advance(1_000)
  const [first, second] = world.relays
  expect([first?.calls.size, second?.calls.size]).toEqual([4, 0])
  const direct = await world.direct().start()
  await clock.advance(1_000)
  expect(follower.known).toEqual(direct.known)
  addresses = ['127.0.0.2']
  await clock.advance(60_000)
  expect([first?.calls.size, second?.calls.size]).toEqual([4, 0])
  await first?.kill()
  world.change()
  await clock.advance(40_000)
  expect(second?.calls.size).toBe(4)
  expect(follower.known).toEqual(direct.known)
  await follower.source.stop()
  await client.close()
})
