import type { Socket } from 'node:net'
import { DATA, END_HEADERS, frame, HEADERS, SETTINGS } from '../../../../support/api/grpc-peer.ts'

/* Frames of HTTP/2 (RFC 9113, 4.1 and 6) for servers that misbehave as Node's own never would. */

export const RST_STREAM = 3
const GOAWAY = 7
export const END_STREAM = 1
/** `:status: 200` in HPACK's static table. */
const STATUS_200 = Buffer.from([0x88])
export const NO_SETTINGS = frame(SETTINGS, 0, 0, Buffer.alloc(0))

export function goaway(lastStream: number, code: number): Buffer {
  return frame(GOAWAY, 0, 0, Buffer.concat([u32(lastStream), u32(code)]))
}

export function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  return bytes
}

/** Answers the first request with status 200 and `hello`, without an end. */
export function helloOnRequest(socket: Socket, then: () => void): void {
  let asked = false
  socket.write(NO_SETTINGS)
  socket.on('error', () => undefined)
  socket.on('data', () => {
    if (asked) return
    asked = true
    setTimeout(() => {
      socket.write(frame(HEADERS, END_HEADERS, 1, STATUS_200))
      socket.write(frame(DATA, 0, 1, Buffer.from('hello')))
      setTimeout(then, 20)
    }, 20)
  })
}
