import { decodeMessage } from '../../wire/protobuf/decoder.ts'
import { framed } from '../frame.ts'
import { health } from '../schema.ts'
import { type Call, type CallHandler, NOT_FOUND, RpcError, unary } from './rpc.ts'

const { HealthCheckRequest, HealthCheckResponse } = health
const { SERVING, NOT_SERVING, SERVICE_UNKNOWN } = health.ServingStatus

/** `grpc.health.v1.Health`: everything is served once there is a state. */
export class GrpcHealth {
  readonly #services: ReadonlySet<string>
  readonly #watchers = new Set<HealthWatcher>()
  #isServing = false

  /** The whole server is asked for as ''. */
  constructor(services: readonly string[]) {
    this.#services = new Set(['', ...services])
  }

  set isServing(value: boolean) {
    if (this.#isServing === value) return
    this.#isServing = value
    for (const watcher of this.#watchers) watcher.publish()
  }

  readonly check: (call: Call) => CallHandler = unary(
    HealthCheckRequest,
    HealthCheckResponse,
    ({ service = '' }) => {
      if (!this.#services.has(service))
        throw new RpcError(NOT_FOUND, `unknown service ${JSON.stringify(service.slice(0, 200))}`)
      return { status: this.#statusOf(service) }
    },
  )

  readonly watch = (call: Call): CallHandler => {
    const watcher = new HealthWatcher(call, service => this.#statusOf(service))
    this.#watchers.add(watcher)
    return {
      message: bytes => watcher.message(bytes),
      // The client has said all; the answers go on until it hangs up.
      ended: () => undefined,
      drained: () => watcher.drained(),
      closed: () => this.#watchers.delete(watcher),
    }
  }

  #statusOf(service: string): number {
    if (!this.#services.has(service)) return SERVICE_UNKNOWN
    return this.#isServing ? SERVING : NOT_SERVING
  }
}

class HealthWatcher {
  readonly #call: Call
  readonly #statusOf: (service: string) => number
  #service: string | undefined
  #sent: number | undefined
  #isFull = false

  constructor(call: Call, statusOf: (service: string) => number) {
    this.#call = call
    this.#statusOf = statusOf
  }

  message(bytes: Buffer): void {
    this.#service ??= decodeMessage(HealthCheckRequest, bytes).service ?? ''
    this.publish()
  }

  drained(): void {
    this.#isFull = false
    this.publish()
  }

  /** Sends the status if it changed: a change that was undone meanwhile is none. */
  publish(): void {
    if (this.#service === undefined || this.#isFull) return
    const status = this.#statusOf(this.#service)
    if (status === this.#sent) return
    this.#sent = status
    this.#isFull = !this.#call.write(framed(HealthCheckResponse, { status }))
  }
}
