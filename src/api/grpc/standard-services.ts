import { decodeMessage } from '../../wire/protobuf/decoder.ts'
import { list, type MessageOf, message, table, text } from '../../wire/protobuf/table.ts'
import { DESCRIPTORS, health, reflection } from '../schema.ts'
import {
  type Call,
  type CallHandler,
  framed,
  NOT_FOUND,
  OK,
  RESOURCE_EXHAUSTED,
  RpcError,
  unary,
} from './rpc.ts'

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

/** What reflection publishes. */
interface Definitions {
  /** Full names: `localv1.Sets`. */
  readonly services: readonly string[]
  /** Encoded google.protobuf.FileDescriptorProto. */
  readonly byFileName: ReadonlyMap<string, Buffer>
  /** Files by the full names of their messages, enums, services and methods, without a leading dot. */
  readonly bySymbol: ReadonlyMap<string, Buffer>
}

const NAMED = list(message(table({ name: [1, text] })))
const SERVICES = list(message(table({ name: [1, text], methods: [2, NAMED] })))
/** The names in a google.protobuf.FileDescriptorProto. */
const FILE = table({
  name: [1, text],
  package: [2, text],
  messages: [4, NAMED],
  enums: [5, NAMED],
  services: [6, SERVICES],
})

export function definitions(): Definitions {
  const services: string[] = []
  const byFileName = new Map<string, Buffer>()
  const bySymbol = new Map<string, Buffer>()
  for (const text of DESCRIPTORS) {
    const encoded = Buffer.from(text, 'base64')
    const file = decodeMessage(FILE, encoded)
    byFileName.set(file.name ?? '', encoded)
    for (const { name } of [...(file.messages ?? []), ...(file.enums ?? [])])
      bySymbol.set(`${file.package}.${name}`, encoded)
    for (const { name, methods = [] } of file.services ?? []) {
      const service = `${file.package}.${name}`
      services.push(service)
      bySymbol.set(service, encoded)
      for (const method of methods) bySymbol.set(`${service}.${method.name}`, encoded)
    }
  }
  return { services, byFileName, bySymbol }
}

/** Requests that wait for a client which does not read. */
const WAITING_MAX = 64

type Request = MessageOf<typeof reflection.ServerReflectionRequest>
type Response = MessageOf<typeof reflection.ServerReflectionResponse>

/** `ServerReflection/ServerReflectionInfo`, which is the same in v1 and v1alpha. */
export function reflectionMethod(its: Definitions): (call: Call) => CallHandler {
  return call => {
    const waiting: Request[] = []
    let isFull = false
    let hasEnded = false
    const answerAll = (): void => {
      for (let request = isFull ? undefined : waiting.shift(); request !== undefined; ) {
        const response = { original_request: request, ...answer(its, request) }
        isFull = !call.write(framed(reflection.ServerReflectionResponse, response))
        request = isFull ? undefined : waiting.shift()
      }
      if (hasEnded && waiting.length === 0) call.end(OK)
    }
    return {
      message(bytes) {
        if (waiting.length >= WAITING_MAX)
          throw new RpcError(RESOURCE_EXHAUSTED, `${WAITING_MAX} requests already wait for answers`)
        waiting.push(decodeMessage(reflection.ServerReflectionRequest, bytes))
        answerAll()
      },
      ended() {
        hasEnded = true
        answerAll()
      },
      drained() {
        isFull = false
        answerAll()
      },
    }
  }
}

function answer(its: Definitions, request: Request): Response {
  const {
    list_services,
    file_by_filename: file,
    file_containing_symbol: symbol,
    all_extension_numbers_of_type: extended,
  } = request
  if (list_services !== undefined)
    return { list_services_response: { service: its.services.map(name => ({ name })) } }
  if (file !== undefined) return fileOr(its.byFileName.get(file), file)
  if (symbol !== undefined) return fileOr(its.bySymbol.get(symbol.replace(/^\./, '')), symbol)
  if (extended !== undefined && its.bySymbol.has(extended.replace(/^\./, '')))
    return { all_extension_numbers_response: { base_type_name: extended } }
  return failure('not found')
}

function fileOr(file: Buffer | undefined, name: string): Response {
  if (file === undefined) return failure(`there is no ${JSON.stringify(name.slice(0, 200))}`)
  return { file_descriptor_response: { file_descriptor_proto: [file] } }
}

function failure(error_message: string): Response {
  return { error_response: { error_code: NOT_FOUND, error_message } }
}
