import { once } from 'node:events'
import { createConnection, createServer, type Server, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { eventually } from '../../../support/patience.ts'
import { Forwarder } from '../../../support/reference/relay.ts'

let server: Server
let serverPort: number
let relay: Forwarder
const clients: Socket[] = []

beforeEach(async () => {
  server = createServer(socket => socket.on('error', () => socket.destroy()).pipe(socket))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  serverPort = typeof address === 'object' && address !== null ? address.port : 0
  relay = await Forwarder.start({ listen: { port: 0 }, dial: { port: serverPort } })
})

afterEach(async () => {
  for (const client of clients.splice(0)) client.destroy()
  await relay.close()
  server.close()
})

interface Client {
  readonly socket: Socket
  received: string
  readonly closed: Promise<void>
}

function connect(port = relay.port): Client {
  const socket = createConnection(port, '127.0.0.1')
  clients.push(socket)
  const closed = new Promise<void>(resolve => socket.on('close', () => resolve()))
  const client: Client = { socket, received: '', closed }
  socket.on('error', () => socket.destroy())
  socket.on('data', chunk => {
    client.received += chunk
  })
  return client
}

test('a stall keeps bytes until it is lifted', async () => {
  const client = connect()
  client.socket.write('a')
  await eventually(() => client.received === 'a')
  relay.setFaults({ stall: true })
  client.socket.write('b')
  await sleep(50)
  expect(client.received).toBe('a')
  relay.setFaults({})
  await eventually(() => client.received === 'ab')
})

test('a truncation passes so many bytes of the server on, and cuts', async () => {
  relay.setFaults({ truncateAfterBytes: 3 })
  const client = connect()
  client.socket.write('12345')
  await client.closed
  expect(relay.receivedBytes).toBe(3)
  expect('123'.startsWith(client.received)).toBe(true)
})

test('refused connections end at once', async () => {
  relay.setFaults({ refuse: true })
  const client = connect()
  client.socket.write('x')
  await client.closed
  expect(client.received).toBe('')
})
