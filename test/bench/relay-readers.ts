import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { gunzipSync } from 'node:zlib'
import { framed } from '../../src/api/grpc/rpc.ts'
import { systemClock } from '../../src/base/clock.ts'
import { discovery } from '../../src/relay/schema.ts'
import { DELTA_METHOD, METADATA } from '../../src/relay/types.ts'
import { decodeMessage } from '../../src/wire/protobuf/decoder.ts'
import { table, text } from '../../src/wire/protobuf/table.ts'
import {
  DATA,
  END_HEADERS,
  frame,
  HEADERS,
  headerBlock,
  PREFACE,
  SETTINGS,
} from '../support/api/grpc-peer.ts'

/*
 * Readers of a relay, many in a process that has to share the machine with the relay: each is a socket and a few numbers. They
 * speak as much HTTP/2 as one call needs, with the windows of a node, and acknowledge as a node does.
 */

export interface ReadersTask {
  /** `settle` is answered when all readers have the newest revision. */
  readonly kind: 'open' | 'settle' | 'report' | 'resume'
  readonly path: string
  readonly typeUrl: string
  readonly readers: number
  /** For `settle`. */
  readonly revision: number
  readonly accepts: 'gzip' | 'identity'
}

export interface ReadersReport {
  /** When the last reader heard of a revision, in milliseconds of the monotonic clock, and how many heard of it. */
  readonly heard: readonly (readonly [revision: number, ms: number, readers: number])[]
  /** Octets of all connections since they were opened, with every header. */
  readonly bytes: number
  /** Processor time of the process since the report before. */
  readonly cpuMs: number
}

const WINDOW = 1024 * 1024
const PING = 6
const WINDOW_UPDATE = 8
const ACK = 1
const FRAME_BYTES = 9
const PREFIX_BYTES = 5
/** Compressed messages of one length are alike for longer than plain ones. */
const HEAD_BYTES = 1_024
const TAIL_BYTES = 64
/** In its order of sending; the resources between are skipped. */
const HEAD = table({ system_version_info: [1, text], nonce: [5, text] })

export function nowMs(): number {
  return Number(process.hrtime.bigint()) / 1e6
}

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  return bytes
}

function greeting(accepts: string): Buffer {
  const headers = headerBlock({
    ':method': 'POST',
    ':scheme': 'http',
    ':path': DELTA_METHOD,
    ':authority': 'localhost',
    'content-type': 'application/grpc',
    te: 'trailers',
    'grpc-accept-encoding': accepts,
  })
  return Buffer.concat([
    Buffer.from(PREFACE),
    frame(SETTINGS, 0, 0, Buffer.concat([Buffer.from([0, 4]), uint32(WINDOW)])),
    frame(WINDOW_UPDATE, 0, 0, uint32(2 ** 30)),
    frame(HEADERS, END_HEADERS, 1, headers),
  ])
}

function request(body: Parameters<typeof framed<typeof discovery.DeltaDiscoveryRequest>>[1]): Buffer {
  return frame(DATA, 0, 1, framed(discovery.DeltaDiscoveryRequest, body))
}

interface Heard {
  readonly revision: number
  readonly acknowledgement: Buffer
}

interface Message {
  /** Its length and its first bytes, and its last ones. */
  readonly head: string
  readonly tail: string
  readonly length: number
  readonly pieces: readonly Buffer[] | undefined
}

interface FrameReaderOptions {
  readonly send: (bytes: Buffer) => void
  /** A message that begins like this was read before: only its end is of interest. */
  readonly isKnown: (head: string) => boolean
  readonly message: (message: Message) => void
}

class Readers {
  readonly #heard = new Map<number, { ms: number; readers: number }>()
  /** What messages say, by their ends: all readers get the same ones. */
  readonly #known = new Map<string, Heard>()
  readonly #heads = new Set<string>()
  /** What one read has brought last, where that was one message: all readers get the same bytes. */
  #last: { readonly bytes: Buffer; readonly heard: Heard } | undefined
  readonly #shared = Buffer.allocUnsafe(64 * 1024)
  #sockets: Socket[] = []
  #newest = 0
  #cpuMs = 0
  bytes = 0

