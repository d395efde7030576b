import { constants, createGzip, gzipSync } from 'node:zlib'
import { describe, expect, it } from 'vitest'
import { failureOf, get, getText, type Handler, loopback, textOf } from './loopback.ts'

const rig = loopback()

async function answeredBy(handler: Handler, protocol: 'h2' | 'http/1.1' = 'h2') {
  return (await rig().opened(protocol, handler)).client
}

function serving(body: Buffer, encoding = 'gzip') {
  return answeredBy((_, response) => response.writeHead(200, { 'content-encoding': encoding }).end(body))
}

const TEXT = JSON.stringify(Array.from({ length: 20_000 }, (_, at) => ({ name: `service-${at}` })))

describe('F24: a compressed response', () => {
  it('is requested and inflated', async () => {
    const client = await answeredBy(({ headers }, response) => {
      const coding = String(headers['accept-encoding'])
      response.writeHead(200, { 'content-encoding': coding }).end(gzipSync(TEXT))
    })
    expect(await getText(client, '/')).toBe(TEXT)
  })

  it.each(['GZIP', 'x-gzip'])('may name the encoding %s', async encoding => {
    expect(await getText(await serving(gzipSync(TEXT), encoding), '/')).toBe(TEXT)
  })

  it.each(['identity', ''])('may not be compressed after all (%s)', async encoding => {
    expect(await getText(await serving(Buffer.from(TEXT), encoding), '/')).toBe(TEXT)
  })

  it('arrives piece by piece', async () => {
    const gzip = createGzip()
    const client = await answeredBy((_, response) => {
      response.writeHead(200, { 'content-encoding': 'gzip' })
      gzip.pipe(response)
      gzip.write('one')
      gzip.flush(constants.Z_SYNC_FLUSH)
    })
    for await (const piece of (await client.send(get('/', { longLived: true }))).body) {
      expect(Buffer.from(piece).toString()).toBe('one')
      break
    }
  })

  it.each(['h2', 'http/1.1'] as const)('may begin a member with each event, over %s', async protocol => {
    const events = ['one', 'two', 'three', TEXT]
    const wholes = events.map((_, at) => events.slice(0, at + 1).join(''))
    let sendNext: () => void = () => undefined
    const client = await answeredBy((_, response) => {
      response.writeHead(200, { 'content-encoding': 'gzip' })
      const rest = events.map(event => gzipSync(event))
      sendNext = () => {
        const member = rest.shift()
        if (member === undefined) response.end()
        else response.write(member)
      }
      sendNext()
    }, protocol)
    let text = ''
    for await (const piece of (await client.send(get('/', { longLived: true }))).body) {
      text += Buffer.from(piece).toString()
      if (wholes.includes(text)) sendNext()
    }
    expect(text).toBe(events.join(''))
  })

  it.each([0, 1])(
    'is passed on as a whole when it arrives in one read, after %i that came before',
    async early => {
      const events = Array.from({ length: 30 }, (_, at) => TEXT.slice(at * 4_000, (at + 1) * 4_000))
      let send: (events: readonly string[]) => Promise<unknown> = () => Promise.resolve()
      const client = await answeredBy(({ url }, response) => {
        response.writeHead(200, { 'content-encoding': 'gzip' })
        if (url !== '/') return response.end(gzipSync('another'))
        response.flushHeaders()
        const sent = (event: string) => new Promise(resolve => response.write(gzipSync(event), resolve))
        send = these => Promise.all(these.map(sent))
      })
      const { body } = await client.send(get('/', { longLived: true }))
      await send(events.slice(0, early))
      // What another request gets behind it on the connection has passed zlib's thread behind it, too.
      expect(await getText(client, '/another')).toBe('another')
      body.hold?.()
      await send(events.slice(early))
      await body.resume?.()
      const pieces: Uint8Array[] = []
      for await (const first of body) {
        for (let piece: Uint8Array | undefined = first; piece !== undefined; piece = body.arrived?.())
          pieces.push(piece)
        break
      }
      expect(Buffer.concat(pieces).toString()).toBe(events.join(''))
    },
  )

  it('is passed on while more arrives all the time', async () => {
    let left = 20_000
    let isRead = false
    const client = await answeredBy((_, response) => {
      response.writeHead(200, { 'content-encoding': 'gzip' })
      const member = gzipSync('event')
      const send = (): void => {
        if (isRead || left === 0) return void response.end()
        left--
        response.write(member)
        setImmediate(send)
      }
      send()
    })
    const { body } = await client.send(get('/', { longLived: true }))
    for await (const piece of body) {
      isRead = true
      expect(Buffer.from(piece).toString()).toContain('event')
      break
    }
    expect(left).toBeGreaterThan(0)
  })

  it('may be split anywhere', async () => {
    const bytes = Buffer.concat([gzipSync('first'), gzipSync('second')])
    const client = await answeredBy((_, response) => {
      response.writeHead(200, { 'content-encoding': 'gzip' })
      const send = (at: number): void => {
        if (at === bytes.length) response.end()
        else response.write(bytes.subarray(at, at + 1), () => setImmediate(send, at + 1))
      }
      send(0)
    })
    expect(await getText(client, '/')).toBe('firstsecond')
  })

  const two = Buffer.concat([gzipSync('x'.repeat(10_000)), gzipSync('second')])
  const flipped = Buffer.from(two)
  flipped[two.length - 8] = ~(two[two.length - 8] ?? 0)

  it.each([
    ['cut in a member', 'lost', two.subarray(0, 30)],
    ['cut in the second member', 'lost', two.subarray(0, -3)],
    ['empty', 'lost', Buffer.alloc(0)],
    ['no gzip', 'protocol', Buffer.from('hello hello hello')],
    ['of another checksum', 'protocol', flipped],
  ])('that is %s is %s', async (_, kind, body) => {
    expect(await failureOf(getText(await serving(body), '/'))).toMatchObject({ kind })
  })

  it.each(['h2', 'http/1.1'] as const)('cut between two members is lost, over %s', async protocol => {
    const { client, server } = await rig().opened(protocol, (_, response) => {
      response.writeHead(200, { 'content-encoding': 'gzip' })
      response.write(gzipSync('one'), () => {
        setImmediate(() => {
          for (const socket of server.connections) socket.destroy()
        })
      })
    })
    expect(await failureOf(getText(client, '/'))).toMatchObject({ kind: 'lost' })
  })

  it('in another way than gzip is refused by name', async () => {
    const failure = await failureOf((await serving(Buffer.from('x'), 'br')).send(get('/')).then(textOf))
    expect(failure).toMatchObject({ kind: 'protocol' })
    expect(failure?.message).toContain('the response has the content encoding br; supported: gzip')
  })
})
