import { createSocket, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { type Clock, systemClock } from '../../../../../src/base/clock.ts'
import type { Backend } from '../../../../../src/model/frontend.ts'
import { deadEndpoint, ForwarderRig, LOOPBACK, until } from './rig.ts'

let rig: ForwarderRig

function fresh(limits: ConstructorParameters<typeof ForwarderRig>[0] = {}): ForwarderRig {
  rig = new ForwarderRig(limits)
  return rig
}

beforeEach(() => void fresh())

afterEach(async () => {
  rig.close()
  await until(() => rig.context.sessions.held === 0 && rig.context.own.size === 0)
})

async function socket(): Promise<Socket> {
  const made = createSocket('udp4')
  made.bind(0, '127.0.0.1')
  await once(made, 'listening')
  let isOpen = true
  made.once('close', () => {
    isOpen = false
  })
  rig.onClose(() => isOpen && made.close())
  return made
}

/** Answers with its name and what it got. */
async function server(name: string): Promise<Backend & { readonly heard: string[] }> {
  const made = await socket()
  const heard: string[] = []
  made.on('message', (datagram, { port, address }) => {
    heard.push(String(datagram))
    made.send(`${name} ${datagram}`, port, address)
  })
  return { ip: LOOPBACK, port: made.address().port, local: false, heard }
}

async function ask(client: Socket, port: number, text: string): Promise<string> {
  const answer = once(client, 'message')
  client.send(text, port, '127.0.0.1')
  return String((await answer)[0])
}

/** A clock whose timers end when the test says so. */
function handClock() {
  let nowMs = 0
  const timers = new Set<{ readonly atMs: number; readonly run: () => void }>()
  const clock: Clock = {
    ...systemClock,
    nowMs: () => nowMs,
    after(delayMs, run) {
      const timer = { atMs: nowMs + delayMs, run }
      timers.add(timer)
      return () => timers.delete(timer)
    },
  }
  const pass = (ms: number): void => {
    nowMs += ms
    for (const timer of timers) if (timer.atMs <= nowMs && timers.delete(timer)) timer.run()
  }
  return { clock, pass, timers }
}

it('gives each client an endpoint in turn, and keeps it there', async () => {
  const { port } = await rig.udp(rig.port([await server('a'), await server('b')]))
  const [one, two] = [await socket(), await socket()]
  expect(await ask(one, port, '1')).toBe('a 1')
  expect(await ask(two, port, '2')).toBe('b 2')
  expect(await ask(one, port, '3')).toBe('a 3')
  expect(rig.context.sessions.held).toBe(2)
})

it('remembers a client for as long as either side talks', async () => {
  fresh({ udpIdleMs: 30_000 })
  const { clock, pass, timers } = handClock()
  const endpoint = await socket()
  const backend = { ip: LOOPBACK, port: endpoint.address().port, local: false }
  const { port } = await rig.udp(rig.port([backend]), { clock })
  const client = await socket()
  const heard = once(endpoint, 'message')
  client.send('question', port, '127.0.0.1')
  const [, from] = await heard
  pass(20_000)
  const further = once(endpoint, 'message')
  client.send('question', port, '127.0.0.1')
  await further
  pass(20_000)
  expect(rig.context.sessions.held).toBe(1)
  const answer = once(client, 'message')
  endpoint.send('answer', from.port, from.address)
  await answer
  pass(20_000)
  expect(rig.context.sessions.held).toBe(1)
  pass(10_000)
  expect(rig.context.sessions.held).toBe(0)
  expect(timers.size).toBe(0)
})

it('moves a client on when its endpoint is gone, or refuses', async () => {
  const [dead, alive, other] = [deadEndpoint(), await server('alive'), await server('other')]
  const forwarder = rig.port([dead, alive])
  const listener = await rig.udp(forwarder)
  const client = await socket()
  client.send('lost', listener.port, '127.0.0.1')
  await until(() => rig.events.length === 1)
  expect(rig.events).toMatchObject([{ level: 'info', facts: { endpoint: `127.0.0.1:${dead.port}` } }])
  expect(await ask(client, listener.port, '1')).toBe('alive 1')
  forwarder.balancer.update({ affinityTimeoutS: 0, cluster: [other], local: [] })
  listener.changed()
  expect(await ask(client, listener.port, '2')).toBe('other 2')
})

it('keeps a flood of clients within its bound, and serves those who were there', async () => {
  fresh({ sessions: 20 })
  const backend = await server('a')
  const { port } = await rig.udp(rig.port([backend]))
  const first = await socket()
  expect(await ask(first, port, 'first')).toBe('a first')
  for (let count = 0; count < 100; count++) {
    const client = await socket()
    client.send('x', port, '127.0.0.1')
  }
  await until(() => rig.context.sessions.refused === 91)
  expect(rig.context.sessions.held).toBe(10)
  expect(rig.events).toMatchObject([
    {
      text: 'too many relayed UDP clients; datagrams of new ones are dropped',
      facts: { limit: 10, share: 'ns/web' },
    },
  ])
  expect(await ask(first, port, 'again')).toBe('a again')
})

it('keeps no more datagrams than it may for a socket that is not there yet', async () => {
  fresh({ datagramsWaiting: 2 })
  const backend = await server('a')
  const { port } = await rig.udp(rig.port([backend]))
  const client = await socket()
  for (let count = 0; count < 50; count++) client.send(String(count), port, '127.0.0.1')
  await until(() => backend.heard.length >= 2)
  expect(rig.context.sessions.held).toBe(1)
})

it('ends with its Service, and hears nobody behind a closed door', async () => {
  const backend = await server('a')
  const listener = await rig.udp(rig.port([backend]))
  const client = await socket()
  expect(await ask(client, listener.port, '1')).toBe('a 1')
  listener.setOpen(false)
  client.send('2', listener.port, '127.0.0.1')
  await new Promise(resolve => setTimeout(resolve, 30))
  expect(backend.heard).toEqual(['1'])
  listener.close()
  expect(rig.context.sessions.held).toBe(0)
})

it('does not relay to itself', async () => {
  const forwarder = rig.port([])
  const listener = await rig.udp(forwarder)
  const cluster = [{ ip: LOOPBACK, port: listener.port, local: true }]
  forwarder.balancer.update({ affinityTimeoutS: 0, cluster, local: [] })
  const client = await socket()
  client.send('round and round', listener.port, '127.0.0.1')
  await until(() => rig.context.own.loops === 1)
  expect(rig.context.sessions.held).toBe(1)
})
