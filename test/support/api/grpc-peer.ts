import { connect, type Socket } from 'node:net'

/** A client of Watch that speaks HTTP/2 by hand, with windows that are never full: it costs next to nothing. */
export class GrpcPeer {
  readonly socket: Socket
  /** Bytes of messages. */
  received = 0
  #left = 0
  #frame = Buffer.alloc(0)
  /** Bytes of the frame that is being read which are still to come. */
  #skip = 0
  #resolve: (() => void) | undefined

  /** `buffer` is read into; peers may share it. */
  constructor(
    path: string,
    buffer = Buffer.alloc(READ_BYTES),
    headers: Readonly<Record<string, string>> = {},
  ) {
    this.socket = connect({ path, onread: { buffer, callback: (length, into) => this.#read(length, into) } })
    this.socket.on('error', () => undefined)
    this.socket.write(greeting(headers))
  }

  /** Sends a WatchReq; resolves when so many bytes of messages have come. */
  ask(bytes: number): Promise<void> {
    this.#left += bytes
    this.socket.write(EMPTY_REQUEST)
    return new Promise(resolve => {
      this.#resolve = resolve
    })
  }

  destroy(): void {
    this.socket.destroy()
  }

  #read(length: number, into: Uint8Array): boolean {
    this.#take(Buffer.from(into.buffer, into.byteOffset, length))
    return true
  }

  #take(chunk: Buffer): void {
    let at = Math.min(this.#skip, chunk.length)
    this.#skip -= at
    while (at < chunk.length) {
      const head = Buffer.concat([this.#frame, chunk.subarray(at, at + FRAME_HEAD - this.#frame.length)])
      at += head.length - this.#frame.length
      this.#frame = head
      if (head.length < FRAME_HEAD) return
      this.#frame = Buffer.alloc(0)
      const length = head.readUIntBE(0, 3)
      if (head[3] === DATA) {
        this.received += length
        this.#left -= length
      }
      this.#skip = Math.max(0, at + length - chunk.length)
      at += length
    }
    if (this.#left > 0 || this.#skip > 0) return
    this.#resolve?.()
    this.#resolve = undefined
  }
}

export const PREFACE = 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
const FRAME_HEAD = 9
const READ_BYTES = 64 * 1024
export const DATA = 0
export const HEADERS = 1
export const SETTINGS = 4
const WINDOW_UPDATE = 8
export const END_HEADERS = 4
const INITIAL_WINDOW_SIZE = 4
const WINDOW_MAX = 2 ** 31 - 1
const WINDOW_DEFAULT = 65_535

export function frame(type: number, flags: number, stream: number, body: Buffer): Buffer {
  const head = Buffer.alloc(FRAME_HEAD)
  head.writeUIntBE(body.length, 0, 3)
  head[3] = type
  head[4] = flags
  head.writeUInt32BE(stream, 5)
  return Buffer.concat([head, body])
}

export const OPENING = Buffer.concat([
  frame(SETTINGS, 0, 0, Buffer.from([0, INITIAL_WINDOW_SIZE, 0x7f, 0xff, 0xff, 0xff])),
  frame(WINDOW_UPDATE, 0, 0, uint32(WINDOW_MAX - WINDOW_DEFAULT)),
])

/** As literals without indexing (RFC 7541, 6.2.2). */
export function headerBlock(headers: Readonly<Record<string, string>>): Buffer {
  const text = (its: string): Buffer => Buffer.concat([Buffer.from([its.length]), Buffer.from(its)])
  return Buffer.concat(
    Object.entries(headers).map(([name, value]) =>
      Buffer.concat([Buffer.from([0]), text(name), text(value)]),
    ),
  )
}

export const REQUEST = headerBlock({
  ':method': 'POST',
  ':scheme': 'http',
  ':path': '/localv1.Sets/Watch',
  ':authority': 'localhost',
  'content-type': 'application/grpc',
  te: 'trailers',
})

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  return bytes
}

function greeting(headers: Readonly<Record<string, string>>): Buffer {
  const request = Buffer.concat([REQUEST, headerBlock(headers)])
  return Buffer.concat([Buffer.from(PREFACE), OPENING, frame(HEADERS, END_HEADERS, 1, request)])
}

const EMPTY_REQUEST = frame(DATA, 0, 1, Buffer.alloc(5))
