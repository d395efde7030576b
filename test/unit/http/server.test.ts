import { afterEach, describe, expect, it } from 'vitest'
import { HttpServer, type HttpServerOptions, type ServerNews } from '../../../src/http/server.ts'
import { ip } from '../../support/addresses.ts'
import { refusing } from '../../support/dead-socket.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { HAS_IPV6 } from '../../support/loopback.ts'
import { eventually } from '../../support/patience.ts'
import { ask, closed, connected, LOOPBACK, occupy, portOf } from '../telemetry/http-client.ts'

const servers: HttpServer[] = []

afterEach(() => {
  for (const server of servers.splice(0)) server.close()
})

function open(options: Partial<HttpServerOptions> = {}) {
  const news: ServerNews[] = []
  const clock = new FakeClock()
  const server = new HttpServer({
    at: { ip: LOOPBACK, port: 0 },
    clock,
    hardFail: false,
    connectionsMax: 100,
    handle: () => ({ status: 200, headers: {}, body: 'here' }),
    report: its => news.push(its),
    ...options,
  })
  servers.push(server)
  const kinds = () => news.map(({ kind }) => kind)
  return { server, clock, news, kinds }
}

describe('HttpServer', () => {
  it('listens at one address, and says where', async () => {
    const { server, news } = open()
    await eventually(() => news.length === 1)
    expect(news).toEqual([{ kind: 'listening', address: server.addresses[0] }])
    expect(await ask({ port: portOf(server.addresses[0]) })).toMatchObject({ status: 200, body: 'here' })
  })

  it.runIf(HAS_IPV6).each(['0.0.0.0', '::'])(
    'listens in both families at %s, where the node has both',
    async address => {
      const { server } = open({ at: { ip: ip(address), port: 0 } })
      await eventually(() => server.addresses.length === 2)
      const port = portOf(server.addresses[0])
      expect([...server.addresses].sort()).toEqual([`0.0.0.0:${port}`, `[::]:${port}`])
      expect(await ask({ port })).toMatchObject({ body: 'here' })
      expect(await ask({ port, host: '::1' })).toMatchObject({ body: 'here' })
    },
  )

  it('F99: retries every 5 s where another process listens, and reports it once', async () => {
    const other = await occupy()
    const { server, clock, news, kinds } = open({ at: { ip: LOOPBACK, port: other.port } })
    await eventually(() => news.length === 1)
    expect(news[0]).toMatchObject({
      kind: 'failed',
      address: `127.0.0.1:${other.port}`,
      error: { code: 'EADDRINUSE' },
      retryMs: 5_000,
    })
    for (let round = 0; round < 3; round++) {
      await clock.advance(5_000)
      await eventually(() => clock.pending === 1)
    }
    expect(kinds()).toEqual(['failed'])
    await other.leave()
    await clock.advance(5_000)
    await eventually(() => server.addresses.length === 1)
    expect(kinds()).toEqual(['failed', 'listening'])
    expect(await ask({ port: other.port })).toMatchObject({ body: 'here' })
  })

  it('does not try again when a failure is to be the end', async () => {
    const other = await occupy()
    const { clock, news } = open({ at: { ip: LOOPBACK, port: other.port }, hardFail: true })
    await eventually(() => news.length === 1)
    expect(news[0]).toMatchObject({ kind: 'failed', retryMs: undefined })
    expect(clock.pending).toBe(0)
    await other.leave()
  })

  it('says that an address is not one of this node', async () => {
    const { news } = open({ at: { ip: ip('192.0.2.1'), port: 0 } })
    await eventually(() => news.length === 1)
    expect(news[0]).toMatchObject({ kind: 'failed', error: { code: 'EADDRNOTAVAIL' } })
  })

  it('ends idle connections and frees its address when it closes', async () => {
    const { server } = open()
    await eventually(() => server.addresses.length === 1)
    const port = portOf(server.addresses[0])
    const idle = await connected(port)
    const gone = closed(idle)
    server.close()
    await gone
    await refusing({ host: '127.0.0.1', port })
    const other = await occupy(port)
    await other.leave()
  })

  it('stops trying when it closes', async () => {
    const other = await occupy()
    const { server, clock, news } = open({ at: { ip: LOOPBACK, port: other.port } })
    await eventually(() => news.length === 1)
    server.close()
    expect(clock.pending).toBe(0)
    await other.leave()
  })
})
