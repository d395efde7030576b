import { once } from 'node:events'
import { createServer } from 'node:net'
import { afterEach, expect, it } from 'vitest'
import { PersistentMap } from '../../../../src/base/collections.ts'
import type { Backend } from '../../../../src/model/frontend.ts'
import { DEFAULT_LIMITS, type ForwarderLimits } from '../../../../src/modes/common/forwarder/context.ts'
import { diffForwarders, type Forwarder } from '../../../../src/modes/common/forwarder/forwarder.ts'
import type { ModeEvent } from '../../../../src/modes/mode.ts'
import { LocalhostForwarders } from '../../../../src/modes/nftables/localhost.ts'
import { FakeClock, settle } from '../../../support/fake-clock.ts'
import { freePorts } from '../../../support/reference/ports.ts'
import { ForwarderRig, fate, LOOPBACK, readAll, until } from '../common/forwarder/rig.ts'

/* KEP-6032: the listeners of node ports at localhost, with real sockets. */

const rig = new ForwarderRig()
const closers: (() => void)[] = []
afterEach(() => {
  for (const close of closers.splice(0)) close()
  rig.close()
})

function forwardersWith(limits: Partial<ForwarderLimits> = {}) {
  const clock = new FakeClock()
  const events: ModeEvent[] = []
  const forwarders = new LocalhostForwarders({
    clock,
    limits: { ...DEFAULT_LIMITS, ...limits },
    report: event => events.push(event),
  })
  forwarders.start()
  closers.push(() => forwarders.destroy())
  const follow = async (...wanted: readonly Forwarder[]) => {
    const map = PersistentMap.from(wanted.map(forwarder => [forwarder.key, forwarder] as const))
    await forwarders.apply(diffForwarders(forwarders.wanted, map), map)
  }
  return { forwarders, clock, events, follow }
}

function forwarder(port: number, cluster: readonly Backend[], service = 'ns/web'): Forwarder {
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
  const { forwarders, follow } = forwardersWith()
  const [port = 0] = await freePorts(1)
  const [a, b] = [await server('a'), await server('b')]
  await follow(forwarder(port, [a]))
  expect(await ask(port)).toBe('a')
  await follow(forwarder(port, [b]))
  expect(await ask(port)).toBe('b')
  expect(forwarders.listeners).toEqual({ IPv4: 1, IPv6: 0 })
  await follow()
  expect(forwarders.listeners).toEqual({ IPv4: 0, IPv6: 0 })
  expect(await fate(rig.client(port))).toBe('ECONNREFUSED')
})

it('F99: serves the rest while another process has a port, says so once, and gets the port when it is free', async () => {
  const { forwarders, clock, events, follow } = forwardersWith()
  const [taken = 0, free = 0] = await freePorts(2)
  const other = createServer().listen(taken, '127.0.0.1')
  await once(other, 'listening')
  closers.push(() => other.close())
  const [a, b] = [await server('a'), await server('b')]
  await follow(forwarder(taken, [a], 'ns/a'), forwarder(free, [b], 'ns/b'))
  expect(await ask(free)).toBe('b')
  expect(forwarders.listeners.IPv4).toBe(1)
  expect(forwarders.failures).toEqual({ IPv4: 1, IPv6: 0 })
  const error = `cannot listen on 127.0.0.1:${taken}: EADDRINUSE`
  expect(events).toMatchObject([
    { kind: 'notice', level: 'warn', facts: { servicePort: 'ns/a', protocol: 'TCP', listeners: 1, error } },
  ])
  await clock.advance(5_000)
  await until(() => forwarders.failures.IPv4 === 2)
  expect(events).toHaveLength(1)
  await new Promise(resolve => other.close(resolve))
  await settle()
  await clock.advance(5_000)
  await until(() => forwarders.listeners.IPv4 === 2)
  expect(await ask(taken)).toBe('a')
  await until(() => events.length === 2)
  expect(events[1]).toMatchObject({ level: 'info', text: 'node ports are served at localhost again' })
  expect(clock.pending).toBe(0)
})

it('frees the port of a Service that goes before another opens it, in one commit', async () => {
  const { forwarders, events, follow } = forwardersWith()
  const [port = 0] = await freePorts(1)
  const [a, b] = [await server('a'), await server('b')]
  await follow(forwarder(port, [a], 'ns/a'))
  await follow(forwarder(port, [b], 'ns/b'))
  expect(await ask(port)).toBe('b')
  expect([forwarders.failures.IPv4, events]).toEqual([0, []])
})

it('F140: lets the Service with most listeners give way beyond the limit, whether or not it came first', async () => {
  const { forwarders, events, follow } = forwardersWith({ listeners: 2 })
  const ports = await freePorts(3)
  const endpoint = await server('a')
  const greedy = ports.slice(0, 2).map(port => forwarder(port, [endpoint], 'ns/greedy'))
  await follow(...greedy)
  expect(forwarders.listeners.IPv4).toBe(2)
  const small = forwarder(ports[2] ?? 0, [endpoint], 'other/small')
  await follow(...greedy, small)
  expect(await ask(ports[2] ?? 0)).toBe('a')
  expect(await fate(rig.client(ports[0] ?? 0))).toBe('ECONNREFUSED')
  expect(forwarders.listeners.IPv4).toBe(1)
  expect(events).toMatchObject([
    {
      level: 'warn',
      facts: { servicePort: 'ns/greedy', listeners: 2, error: expect.stringMatching(/^no free listener/) },
    },
  ])
})

it('closes its ports at once when it ends, and leaves connections to themselves', async () => {
  const { forwarders, follow } = forwardersWith()
  const [port = 0] = await freePorts(1)
  const endpoint = await rig.server(socket => void socket.pipe(socket))
  await follow(forwarder(port, [endpoint]))
  const client = rig.client(port)
  client.write('one')
  expect(String((await once(client, 'data'))[0])).toBe('one')
  await forwarders.close()
  expect(await fate(rig.client(port))).toBe('ECONNREFUSED')
  client.write('two')
  expect(String((await once(client, 'data'))[0])).toBe('two')
  await follow(forwarder(port, [endpoint]))
  expect(await fate(rig.client(port))).toBe('ECONNREFUSED')
})
