import { once } from 'node:events'
import { createServer } from 'node:net'
import { afterEach, expect, it } from 'vitest'
import { PersistentMap } from '../../../../src/base/collections.ts'
import type { Backend } from '../../../../src/model/frontend.ts'
import { DEFAULT_LIMITS, type RelayLimits } from '../../../../src/modes/common/relay/context.ts'
import { diffRelays, type Relay } from '../../../../src/modes/common/relay/relay.ts'
import type { ModeEvent } from '../../../../src/modes/mode.ts'
import { LocalhostRelays } from '../../../../src/modes/nftables/localhost.ts'
import { FakeClock, settle } from '../../../support/fake-clock.ts'
import { freePorts } from '../../../support/reference/ports.ts'
import { fate, LOOPBACK, RelayRig, readAll, until } from '../common/relay/rig.ts'

/* KEP-6032: the listeners of node ports at localhost, with real sockets. */

const rig = new RelayRig()
const closers: (() => void)[] = []
afterEach(() => {
  for (const close of closers.splice(0)) close()
  rig.close()
})

function relaysWith(limits: Partial<RelayLimits> = {}) {
  const clock = new FakeClock()
  const events: ModeEvent[] = []
  const relays = new LocalhostRelays({
    clock,
    limits: { ...DEFAULT_LIMITS, ...limits },
    report: event => events.push(event),
  })
  relays.start()
  closers.push(() => relays.destroy())
  const follow = async (...wanted: readonly Relay[]) => {
    const map = PersistentMap.from(wanted.map(relay => [relay.key, relay] as const))
    await relays.follow(diffRelays(relays.wanted, map), map)
  }
  return { relays, clock, events, follow }
}

function relay(port: number, cluster: readonly Backend[], service = 'ns/web'): Relay {
  return {
    key: `${service}:/TCP/IPv4 127.0.0.1:${port}`,
    displayName: service,
    service,
    protocol: 'TCP',
    address: LOOPBACK,
    port,
    lists: ['cluster'],
    balance: { affinityTimeoutS: 0, cluster, local: [] },
  }
}

async function server(name: string): Promise<Backend> {
  return await rig.server(socket => void socket.end(name))
}

async function ask(port: number): Promise<string> {
  const client = rig.client(port)
  client.end()
  return await readAll(client)
}

it('listens on the node port itself, follows endpoints, and refuses once the Service is gone', async () => {
  const { relays, follow } = relaysWith()
  const [port = 0] = await freePorts(1)
  const [a, b] = [await server('a'), await server('b')]
  await follow(relay(port, [a]))
  expect(await ask(port)).toBe('a')
  await follow(relay(port, [b]))
  expect(await ask(port)).toBe('b')
  expect(relays.listeners).toEqual({ IPv4: 1, IPv6: 0 })
  await follow()
  expect(relays.listeners).toEqual({ IPv4: 0, IPv6: 0 })
  expect(await fate(rig.client(port))).toBe('ECONNREFUSED')
})

it('F99: serves the rest while another process has a port, says so once, and gets the port when it is free', async () => {
  const { relays, clock, events, follow } = relaysWith()
  const [taken = 0, free = 0] = await freePorts(2)
  const other = createServer().listen(taken, '127.0.0.1')
  await once(other, 'listening')
  closers.push(() => other.close())
  const [a, b] = [await server('a'), await server('b')]
  await follow(relay(taken, [a], 'ns/a'), relay(free, [b], 'ns/b'))
  expect(await ask(free)).toBe('b')
  expect(relays.listeners.IPv4).toBe(1)
  expect(relays.failures).toEqual({ IPv4: 1, IPv6: 0 })
  const error = `cannot listen on 127.0.0.1:${taken}: EADDRINUSE`
  expect(events).toMatchObject([
    { kind: 'notice', level: 'warn', facts: { servicePort: 'ns/a', protocol: 'TCP', listeners: 1, error } },
  ])
  await clock.advance(5_000)
  await until(() => relays.failures.IPv4 === 2)
  expect(events).toHaveLength(1)
  await new Promise(resolve => other.close(resolve))
  await settle()
  await clock.advance(5_000)
  await until(() => relays.listeners.IPv4 === 2)
  expect(await ask(taken)).toBe('a')
  await until(() => events.length === 2)
  expect(events[1]).toMatchObject({ level: 'info', text: 'node ports are served at localhost again' })
  expect(clock.pending).toBe(0)
})

it('frees the port of a Service that goes before another opens it, in one commit', async () => {
  const { relays, events, follow } = relaysWith()
  const [port = 0] = await freePorts(1)
  const [a, b] = [await server('a'), await server('b')]
  await follow(relay(port, [a], 'ns/a'))
  await follow(relay(port, [b], 'ns/b'))
  expect(await ask(port)).toBe('b')
  expect([relays.failures.IPv4, events]).toEqual([0, []])
})

it('F140: lets the Service with most listeners give way beyond the limit, whether or not it came first', async () => {
  const { relays, events, follow } = relaysWith({ listeners: 2 })
  const ports = await freePorts(3)
  const endpoint = await server('a')
  const greedy = ports.slice(0, 2).map(port => relay(port, [endpoint], 'ns/greedy'))
  await follow(...greedy)
  expect(relays.listeners.IPv4).toBe(2)
  const small = relay(ports[2] ?? 0, [endpoint], 'other/small')
  await follow(...greedy, small)
  expect(await ask(ports[2] ?? 0)).toBe('a')
  expect(await fate(rig.client(ports[0] ?? 0))).toBe('ECONNREFUSED')
  expect(relays.listeners.IPv4).toBe(1)
  expect(events).toMatchObject([
    {
      level: 'warn',
      facts: { servicePort: 'ns/greedy', listeners: 2, error: expect.stringMatching(/^no free listener/) },
    },
  ])
})

it('closes its ports at once when it ends, and leaves connections to themselves', async () => {
  const { relays, follow } = relaysWith()
  const [port = 0] = await freePorts(1)
  const endpoint = await rig.server(socket => void socket.pipe(socket))
  await follow(relay(port, [endpoint]))
  const client = rig.client(port)
  client.write('one')
  expect(String((await once(client, 'data'))[0])).toBe('one')
  await relays.close()
  expect(await fate(rig.client(port))).toBe('ECONNREFUSED')
  client.write('two')
  expect(String((await once(client, 'data'))[0])).toBe('two')
  await follow(relay(port, [endpoint]))
  expect(await fate(rig.client(port))).toBe('ECONNREFUSED')
})