  /** Resolves once each has the whole state, or has resumed. */
  async open({ kind, path, typeUrl, readers, accepts }: ReadersTask): Promise<void> {
    if (kind === 'resume') for (const socket of this.#sockets.splice(0)) socket.destroy()
    if (kind === 'resume') this.bytes = 0
    const fields =
      kind === 'resume' ? [{ key: METADATA.revision, value: { string_value: String(this.#newest) } }] : []
    const hello = Buffer.concat([
      greeting(accepts),
      request({ node: { id: 'reader', metadata: { fields } }, type_url: typeUrl }),
    ])
    await Promise.all(Array.from({ length: readers }, () => this.#one(path, typeUrl, hello)))
  }

  async settle(revision: number): Promise<void> {
    while (this.#heard.get(revision)?.readers !== this.#sockets.length) await sleep(20)
  }

  report(): ReadersReport {
    const heard = [...this.#heard].map(([revision, { ms, readers }]) => [revision, ms, readers] as const)
    this.#heard.clear()
    const before = this.#cpuMs
    this.#cpuMs = systemClock.cpuMs()
    return { heard, bytes: this.bytes, cpuMs: this.#cpuMs - before }
  }

  #one(path: string, typeUrl: string, hello: Buffer): Promise<void> {
    return new Promise((resolve, reject) => {
      let chunk = this.#shared
      const take = (heard: Heard): void => {
        socket.write(heard.acknowledgement)
        if (heard.revision === 0) return
        this.#tick(heard.revision)
        resolve()
      }
      const reader = new FrameReader({
        send: bytes => void socket.write(bytes),
        isKnown: head => this.#heads.has(head),
        message: message => {
          const heard = this.#read(typeUrl, message)
          if (chunk.length === FRAME_BYTES + message.length) this.#last = { bytes: Buffer.from(chunk), heard }
          take(heard)
        },
      })
      const callback = (length: number): boolean => {
        this.bytes += length
        chunk = this.#shared.subarray(0, length)
        const known = reader.isBetween && this.#last?.bytes.equals(chunk) === true ? this.#last : undefined
        if (known === undefined) reader.read(chunk)
        else {
          reader.counted(length - FRAME_BYTES)
          take(known.heard)
        }
        return true
      }
      let socket: Socket
      const dial = (): void => {
        socket = connect({ path, onread: { buffer: this.#shared, callback } })
        // Unlike TCP, a unix socket whose queue is full refuses at once.
        socket.once('error', (error: NodeJS.ErrnoException) =>
          error.code === 'EAGAIN' ? setTimeout(dial, 5) : reject(error),
        )
        socket.once('connect', () => {
          socket.once('close', () => reject(new Error('a reader has lost its connection')))
          socket.write(hello)
          this.#sockets.push(socket)
        })
      }
      dial()
    })
  }

  #tick(revision: number): void {
    this.#newest = Math.max(this.#newest, revision)
    this.#heard.set(revision, { ms: nowMs(), readers: (this.#heard.get(revision)?.readers ?? 0) + 1 })
  }

  #read(typeUrl: string, { head, tail, pieces }: Message): Heard {
    const known = this.#known.get(head + tail)
    if (known !== undefined) return known
    if (pieces === undefined) throw new Error('two messages that begin alike')
    this.#heads.add(head)
    const bytes = Buffer.concat(pieces)
    const message = bytes.subarray(PREFIX_BYTES)
    const { nonce, system_version_info: revision = '' } = decodeMessage(
      HEAD,
      bytes[0] === 1 ? gunzipSync(message) : message,
    )
    const heard = {
      revision: Number(revision),
      acknowledgement: request({ type_url: typeUrl, response_nonce: nonce }),
    }
    this.#known.set(head + tail, heard)
    return heard
  }
}

/** Takes the messages of one stream out of the frames of a connection. */
class FrameReader {
  readonly #options: FrameReaderOptions
  #rest: Buffer | undefined
  /** Of the message that is not whole yet. */
  #length = 0
  #held = 0
  #head = ''
  #tail = ''
  /** None of a message whose beginning is known. */
  #pieces: Buffer[] | undefined
  #unsaid = 0

  constructor(options: FrameReaderOptions) {
    this.#options = options
  }

  /** What comes next begins a frame, and a message. */
  get isBetween(): boolean {
    return this.#rest === undefined && this.#held === 0
  }

  /** The bytes are good during the call. */
  read(chunk: Buffer): void {
    const bytes = this.#rest === undefined ? chunk : Buffer.concat([this.#rest, chunk])
    let at = 0
    while (bytes.length - at >= FRAME_BYTES) {
      const end = at + FRAME_BYTES + bytes.readUIntBE(at, 3)
      if (bytes.length < end) break
      this.#frame(bytes[at + 3] ?? 0, bytes[at + 4] ?? 0, bytes.subarray(at + FRAME_BYTES, end))
      at = end
    }
    this.#rest = at < bytes.length ? Buffer.from(bytes.subarray(at)) : undefined
  }

  #frame(type: number, flags: number, payload: Buffer): void {
    const { send } = this.#options
    if (type === DATA) this.#data(payload)
    else if (type === SETTINGS && flags === 0) send(frame(SETTINGS, ACK, 0, Buffer.alloc(0)))
    else if (type === PING && flags === 0) send(frame(PING, ACK, 0, payload))
  }

  /** So many bytes of messages were read: the server may write as many again. */
  counted(bytes: number): void {
    this.#unsaid += bytes
    if (this.#unsaid <= WINDOW / 2) return
    this.#options.send(frame(WINDOW_UPDATE, 0, 1, uint32(this.#unsaid)))
    this.#unsaid = 0
  }

  #data(payload: Buffer): void {
    this.counted(payload.length)
    for (let rest = payload; rest.length > 0; ) rest = this.#part(rest)
  }

  /** Returns what lies behind the message. */
  #part(payload: Buffer): Buffer {
    const { isKnown, message } = this.#options
    if (this.#held === 0) {
      // The server writes a message at once: at most a window ends there, which is larger than all that is sent here.
      if (payload.length < PREFIX_BYTES) throw new Error('a prefix in two frames')
      this.#length = PREFIX_BYTES + payload.readUInt32BE(1)
      this.#head = `${this.#length} ${payload.toString('latin1', 0, Math.min(this.#length, HEAD_BYTES))}`
      this.#tail = ''
      this.#pieces = isKnown(this.#head) ? undefined : []
    }
    const taken = payload.subarray(0, this.#length - this.#held)
    this.#held += taken.length
    this.#pieces?.push(Buffer.from(taken))
    this.#tail = (this.#tail + taken.toString('latin1', Math.max(0, taken.length - TAIL_BYTES))).slice(
      -TAIL_BYTES,
    )
    if (this.#held === this.#length) {
      this.#held = 0
      message({ head: this.#head, tail: this.#tail, length: this.#length, pieces: this.#pieces })
    }
    return payload.subarray(taken.length)
  }
}

/** Serves the tasks of the process that measures. */
export function serveReaders(): void {
  const readers = new Readers()
  process.on('message', async (task: ReadersTask) => {
    if (task.kind === 'settle') await readers.settle(task.revision)
    else if (task.kind !== 'report') await readers.open(task)
    process.send?.(task.kind === 'report' ? readers.report() : { heard: [], bytes: readers.bytes, cpuMs: 0 })
  })
  process.on('unhandledRejection', error => {
    console.error(error)
    process.exit(1)
  })
  process.send?.('ready')
}
