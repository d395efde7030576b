import type { Socket } from 'node:net'

/** Frames of HTTP/2 (RFC 9113, 4.1 and 6) for servers that misbehave as Node's own never would. */
export const FRAME = { data: 0, headers: 1, reset: 3, settings: 4, ping: 6, goaway: 7 } as const
export const END_STREAM = 1
export const END_HEADERS = 4
/** `:status: 200` in HPACK's static table. */
export const STATUS_200 = Buffer.from([0x88])

export function frame(
  type: number,
  { flags = 0, stream = 0, payload = Buffer.alloc(0) }: { flags?: number; stream?: number; payload?: Buffer },
): Buffer {
  const head = Buffer.alloc(9)
  head.writeUIntBE(payload.length, 0, 3)
  head[3] = type
  head[4] = flags
  head.writeUInt32BE(stream, 5)
  return Buffer.concat([head, payload])
}

export function u32(...values: readonly number[]): Buffer {
  const bytes = Buffer.alloc(4 * values.length)
  values.forEach((value, index) => {
    bytes.writeUInt32BE(value, 4 * index)
  })
  return bytes
}

/** Answers the first request with this head and `hello`, without an end. */
export function helloOnRequest(socket: Socket, head: Buffer, then: () => void): void {
  let asked = false
  socket.write(frame(FRAME.settings, {}))
  socket.on('error', () => undefined)
  socket.on('data', () => {
    if (asked) return
    asked = true
    setTimeout(() => {
      socket.write(frame(FRAME.headers, { flags: END_HEADERS, stream: 1, payload: head }))
      socket.write(frame(FRAME.data, { stream: 1, payload: Buffer.from('hello') }))
      setTimeout(then, 20)
    }, 20)
  })
}
