import { createConnection, type Socket } from 'node:net'
import { formatIp } from '../../../base/ip.ts'
import type { Backend } from '../../../model/frontend.ts'
import { endpointText, type ListName } from './balancer.ts'
import { OWN_ERRORS, type RelayContext, type RelayPort, reportUnreached } from './context.ts'

export const KEEP_ALIVE_MS = 60_000

interface FlowOptions {
  readonly context: RelayContext
  readonly port: RelayPort
  readonly list: ListName
  readonly ended: (flow: TcpFlow) => void
}

/**
 * Relays one connection of a client to a connection to an endpoint. It reads nothing from the client before
 * an endpoint has accepted. It reads each side only as fast as the other side accepts data. The end of a
 * stream and a reset are passed on as such.
 */
export class TcpFlow {
  readonly #options: FlowOptions
  readonly #client: Socket
  readonly #address: string
  readonly #tried = new Set<string>()
  /** The tried endpoints that did not answer in time. They may answer within a longer timeout. */
  readonly #silent = new Set<string>()
  #attempts = 0
  #upstream: Socket | undefined
  #isRef = true
  /** The number of open sockets. */
  #open = 1

  constructor(client: Socket, options: FlowOptions) {
    this.#client = client
    this.#options = options
    this.#address = client.remoteAddress ?? ''
    client.on('error', () => this.#upstream?.resetAndDestroy())
    client.once('close', () => this.#closed())
    this.#dial()
  }

  destroy(): void {
    this.#client.resetAndDestroy()
    this.#upstream?.resetAndDestroy()
  }

  unref(): void {
    this.#isRef = false
    this.#client.unref()
    this.#upstream?.unref()
  }

  #dial(): void {
    const { context, port, list } = this.#options
    const { connectTimeoutsMs } = context.limits
    const timeoutMs = connectTimeoutsMs[this.#attempts++]
    const client = { address: this.#address, nowMs: context.clock.nowMs() }
    const next = () => port.balancer.pick(list, client, one => this.#isUsable(one))
    const backend = timeoutMs === undefined ? undefined : (next() ?? (this.#forgive() ? next() : undefined))
    if (timeoutMs === undefined || backend === undefined) this.#client.resetAndDestroy()
    else this.#connect(backend, timeoutMs)
  }

  /** Makes the silent endpoints usable again, because no other endpoint is left. */
  #forgive(): boolean {
    for (const endpoint of this.#silent) this.#tried.delete(endpoint)
    const isAny = this.#silent.size > 0
    this.#silent.clear()
    return isAny
  }

  #isUsable(backend: Backend): boolean {
    return !this.#tried.has(endpointText(backend)) && !this.#options.context.isCaptured(backend, 'TCP')
  }

  #connect(backend: Backend, timeoutMs: number): void {
    const { clock, own } = this.#options.context
    const endpoint = endpointText(backend)
    this.#tried.add(endpoint)
    const upstream = createConnection({
      host: formatIp(backend.ip),
      port: backend.port,
      allowHalfOpen: true,
      noDelay: true,
      keepAlive: true,
      keepAliveInitialDelay: KEEP_ALIVE_MS,
    })
    if (!this.#isRef) upstream.unref()
    this.#upstream = upstream
    this.#open++
    const cancel = clock.after(timeoutMs, () => {
      this.#silent.add(endpoint)
      upstream.destroy(new Error(`no answer in ${timeoutMs} ms`))
    })
    let isOver = false
    const failed = (error: NodeJS.ErrnoException) => {
      cancel()
      if (isOver) return
      isOver = true
      this.#failed(endpoint, error)
    }
    let disown: (() => void) | undefined
    const announce = () => {
      const { localAddress: address, localPort: port } = upstream
      if (address === undefined || port === undefined || disown !== undefined) return
      disown = own.add('TCP', { address, port }, closed => {
        this.#silent.add(endpoint)
        upstream.once('close', closed).resetAndDestroy()
      })
    }
    // The socket connects in the next tick. Every listener receives the connection later than that.
    process.nextTick(announce)
    upstream.once('error', failed)
    upstream.once('connect', () => {
      cancel()
      announce()
      // By then a listener of this process has received the connection, and would have closed it through
      // `own`.
      void clock
        .breathe()
        .then(clock.breathe)
        .then(() => {
          disown?.()
          if (upstream.destroyed) return
          isOver = true
          upstream.off('error', failed)
          this.#relay(upstream)
        })
    })
    upstream.once('close', () => {
      disown?.()
      failed(new Error('given up'))
      this.#closed()
    })
  }

  #failed(endpoint: string, error: NodeJS.ErrnoException): void {
    const { context, port } = this.#options
    if (this.#client.destroyed) return
    port.balancer.forget(this.#address, endpoint)
    reportUnreached(context, port, { endpoint, error })
    if (OWN_ERRORS.has(error.code ?? '')) this.#client.resetAndDestroy()
    else this.#dial()
  }

  #relay(upstream: Socket): void {
    const client = this.#client
    upstream.on('error', () => client.resetAndDestroy())
    if (client.destroyed) {
      upstream.resetAndDestroy()
      return
    }
    client.pipe(upstream)
    upstream.pipe(client)
  }

  /** Ends the flow when all sockets are closed. The client's is open as long as another endpoint may be tried. */
  #closed(): void {
    if (--this.#open === 0) this.#options.ended(this)
  }
}
