import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import type { ConntrackClient } from '../../src/kernel/conntrack/client.ts'
import { drawsToMeet } from '../support/draws.ts'
import { NODE, openTransport, VIP, World } from '../support/flows-world.ts'
import { startServers } from '../support/lab/traffic.ts'
import { endpoint, serviceOf, sliceOf } from '../support/objects.ts'
import { eventually, within } from '../support/patience.ts'
import { entry, entryText, inject } from '../unit/kernel/conntrack/flows.ts'

const NODE_PORT = 30053

function dns(spec: object = {}, annotations: object = {}): object {
  const ports = [{ name: 'dns', port: 53, protocol: 'UDP' }]
  return serviceOf(
    'dns',
    VIP,
    { ports, ...spec },
    { metadata: { namespace: 'ns1', name: 'dns', annotations } },
  )
}

interface EndpointWords {
  readonly [address: string]: object
}

const READY = { ready: true, serving: true, terminating: false }
const TERMINATING = { ready: false, serving: false, terminating: true }

function slice(
  endpoints: EndpointWords,
  port: object = { name: 'dns', port: 5353, protocol: 'UDP' },
): object {
  const list = Object.entries(endpoints).map(([address, conditions]) => endpoint(address, conditions))
  return sliceOf('ns1/dns', list, { name: 'dns-a', ports: [port] })
}

const [A, B] = ['10.180.0.1', '10.180.0.2']
const [AT_A, AT_B] = [`pods ${A}:5353`, `pods ${B}:5353`]

let world: World

beforeEach(async () => {
  world = await World.open()
})

afterEach(async () => {
  await world.close()
})

describe('a sender that never stops, from one port', () => {
  it('F71 is sent to the endpoint that replaced its own', async () => {
    await world.program([dns(), slice({ [A]: READY })])
    await world.reaches(AT_A)
    await world.program([slice({ [B]: READY })])
    await world.reaches(AT_B)
    expect(await world.udp()).toHaveLength(1)
  })

  it('F72 is refused while there is no endpoint, and served again when there is one', async () => {
    await world.program([dns(), slice({ [A]: READY })])
    await world.reaches(AT_A)
    await world.program([slice({})])
    await world.reaches('refused')
    expect(await world.udp()).toEqual([])
    await world.program([slice({ [B]: READY })])
    await world.reaches(AT_B)
  })

  it('F73 is served once there are endpoints, though it began before there was a Service', async () => {
    await world.program([])
    await world.reaches(`outside ${VIP}:53`, { from: 'pod', source: '10.180.0.77' })
    expect(await world.udp()).toHaveLength(1)
    await world.program([dns(), slice({ [A]: READY })])
    await world.reaches(AT_A, { from: 'pod', source: '10.180.0.77' })
  })

  it('keeps its endpoint while that serves, whatever policies, readiness and other endpoints do', async () => {
    await world.program([dns(), slice({ [A]: READY })])
    await world.reaches(AT_A)
    await world.program([slice({ [A]: READY, [B]: READY })])
    await world.program([slice({ [A]: { ready: false, serving: true, terminating: true }, [B]: READY })])
    await world.program([dns({ internalTrafficPolicy: 'Local' })])
    await pause(300)
    expect(await world.send()).toBe(AT_A)
    expect(world.deleted()).toBe(0)
  })
})

it('F74 ten restarts under steady senders delete nothing and move nobody', async () => {
  await world.program([dns(), slice({ [A]: READY, [B]: READY })])
  // So many that both endpoints have some.
  const senders = Array.from({ length: drawsToMeet(2) }, (_, n) => ({ sourcePort: 5000 + n }))
  const before = []
  for (const sender of senders) before.push(await world.send(sender))
  expect(new Set(before)).toEqual(new Set([AT_A, AT_B]))
  for (let restart = 0; restart < 10; restart++) await world.restart()
  const after = []
  for (const sender of senders) after.push(await world.send(sender))
  expect(after).toEqual(before)
  expect(world.deleted()).toBe(0)
})

