import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { IpvsClient } from '../../../../src/kernel/ipvs/client.ts'
import { SystemError } from '../../../../src/netlink/transport.ts'
import { FakeIpvs, type FakeIpvsOptions, serverIn } from '../../../support/fake-ipvs/kernel.ts'
import { FaultyTransport, messagesIn } from '../../../support/faulty-transport.ts'
import {
  changeServer,
  deleteServer,
  newDestination,
  newServer,
  real,
  virtual,
} from '../../../support/ipvs-objects.ts'

const A = virtual('10.96.0.1', 443)
const POD = real('10.0.0.1', 8080)
const NLM_F_ACK = 4

function start(options: FakeIpvsOptions = {}) {
  const kernel = new FakeIpvs(options)
  const transport = new FaultyTransport(kernel.open())
  const sent: Uint8Array[] = []
  transport.faults.onSend = datagram => {
    sent.push(datagram.slice())
    return datagram
  }
  return { kernel, transport, client: new IpvsClient({ transport, clock: systemClock }), sent }
}

describe('a commit', () => {
  it('goes in one datagram, of which the last message alone is acknowledged', async () => {
    const { client, sent } = start()
    const result = await client.commit([
      newServer(A),
      newDestination(A, POD),
      newDestination(A, real('10.0.0.2', 1)),
    ])
    const [, datagram = new Uint8Array()] = sent
    expect(messagesIn(datagram).map(({ flags }) => flags & NLM_F_ACK)).toEqual([0, 0, NLM_F_ACK])
    expect(result).toEqual({ unknown: undefined, failures: [], bytes: datagram.length, messages: 3 })
    expect(sent).toHaveLength(2)
  })

  it('looks for the family in each conversation', async () => {
    const { client, sent } = start()
    await client.commit([newServer(A)])
    await client.commit([deleteServer(A)])
    await client.servers()
    expect(sent.map(datagram => messagesIn(datagram)[0]?.type)).toEqual([0x10, 0x1c, 0x10, 0x1c, 0x10, 0x1c])
  })

  it('of nothing sends nothing', async () => {
    const { client, sent } = start()
    expect(await client.commit([])).toEqual({ unknown: undefined, failures: [], bytes: 0, messages: 0 })
    expect(sent).toEqual([])
  })

  it('without the capability fails for each operation, with the reason', async () => {
    const { client } = start({ isPrivileged: false })
    const { failures, unknown } = await client.commit([newServer(A), newDestination(A, POD)])
    expect(failures.map(({ code }) => code)).toEqual(['EPERM', 'EPERM'])
    expect(failures[0]?.error.message).toContain('IPVS needs CAP_NET_ADMIN in the first user namespace')
    expect(unknown).toBeUndefined()
  })
})

describe('a commit whose answers are lost', () => {
  it('is unknown, and done as far as the kernel took it', async () => {
    const { client, transport, kernel } = start()
    let answers = 0
    transport.faults.onReceive = datagram => (++answers > 1 ? undefined : datagram)
    const { unknown } = await client.commit([changeServer(A), newServer(virtual('10.96.0.2', 80))])
    expect(unknown?.message).toContain('reply was lost')
    expect([...kernel.servers.values()].map(({ port }) => port)).toEqual([80])
  })
})

describe('a send that fails', () => {
  it('fails for all that was not sent: a datagram has 1,000 messages at most', async () => {
    const { client, transport, kernel } = start()
    let sends = 0
    transport.faults.onSend = datagram => {
      if (++sends > 2) throw new SystemError('sendmsg', 90, 'EMSGSIZE')
      return datagram
    }
    const servers = Array.from({ length: 1_002 }, (_, port) => virtual('10.96.0.1', port))
    const { failures, unknown, messages } = await client.commit(servers.map(newServer))
    expect(failures.map(({ operation, code }) => [operation.server.port, code])).toEqual([
      [1_000, 'EMSGSIZE'],
      [1_001, 'EMSGSIZE'],
    ])
    expect([unknown, messages, kernel.servers.size]).toEqual([undefined, 1_000, 1_000])
  })
})

describe('a kernel without IPVS', () => {
  it('has no servers, is told otherwise, and asked again the next time', async () => {
    const { client, kernel } = start()
    kernel.unload()
    const words =
      'find generic netlink family IPVS: ENOENT (No such file or directory): the kernel has no IPVS'
    expect(() => client.info()).toThrow(words)
    await expect(client.commit([newServer(A)])).rejects.toThrow(words)
    expect(await client.servers()).toEqual([])
    kernel.load()
    expect(client.info().version).toBe('1.2.1')
  })

  it('that loses it under a commit is told', async () => {
    const { client, kernel } = start()
    client.info()
    kernel.unload()
    await expect(client.commit([newServer(A)])).rejects.toThrow('the kernel has no IPVS')
  })

  it('that gets it anew is spoken to by its new number', async () => {
    const { client, kernel } = start()
    const reload = (): void => {
      kernel.unload()
      kernel.load()
    }
    client.info()
    reload()
    expect(client.timeouts().tcpS).toBe(900)
    reload()
    expect(await client.servers()).toEqual([])
    reload()
    expect(await client.destinations([A])).toEqual([[]])
    reload()
    expect(await client.commit([newServer(A), newDestination(A, POD)])).toMatchObject({ failures: [] })
    expect(kernel.servers.size).toBe(1)
  })
})

describe('what is read', () => {
  it('has the statistics and connections of real servers', async () => {
    const { client, kernel } = start()
    await client.commit([newServer(A), newDestination(A, POD)])
    const stats = { connections: 1n << 40n, packetsIn: 2n, packetsOut: 3n, bytesIn: 4n, bytesOut: 5n }
    for (const destination of serverIn(kernel, A).destinations.values())
      Object.assign(destination, { stats, activeConnections: 7, inactiveConnections: 8 })
    expect(await client.destinations([A])).toEqual([
      [{ destination: POD, stats, activeConnections: 7, inactiveConnections: 8 }],
    ])
  })
})
