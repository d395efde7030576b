import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { createServer as createStreamServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { failureText } from '../../../src/base/errors.ts'
import { askDaemon, serviceNamesReader, socketError } from '../../../src/inspect/admin-client.ts'

const folder = mkdtempSync(join(tmpdir(), 'kprobe-admin-'))
const socket = join(folder, 'admin.sock')
const LONG = JSON.stringify('x'.repeat(17 * 1024 * 1024))
const server = createServer(({ url }, response) => {
  if (url === '/cut')
    return response.writeHead(200, { 'Content-Length': 9 }).write('{', () => response.destroy())
  if (url !== '/slow') return response.end(LONG)
  const drip = setInterval(() => response.write(' '), 5)
  response.on('close', () => clearInterval(drip))
})

beforeAll(() => new Promise<void>(listening => server.listen(socket, listening)))
afterAll(() => {
  server.closeAllConnections()
  server.close()
  rmSync(folder, { recursive: true })
})

it('reads long answers where there are any, and not at the pages of a few numbers', async () => {
  expect(await askDaemon(socket, '/services')).toHaveLength(17 * 1024 * 1024)
  for (const path of ['/config', '/status'])
    await expect(askDaemon(socket, path)).rejects.toThrow(`${socket}: the answer to ${path} is too long`)
})

it('ends an answer that comes octet by octet', async () => {
  await expect(askDaemon(socket, '/slow', { answerMs: 100 })).rejects.toThrow(
    `${socket}: the answer to /slow is not complete after 0.1 s`,
  )
})

it('names the remedy for the socket of another user', () => {
  const denied = Object.assign(new Error(`connect EACCES ${socket}`), { code: 'EACCES' })
  expect(socketError(denied, socket, '/config').message).toBe(
    `${socket}: permission denied: run the command as root (sudo kprobe ...)`,
  )
})

it('names the socket of another program', async () => {
  const other = join(folder, 'other.sock')
  const stranger = createStreamServer(client => client.end('no HTTP'))
  await new Promise<void>(listening => stranger.listen(other, listening))
  const failure: unknown = await askDaemon(other, '/config').catch((error: unknown) => error)
  expect(failureText(failure)).toMatch(`${other}: /config: Parse Error`)
  stranger.close()
  await expect(askDaemon(socket, '/cut')).rejects.toThrow(`${socket}: the answer to /cut is not complete`)
  await expect(serviceNamesReader(socket)()).rejects.toThrow(`${socket}: /state has no list of services`)
})

it('reads names anew once the daemon has synced, and keeps them while it is away', async () => {
  const path = join(folder, 'names.sock')
  let service = 'shop/cart'
  let synced = 1
  let states = 0
  const port = () => ({
    name: `${service}:http`,
    protocol: 'TCP',
    frontends: [{ ip: '10.96.0.1', port: 80 }],
  })
  const begin = async () => {
    const daemon = createServer(({ url }, response) => {
      if (url === '/state') states++
      const services = url === '/state' ? [{ service, ports: [port()] }] : undefined
      response.end(JSON.stringify({ synced, services }))
    })
    await new Promise<void>(listening => daemon.listen(path, listening))
    return () => new Promise(closed => daemon.close(closed))
  }
  const read = serviceNamesReader(path)
  await expect(read()).rejects.toThrow(`no daemon answers at ${path}`)
  const end = await begin()
  const nameNow = async () => (await read())?.at('TCP', '\n\x60\0\x01', 80)
  expect(await nameNow()).toBe('shop/cart:http')
  expect(await nameNow()).toBe('shop/cart:http')
  expect(states).toBe(1)
  service = 'shop/mail'
  synced++
  expect(await nameNow()).toBe('shop/mail:http')
  await end()
  expect(await nameNow()).toBe('shop/mail:http')
  // Another daemon has synced as often.
  service = 'shop/post'
  const endNext = await begin()
  expect(await nameNow()).toBe('shop/post:http')
  await endNext()
})
