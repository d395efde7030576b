import { readFile } from 'node:fs/promises'
import { describe, expect, it } from 'vitest'
import { FakeClock } from '../../../../support/fake-clock.ts'
import { failureOf, get, getText, type Handler, loopback, pause, textOf, until } from './loopback.ts'

const rig = loopback()

/** A plain server that answers each request with these bytes. */
async function raw(bytes: string, after: 'end' | 'destroy' | 'nothing' = 'nothing') {
  const { port } = await rig().listen(socket => {
    socket.on('error', () => undefined)
    socket.on('data', () => {
      socket.write(bytes, () => {
        if (after === 'end') socket.end()
        if (after === 'destroy') socket.destroy()
      })
    })
  })
  return rig().open({ master: `http://127.0.0.1:${port}` })
}

describe('over HTTP/1.1', () => {
  it('a body that is cut is lost, by its chunks or by its length', async () => {
    const chunked = await raw(
      'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n',
      'destroy',
    )
    expect(await failureOf(getText(chunked, '/'))).toMatchObject({ kind: 'lost' })
    const counted = await raw('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello', 'end')
    expect(await failureOf(getText(counted, '/'))).toMatchObject({ kind: 'lost' })
  })

  it('an end before the head is lost, and what is not HTTP says so', async () => {
    expect(await failureOf(getText(await raw('', 'end'), '/'))).toMatchObject({ kind: 'lost' })
    expect(await failureOf(getText(await raw('SSH-2.0-x\r\n'), '/'))).toMatchObject({ kind: 'protocol' })
    const upgrade = 'HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n'
    expect(await failureOf(getText(await raw(upgrade), '/'))).toMatchObject({ kind: 'protocol' })
  })

  it('requests at the same time take a connection each, which closes with the response', async () => {
    const waiting: (() => void)[] = []
    const { client, server } = await rig().opened('http/1.1', (_, response) => {
      waiting.push(() => response.end('ok'))
    })
    const sent = [1, 2, 3].map(() => getText(client, '/'))
    await until(() => waiting.length === 3)
    expect(server.accepted).toBe(3)
    for (const answer of waiting) answer()
    expect(await Promise.all(sent)).toEqual(['ok', 'ok', 'ok'])
    await until(() => server.connections.size === 0, 'the end of the connections')
  })

  it('A15: the kernel asks a silent peer after 30 s', async () => {
    const { client, server } = await rig().opened('http/1.1', (_, response) => response.write('x'))
    await client.send(get('/', { longLived: true }))
    const rows = (await readFile('/proc/self/net/tcp', 'utf8'))
      .split('\n')
      .map(row => row.trim().split(/\s+/))
    const remote = `0100007F:${server.port.toString(16).toUpperCase().padStart(4, '0')}`
    const [row] = rows.filter(each => each[2] === remote)
    // `tr tm->when`: 02 is the keep-alive timer, and the time left is in hundredths of a second.
    const [kind, left] = row?.[5]?.split(':') ?? []
    expect(kind).toBe('02')
    expect(Number.parseInt(left ?? '', 16)).toBeGreaterThan(2000)
    expect(Number.parseInt(left ?? '', 16)).toBeLessThanOrEqual(3000)
  })

  it('A15: a watch may be silent for as long as it was asked to last, and idleMs more', async () => {
    const clock = new FakeClock()
    const writing: Handler = (_, response) => response.write('x')
    const { client } = await rig().opened('http/1.1', writing, { clock })
    const watch = await client.send(get('/w?watch=1&timeoutSeconds=300', { longLived: true, idleMs: 10_000 }))
    const failure = failureOf(textOf(watch))
    let failed = false
    void failure.then(() => {
      failed = true
    })
    await pause(20)
    await clock.advance(309_000)
    expect(failed).toBe(false)
    await clock.advance(1000)
    expect(await failure).toMatchObject({ kind: 'silent' })
  })

  it('speaks with a plain server, as kubectl proxy is', async () => {
    const server = await rig().serve({ protocol: 'plain', handler: (_, response) => response.end('ok') })
    const client = await rig().open({ master: server.url })
    expect(await getText(client, '/')).toBe('ok')
    expect(rig().warnings).toEqual([])
  })
})
