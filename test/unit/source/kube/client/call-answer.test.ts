import { gzipSync } from 'node:zlib'
import { describe, expect, it } from 'vitest'
import { IS_QUICK } from '../../../../support/runs.ts'
import { failureOf, get, getText, loopback, textOf } from './loopback.ts'

const rig = loopback()

async function serving(body: Buffer, encoding = 'gzip') {
  const server = await rig().serve({
    protocol: 'h2',
    handler: (_, response) => response.writeHead(200, { 'content-encoding': encoding }).end(body),
  })
  return rig().openTo(server)
}

describe('F24: a compressed response', () => {
  it('is inflated although it was not requested', async () => {
    const text = JSON.stringify(Array.from({ length: 20_000 }, (_, at) => ({ name: `service-${at}` })))
    expect(await getText(await serving(gzipSync(text)), '/')).toBe(text)
  })

  it('arrives piece by piece', async () => {
    const { createGzip, constants } = await import('node:zlib')
    const gzip = createGzip()
    const server = await rig().serve({
      protocol: 'h2',
      handler: (_, response) => {
        response.writeHead(200, { 'content-encoding': 'gzip' })
        gzip.pipe(response)
        gzip.write('one')
        gzip.flush(constants.Z_SYNC_FLUSH)
      },
    })
    const client = await rig().openTo(server)
    for await (const piece of (await client.send(get('/', { longLived: true }))).body) {
      expect(Buffer.from(piece).toString()).toBe('one')
      break
    }
  })

  it.skipIf(IS_QUICK)('that is a bomb is refused before it fills the memory', async () => {
    const client = await serving(gzipSync(Buffer.alloc(96 * 1024 * 1024)))
    const { body } = await client.send(get('/'))
    let received = 0
    const read = async (): Promise<void> => {
      for await (const piece of body) received += piece.length
    }
    expect(await failureOf(read())).toMatchObject({ kind: 'protocol' })
    expect(received).toBeLessThan(80 * 1024 * 1024)
  })

  it('that is cut is lost, and that is none is refused', async () => {
    const whole = gzipSync('x'.repeat(10_000))
    expect(await failureOf(getText(await serving(whole.subarray(0, 30)), '/'))).toMatchObject({
      kind: 'lost',
    })
    const wrong = await failureOf(getText(await serving(Buffer.from('hello hello hello')), '/'))
    expect(wrong).toMatchObject({ kind: 'protocol' })
  })

  it('in another way than gzip is refused', async () => {
    const client = await serving(Buffer.from('x'), 'br')
    const failure = await failureOf(client.send(get('/')).then(textOf))
    expect(failure).toMatchObject({ kind: 'protocol' })
  })
})
