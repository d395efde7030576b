import { request } from 'node:http'
import { createConnection, createServer, type Socket } from 'node:net'
import { ip } from '../../support/addresses.ts'
import { refusing } from '../../support/dead-socket.ts'
import { freePorts } from '../../support/reference/ports.ts'

export interface Answer {
  readonly status: number
  readonly headers: Readonly<Record<string, unknown>>
  readonly body: string
}

export interface Asking {
  readonly method?: string
  readonly path?: string
  readonly host?: string
  readonly port?: number
  /** The client's address. */
  readonly localAddress?: string
  readonly socketPath?: string
  readonly headers?: Readonly<Record<string, string>>
}

/** One request on a connection of its own. */
export function ask(asking: Asking): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const { host = '127.0.0.1', ...rest } = asking
    const sent = request(
      { ...rest, ...(rest.socketPath === undefined ? { host } : {}), agent: false },
      response => {
        let body = ''
        response.setEncoding('utf8')
        response.on('data', piece => {
          body += piece
        })
        response.on('end', () =>
          resolve({ status: response.statusCode ?? 0, headers: response.headers, body }),
        )
        response.on('error', reject)
      },
    )
    sent.on('error', reject)
    sent.end()
  })
}

/** Sends bytes as they are and gives everything until the other side ends the connection. */
export function exchange(port: number, text: string): Promise<string> {
  return new Promise(resolve => {
    let received = ''
    const socket = createConnection({ host: '127.0.0.1', port }, () => socket.write(text))
    socket.setEncoding('latin1')
    socket.on('data', piece => {
      received += piece
    })
    // A reset is an end like any other here.
    socket.on('error', () => undefined)
    socket.on('close', () => resolve(received))
  })
}

export function connected(port: number): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = createConnection({ host: '127.0.0.1', port }, () => resolve(socket))
    socket.on('error', reject)
  })
}

export function closed(socket: Socket): Promise<void> {
  return new Promise(resolve => {
    socket.on('error', () => undefined)
    if (socket.destroyed) resolve()
    socket.once('close', () => resolve())
    socket.resume()
  })
}

/** Somebody else who listens there; 0 is a port that the kernel chooses. */
export function occupy(port = 0): Promise<{ readonly port: number; readonly leave: () => Promise<void> }> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.once('error', reject)
    server.listen({ host: '127.0.0.1', port }, () => {
      const address = server.address()
      const chosen = typeof address === 'object' && address !== null ? address.port : 0
      const leave = async () => {
        await new Promise(done => server.close(done))
        await refusing({ host: '127.0.0.1', port: chosen })
      }
      resolve({ port: chosen, leave })
    })
  })
}

/** A port that was free a moment ago. */
export async function freePort(): Promise<number> {
  const [port = 0] = await freePorts(1)
  return port
}

export const LOOPBACK = ip('127.0.0.1')

export function portOf(place: string | undefined): number {
  return Number(place?.slice(place.lastIndexOf(':') + 1))
}
