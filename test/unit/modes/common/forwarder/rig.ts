import { once } from 'node:events'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { systemClock } from '../../../../../src/base/clock.ts'
import { type Ip, parseIp } from '../../../../../src/base/ip.ts'
import type { Backend } from '../../../../../src/model/frontend.ts'
import {
  DEFAULT_LIMITS,
  type ForwarderContext,
  type ForwarderLimits,
  type ForwarderPort,
  forwarderContext,
  type Listener,
  ReportLimit,
} from '../../../../../src/modes/common/forwarder/context.ts'
import { Balancer } from '../../../../../src/modes/common/forwarder/forwarder.ts'
import { openTcpListener } from '../../../../../src/modes/common/forwarder/tcp.ts'
import { openUdpListener } from '../../../../../src/modes/common/forwarder/udp.ts'
import type { ModeEvent } from '../../../../../src/modes/mode.ts'
import { eventually } from '../../../../support/patience.ts'
import { freePorts } from '../../../../support/reference/ports.ts'

export const LOOPBACK: Ip = parseIp('127.0.0.1') ?? ''

/** Relays of a test, all on loopback. */
export class ForwarderRig {
  readonly events: ModeEvent[] = []
  readonly context: ForwarderContext
  readonly #closers: (() => void)[] = []

  constructor(limits: Partial<ForwarderLimits> = {}) {
    const all = { ...DEFAULT_LIMITS, ...limits }
    const report = (event: ModeEvent) => void this.events.push(event)
    this.context = forwarderContext({ clock: systemClock, limits: all, isCaptured: () => false, report })
  }

  port(cluster: readonly Backend[], affinityTimeoutS = 0): ForwarderPort {
    const balance = { cluster, local: [], affinityTimeoutS }
    return {
      key: 'ns/web:/TCP/IPv4',
      balancer: new Balancer(balance, this.context.limits.affinityClients),
      holder: { name: 'ns/web', held: 0 },
      reports: new ReportLimit(this.context.clock),
    }
  }

  /** With its door open. */
  tcp(port: ForwarderPort, context: Partial<ForwarderContext> = {}): Promise<Listener> {
    return this.#opened(openTcpListener, port, context)
  }

  udp(port: ForwarderPort, context: Partial<ForwarderContext> = {}): Promise<Listener> {
    return this.#opened(openUdpListener, port, context)
  }

  async #opened(
    open: typeof openTcpListener | typeof openUdpListener,
    port: ForwarderPort,
    more: Partial<ForwarderContext>,
  ): Promise<Listener> {
    const context = { ...this.context, ...more }
    const listener = await open(LOOPBACK, { context, port, list: 'cluster', listenPort: 0 })
    listener.setOpen(true)
    this.onClose(() => listener.destroy())
    return listener
  }

  onClose(close: () => void): void {
    this.#closers.push(close)
  }

  /** A TCP server that does as told with each connection. */
  async server(serve: (socket: Socket) => void): Promise<Backend> {
    const sockets = new Set<Socket>()
    const server = createServer({ allowHalfOpen: true }, socket => {
      sockets.add(socket)
      socket.on('error', () => undefined)
      socket.once('close', () => sockets.delete(socket))
      serve(socket)
    })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    this.onClose(() => {
      server.close()
      for (const socket of sockets) socket.destroy()
    })
    return { ip: LOOPBACK, port: portOf(server), local: false }
  }

  client(port: number): Socket {
    const socket = connect({ host: '127.0.0.1', port, allowHalfOpen: true })
    socket.on('error', () => undefined)
    this.onClose(() => socket.destroy())
    return socket
  }

  close(): void {
    for (const close of this.#closers) close()
  }
}

export function portOf(server: Server): number {
  const address = server.address()
  if (address === null || typeof address !== 'object') throw new Error('a server without a port')
  return address.port
}

/** An endpoint that refuses, another one for each number: a port that systems reserve, which no listener of another test is given. */
export function deadEndpoint(number = 0): Backend {
  return { ip: LOOPBACK, port: 1 + number, local: false }
}

/** A port of loopback that was free a moment ago. */
export async function freePort(): Promise<number> {
  const [port = 0] = await freePorts(1)
  return port
}

/** Everything until the other side ends the stream. */
export async function readAll(socket: Socket): Promise<string> {
  let text = ''
  for await (const chunk of socket) text += String(chunk)
  return text
}

/** How a connection ended: with an error code, or `end`. */
export function fate(socket: Socket): Promise<string> {
  return new Promise(resolve => {
    socket.once('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message))
    socket.once('end', () => resolve('end'))
    socket.resume()
  })
}

/** Until something is so. */
export async function until(what: () => boolean): Promise<void> {
  await eventually(what, { stepMs: 5, describe: () => `${what}` })
}
