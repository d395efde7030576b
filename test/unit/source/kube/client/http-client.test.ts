import { describe, expect, it } from 'vitest'
import { CANARY, get, loopback, textOf } from './loopback.ts'

const rig = loopback()

describe.each(['h2', 'http/1.1'] as const)('the client over %s', protocol => {
  it('sends a request with its credentials and reads the response', async () => {
    const seen: unknown[] = []
    const server = await rig().serve({
      protocol,
      handler: (request, response) => {
        seen.push(request.method, request.url, request.headers.authorization, request.headers.accept)
        seen.push(request.headers['accept-encoding'], request.httpVersion)
        response.setHeader('Content-Type', 'application/JSON; stream=watch')
        response.setHeader('Retry-After', '7')
        response.end('hello')
      },
    })
    const client = await rig().openTo(server)
    const response = await client.send(get('/api/v1/services?limit=500'))
    expect(await textOf(response)).toBe('hello')
    expect(response).toMatchObject({
      status: 200,
      contentType: 'application/json;stream=watch',
      retryAfterMs: 7000,
    })
    const version = protocol === 'h2' ? '2.0' : '1.1'
    const asked = ['GET', '/api/v1/services?limit=500', `Bearer ${CANARY}`, 'application/json']
    expect(seen).toEqual([...asked, undefined, version])
  })
})
