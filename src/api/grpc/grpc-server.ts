import { mkdir } from 'node:fs/promises'
import type { Server as NetServer } from 'node:net'
import { type ApiAddress, formatApiAddress, isPrivate, parseApiAddress } from '../../base/api-address.ts'
import { errorOf } from '../../base/errors.ts'
import { formatIp } from '../../base/ip.ts'
import type { OverShare } from '../../base/shares.ts'
import { listenAtUnixSocket } from '../../base/unix-socket.ts'
import { decodeMessage } from '../../wire/protobuf/decoder.ts'
import { list, type MessageOf, message, table, text } from '../../wire/protobuf/table.ts'
import { DESCRIPTORS, health, reflection } from '../schema.ts'
import {
  type ApiTls,
  expiryOf,
  followTls,
  listenerFor,
  plainServer,
  readTls,
  renewTls,
  type TlsPems,
  tlsServer,
} from './http-server.ts'
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
import { RpcServer, type RpcServerOptions } from './rpc-server.ts'

export interface GrpcServerOptions extends Omit<RpcServerOptions, 'http'> {
  /** The name of the server in messages: `the API`. */
  readonly what: string
  /** `unix:///run/kprobe/api.sock`, `tcp://127.0.0.1:12090`; port 0 lets the kernel choose. */
  readonly address: string
  /** Needed at every address that is not loopback, and refused at a unix socket. */
  readonly tls?: ApiTls | undefined
}

export interface GrpcServer {
  /** The given address, with the port that the kernel chose. */
  readonly address: string
  readonly counts: RpcServer['counts']
  readonly overShare: OverShare
  /** Expiry of the present certificate, milliseconds since 1970; undefined without one. */
  readonly expiresMs: number | undefined
  /** Ends every call with UNAVAILABLE, at the latest after 2 s; removes the socket file. Idempotent. */
  close(): Promise<void>
}

/** Thousands of nodes come at once after a restart; one whose SYN is dropped comes a second later. */
const BACKLOG = 4_096

/**
 * Serves these methods at the address. Rejects with an Error that names the address when kprobe cannot listen there, or when
 * it needs certificates that were not given.
 */
export async function startGrpcServer(options: GrpcServerOptions): Promise<GrpcServer> {
  const address = parseApiAddress(options.address)
  checkTls(address, options.tls)
  const { http, stopRenewing, expiresMs } = await httpServer(options)
  const rpc = new RpcServer({ ...options, http })
  const listener = listenerFor(socket => rpc.take(socket))
  let removeFile: () => Promise<void>
  try {
    removeFile = await listen(listener, address)
  } catch (thrown) {
    stopRenewing()
    throw new Error(`cannot serve ${options.what} at ${options.address}: ${errorOf(thrown).message}`)
  }
  listener.on('error', options.failed)
  let closing: Promise<void> | undefined
  return {
    address: formatApiAddress(withPort(address, listener)),
    get counts() {
      return rpc.counts
    },
    get overShare() {
      return rpc.overShare
    },
    get expiresMs() {
      return expiresMs()
    },
    close() {
      stopRenewing()
      closing ??= closeAll(rpc, listener, removeFile)
      return closing
    },
  }
}

function checkTls(address: ApiAddress, tls: ApiTls | undefined): void {
  const place = formatApiAddress(address)
  if (tls !== undefined && address.kind === 'unix')
    throw new Error(
      `a unix socket has no TLS: omit --api-tls-cert, --api-tls-key and --api-tls-client-ca for ${place}`,
    )
  if (tls === undefined && !isPrivate(address))
    throw new Error(
      `${place} needs TLS: give --api-tls-cert, --api-tls-key and --api-tls-client-ca; ` +
        'without TLS the API listens at a unix socket or at loopback only',
    )
}

async function httpServer({ clock, failed, tls }: GrpcServerOptions) {
  const nothing = () => undefined
  if (tls === undefined) return { http: plainServer(), stopRenewing: nothing, expiresMs: nothing }
  const pems = await readTls(tls)
  const http = tlsServer(pems, undefined, tls)
  let expiresMs = expiryOf(pems)
  const changed = (now: TlsPems): void => {
    renewTls(http, now)
    expiresMs = expiryOf(now)
  }
  const stopRenewing = followTls(tls, { clock, pems, changed, failed })
  return { http, stopRenewing, expiresMs: () => expiresMs }
}

/** The result removes the file of a unix socket. */
async function listen(server: NetServer, address: ApiAddress): Promise<() => Promise<void>> {
  if (address.kind === 'unix') {
    await makeFolder(address.path.slice(0, address.path.lastIndexOf('/')))
    return listenAtUnixSocket(server, address.path)
  }
  const { ip, port } = address
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    const at = { host: formatIp(ip), port, ipv6Only: ip.length === 16, exclusive: true, backlog: BACKLOG }
    server.listen(at, () => {
      server.off('error', reject)
      resolve(async () => undefined)
    })
  })
}

/** The last one of a path alone: what is in /run is gone after each start of the machine. */
async function makeFolder(path: string): Promise<void> {
  if (path === '') return
  await mkdir(path, { mode: 0o755 }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error
  })
}

function withPort(address: ApiAddress, server: NetServer): ApiAddress {
  const bound = server.address()
  return address.kind === 'tcp' && typeof bound === 'object' && bound !== null
    ? { ...address, port: bound.port }
    : address
}

async function closeAll(rpc: RpcServer, listener: NetServer, removeFile: () => Promise<void>): Promise<void> {
  // The file is removed first: its inode number is certainly ours while the socket exists, and the next process may listen.
  try {
    await removeFile()
  } finally {
    listener.close()
    await rpc.close()
  }
}

const { HealthCheckRequest, HealthCheckResponse } = health
const { SERVING, NOT_SERVING, SERVICE_UNKNOWN } = health.ServingStatus

/** `grpc.health.v1.Health`: everything is served once there is a state. */
export class GrpcHealth {
  readonly #services: ReadonlySet<string>
  readonly #watchers = new Set<() => void>()
  #isServing = false

  /** The whole server is asked for as ''. */
  constructor(services: readonly string[]) {
    this.#services = new Set(['', ...services])
  }

  set isServing(value: boolean) {
    if (this.#isServing === value) return
    this.#isServing = value
    for (const publish of this.#watchers) publish()
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

  /** Sends the status whenever it changed: a change that was undone before the client has read is none. */
  readonly watch = (call: Call): CallHandler => {
    let service: string | undefined
    let sent: number | undefined
    let isFull = false
    const publish = (): void => {
      if (service === undefined || isFull) return
      const status = this.#statusOf(service)
      if (status !== sent) isFull = !call.write(framed(HealthCheckResponse, { status }))
      sent = status
    }
    this.#watchers.add(publish)
    return {
      message(bytes) {
        service ??= decodeMessage(HealthCheckRequest, bytes).service ?? ''
        publish()
      },
      // A client that sends nothing more still gets answers until it ends the call.
      ended: () => undefined,
      drained() {
        isFull = false
        publish()
      },
      closed: () => this.#watchers.delete(publish),
    }
  }

  #statusOf(service: string): number {
    if (!this.#services.has(service)) return SERVICE_UNKNOWN
    return this.#isServing ? SERVING : NOT_SERVING
  }
}

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