it('F75 flows that are not ours stay: of the node itself, and to the number of a NodePort elsewhere', async () => {
  const foreign = [
    entry(`192.168.0.9:40000`, `${NODE}:8472`),
    entry(`192.168.0.9:500`, `${NODE}:500`),
    entry(`192.168.0.9:4500`, `${NODE}:4500`),
    entry(`10.180.0.9:40001`, `198.51.100.7:${NODE_PORT}`),
    entry(`10.180.0.9:40002`, `192.168.0.77:${NODE_PORT}`, '10.180.9.9:5353'),
    entry(`203.0.113.9:40003`, `192.168.1.2:${NODE_PORT}`, '10.180.9.9:5353'),
    entry(`10.180.0.9:40004`, `172.30.0.99:53`, '10.180.9.9:5353'),
    entry(`10.180.0.9:40005`, `${VIP}:54`, '10.180.9.9:5353'),
    entry(`10.180.0.9:40006`, `${VIP}:53`, '10.180.9.9:5353', { protocol: 'TCP' }),
  ]
  const stale = entry('10.180.0.9:40007', `${VIP}:53`, '10.180.9.9:5353')
  const injector = openTransport()
  expect(inject(injector, [...foreign, stale])).toBe(foreign.length + 1)
  await injector.close()
  const before = (await world.client.statistics()).entries
  const nodePort = { name: 'dns', port: 53, protocol: 'UDP', nodePort: NODE_PORT }
  await world.program([dns({ type: 'NodePort', ports: [nodePort] }), slice({ [A]: READY })])
  await world.looked()
  await world.program([slice({ [B]: READY })])
  await world.looked()
  expect(world.deleted()).toBe(1)
  expect((await world.client.statistics()).entries).toBe(before - 1)
  expect(await world.udp()).not.toContain(entryText(stale))
})

it('F78 a cleanup that is not allowed is tried again until it is, and rules do not wait for it', async () => {
  let refusing = true
  const limited: ConntrackClient = {
    dump: (filter, visitor) => world.client.dump(filter, visitor),
    delete: flows =>
      refusing ? Promise.reject(new Error('delete flows: EPERM')) : world.client.delete(flows),
    statistics: () => world.client.statistics(),
    close: () => world.client.close(),
  }
  await world.program([dns(), slice({ [A]: READY })])
  await world.restart(limited)
  await world.reaches(AT_A)
  await world.program([slice({ [B]: READY })])
  await eventually(() => world.events.filter(({ kind }) => kind === 'failed').length >= 2)
  expect(await world.send()).toBe(AT_A)
  expect(await world.send({ sourcePort: 4999 })).toBe(AT_B)
  refusing = false
  await world.reaches(AT_B)
})

it('F82 what changed while nobody looked is put right at once', async () => {
  await world.program([dns(), slice({ [A]: READY })])
  await world.reaches(AT_A)
  for (const address of ['10.180.1.1', '10.180.1.2', B])
    await world.program([slice({ [address]: READY })], [], false)
  expect(await world.send()).toBe(AT_A)
  world.offer()
  await world.reaches(AT_B)
})

it('F82 a new process removes what was left by changes that no process saw', async () => {
  await world.program([dns(), slice({ [A]: READY })])
  await world.reaches(AT_A)
  await world.program([slice({ [B]: READY })], [], false)
  await world.restart()
  await world.reaches(AT_B)
})

it('an SCTP client that begins anew from its port reaches another endpoint when its own has gone', async () => {
  const port = { name: 'sig', port: 38412, protocol: 'SCTP' }
  const service = dns({ ports: [port] })
  await world.program([service, slice({ [A]: READY, [B]: READY }, port)])
  const established = [A, B].map((address, index) =>
    entry(`203.0.113.5:${5000 + index}`, `${VIP}:38412`, `${address}:38412`, {
      protocol: 'SCTP',
      isDnat: true,
    }),
  )
  const transport = openTransport()
  onTestFinished(() => transport.close())
  expect(inject(transport, established)).toBe(2)
  const init = { protocol: 'SCTP', port: 38412 } as const
  await world.reaches(`pods ${A}:38412`, { ...init, sourcePort: 5000 })
  await world.program([slice({ [B]: READY }, port)])
  await world.reaches(`pods ${B}:38412`, { ...init, sourcePort: 5000 })
  await world.reaches(`pods ${B}:38412`, { ...init, sourcePort: 5001 })
  expect(world.deleted()).toBe(1)
})

