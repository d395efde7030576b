import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { within } from '../patience.ts'
import { dial, endWord, type RelayEnd } from './relay-ends.ts'

/** A bundle of this file lies elsewhere: whoever runs one names the checkout. */
const ROOT = process.env.KPROBE_ROOT ?? fileURLToPath(new URL('../../..', import.meta.url))
const HALF = join(ROOT, 'test/support/reference/relay-half.mjs')

/** What happens to connections through a relay; everything is passed on at once while this is empty. */
interface RelayFaults {
  /** Nobody gets through: connections are reset as they come. */
  readonly refuse?: boolean
  /** Bytes are kept, in both directions, until this is lifted; connections are accepted. */
  readonly stall?: boolean
  /** From the server: so many bytes over all connections from now on, then the connection is cut. */
  readonly truncateAfterBytes?: number
}

interface RelayOptions {
  readonly listen: RelayEnd
  readonly dial: RelayEnd
}

/**
 * A way to a server that can be cut, stalled and truncated, and that counts bytes. It listens where this
 * process is when it starts; a network namespace has no way to a server on the machine's loopback address, and a unix
 * socket is the way through: see openOutlet and openInlet.
 */
export class Forwarder {
  readonly #server: Server
  readonly #dial: RelayEnd
  readonly #connections = new Set<Connection>()
  #faults: RelayFaults = {}
  #truncateLeft = Number.POSITIVE_INFINITY
  #received = 0

  private constructor(server: Server, target: RelayEnd) {
    this.#server = server
    this.#dial = target
  }

  static async start({ listen, dial }: RelayOptions): Promise<Forwarder> {
    const server = createServer({ noDelay: true, allowHalfOpen: true })
    const relay = new Forwarder(server, dial)
    server.on('connection', near => relay.#accept(near))
    server.listen('port' in listen ? { port: listen.port, host: '127.0.0.1' } : listen)
    await once(server, 'listening')
    return relay
  }

  /** Of the loopback address; 0 with a unix socket. */
  get port(): number {
    const address = this.#server.address()
    return typeof address === 'object' && address !== null ? address.port : 0
  }

  /** Bytes from the server since the start, as on the wire. */
  get receivedBytes(): number {
    return this.#received
  }

  get connections(): number {
    return this.#connections.size
  }

  setFaults(faults: RelayFaults): void {
    this.#faults = faults
    this.#truncateLeft = faults.truncateAfterBytes ?? Number.POSITIVE_INFINITY
    for (const connection of this.#connections) connection.setStalled(faults.stall === true)
  }

  /** Resets all connections there are. */
  cut(): void {
    for (const connection of this.#connections) connection.reset()
  }

  async close(): Promise<void> {
    this.cut()
    const closed = once(this.#server, 'close')
    this.#server.close()
    await closed
  }

  #accept(near: Socket): void {
    if (this.#faults.refuse === true) {
      resetSocket(near)
      return
    }
    const connection = new Connection(near, dial(this.#dial), {
      passes: (direction, bytes) => this.#count(direction, bytes),
      ended: () => this.#connections.delete(connection),
    })
    this.#connections.add(connection)
    connection.setStalled(this.#faults.stall === true)
  }

  /** How many of these bytes go through before the cut. */
  #count(direction: Direction, bytes: number): number {
    if (direction === 'up') return bytes
    const passed = Math.min(bytes, this.#truncateLeft)
    this.#truncateLeft -= passed
    this.#received += passed
    return passed
  }
}

type Direction = 'up' | 'down'

interface ConnectionHooks {
  passes(direction: Direction, bytes: number): number
  ended(): void
}

class Connection {
  readonly #near: Socket
  readonly #far: Socket
  readonly #hooks: ConnectionHooks
  #stalled = false

  constructor(near: Socket, far: Socket, hooks: ConnectionHooks) {
    this.#near = near
    this.#far = far
    this.#hooks = hooks
    far.setNoDelay(true)
    this.#pass('up', near, far)
    this.#pass('down', far, near)
    for (const socket of [near, far]) {
      // Whatever became of one side is told to the other.
      socket.on('error', () => this.reset())
      socket.on('close', () => this.#closed())
    }
  }

  setStalled(stalled: boolean): void {
    this.#stalled = stalled
    for (const socket of [this.#near, this.#far]) stalled ? socket.pause() : socket.resume()
  }

  reset(): void {
    for (const socket of [this.#near, this.#far]) resetSocket(socket)
  }

  #closed(): void {
    const sockets = [this.#near, this.#far]
    for (const socket of sockets) if (!socket.destroyed) socket.destroySoon()
    // Octets that the other side does not take keep its socket open: only a cut ends it then.
    if (sockets.every(socket => socket.closed)) this.#hooks.ended()
  }

  #pass(direction: Direction, from: Socket, to: Socket): void {
    from.on('data', (chunk: Buffer) => {
      const passed = this.#hooks.passes(direction, chunk.length)
      if (!to.write(chunk.subarray(0, passed))) this.#waitFor(to, from)
      if (passed < chunk.length) this.reset()
    })
    from.on('end', () => to.end())
  }

  #waitFor(to: Socket, from: Socket): void {
    from.pause()
    to.once('drain', () => {
      if (!this.#stalled) from.resume()
    })
  }
}

/** Only TCP knows a reset. */
function resetSocket(socket: Socket): void {
  if (socket.destroyed) return
  if (socket.address() !== undefined && 'port' in socket.address()) socket.resetAndDestroy()
  else socket.destroy()
}

/** A relay half that runs as a process of its own. */
export interface RelayHalf {
  readonly pid: number
  close(): Promise<void>
}

/** Passes connections on from where this process is now, whichever namespace the process moves to later. */
export function openOutlet(ways: readonly RelayOptions[]): Promise<RelayHalf> {
  return startHalf([], ways)
}

/** Listens in the network namespace of the process `pid`. */
export function openInlet(pid: number, way: RelayOptions): Promise<RelayHalf> {
  return startHalf(['nsenter', '-t', String(pid), '-n'], [way])
}

async function startHalf(wrapper: readonly string[], ways: readonly RelayOptions[]): Promise<RelayHalf> {
  const words = ways.flatMap(({ listen, dial }) => [endWord(listen), endWord(dial)])
  const [file = process.execPath, ...args] = [...wrapper, process.execPath, HALF, ...words]
  const child = spawn(file, args, { stdio: ['pipe', 'pipe', 'inherit'] })
  await within(Promise.race([once(child.stdout, 'data'), failed(child)]), 'the relay half listens')
  return { pid: child.pid ?? -1, close: () => end(child) }
}

async function failed(child: ChildProcess): Promise<void> {
  const [code] = await once(child, 'close')
  if (code !== 0) throw new Error(`the relay half ended with ${code}`)
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const closed = once(child, 'close')
  child.stdin?.end()
  await within(closed, 'the relay half ends')
}