describe('an established TCP connection', () => {
  const WEB = { name: 'web', port: 80, protocol: 'TCP' }
  const web = (annotations: object = {}) => dns({ ports: [WEB] }, annotations)
  const webSlice = (endpoints: EndpointWords) =>
    slice(endpoints, { name: 'web', port: 8080, protocol: 'TCP' })

  /** A server in the pods' namespace that says everything back, at every address. */
  async function echo(): Promise<void> {
    const servers = await startServers(world.topology, [`${A}:8081`, `${B}:8081`])
    const script = `require('net').createServer(s => { s.on('error', () => {}); s.pipe(s) }).listen(8080, '0.0.0.0', () => console.log('ready'))`
    const pid = String(world.topology.pods.pid)
    const child: ChildProcess = spawn('nsenter', ['-t', pid, '-n', process.execPath, '-e', script])
    onTestFinished(async () => {
      const ended = once(child, 'close')
      child.kill()
      await ended
      await servers.close()
    })
    if (child.stdout !== null) await once(child.stdout, 'data')
  }

  async function open(where = { host: VIP, port: 80 }): Promise<Socket> {
    const socket = connect({ ...where, localAddress: NODE })
    onTestFinished(() => {
      socket.destroy()
    })
    await once(socket, 'connect')
    return socket
  }

  /** What comes back for a word: the word, or the error's code. */
  async function said(socket: Socket, word: string): Promise<string> {
    const answer = new Promise<string>(resolve => {
      socket.once('data', data => resolve(String(data)))
      socket.once('error', error => resolve('code' in error ? String(error.code) : error.message))
    })
    socket.write(word)
    return await within(answer, `an answer to ${word}`)
  }

  it('F79 goes on to a pod that terminates, and to one that has left its slice', async () => {
    await echo()
    await world.program([web(), webSlice({ [A]: READY })])
    const socket = await open()
    expect(await said(socket, 'one')).toBe('one')
    await world.program([webSlice({ [A]: TERMINATING, [B]: READY })])
    await pause(300)
    expect(await said(socket, 'two')).toBe('two')
    await world.program([webSlice({ [B]: READY })])
    await pause(300)
    expect(await said(socket, 'three')).toBe('three')
  })

  it('is cut at once when its pod has gone and the Service says so, but not while the pod terminates', async () => {
    await echo()
    await world.program([web({ 'kprobe.io/tcp-drain': 'cut' }), webSlice({ [A]: READY })])
    const socket = await open()
    await world.program([webSlice({ [A]: TERMINATING, [B]: READY })])
    await pause(300)
    expect(await said(socket, 'one')).toBe('one')
    await world.program([webSlice({ [B]: READY })])
    await eventually(() => world.events.some(event => event.kind === 'reconciled' && event.cut === 1))
    expect(await said(socket, 'two')).toBe('ECONNRESET')
  })

  it('F218 is cut at a node port, and not at a ClusterIP whose port has the number of that node port', async () => {
    await world.close()
    world = await World.open({ nodePortAddresses: ['0.0.0.0/0'] })
    await echo()
    const ports = [{ ...WEB, nodePort: NODE_PORT }]
    const drain = { 'kprobe.io/tcp-drain': 'cut' }
    const host = '172.30.0.99'
    const metadata = { namespace: 'ns1', name: 'other' }
    const other = serviceOf('other', host, { ports: [{ ...WEB, port: NODE_PORT }] }, { metadata })
    const its = { name: 'other-a', ports: [{ ...WEB, port: 8080 }] }
    const otherSlice = sliceOf('ns1/other', [endpoint(A, READY)], its)
    await world.program([other, otherSlice, dns({ type: 'NodePort', ports }, drain)])
    await world.program([webSlice({ [A]: READY })])
    const [cut, kept] = [await open({ host: NODE, port: NODE_PORT }), await open({ host, port: NODE_PORT })]
    expect([await said(cut, 'one'), await said(kept, 'one')]).toEqual(['one', 'one'])
    await world.program([webSlice({ [B]: READY })])
    await eventually(() => world.events.some(event => event.kind === 'reconciled' && event.cut === 1))
    expect([await said(cut, 'two'), await said(kept, 'two')]).toEqual(['ECONNRESET', 'two'])
  })
})
