import { once } from 'node:events'
import { connect } from 'node:http2'
import type { AddressInfo } from 'node:net'
import * as grpc from '@grpc/grpc-js'
import { listenerFor, plainServer } from '../../src/api/grpc/http-server.ts'
import { type Call, OK } from '../../src/api/grpc/rpc.ts'
import { RpcServer } from '../../src/api/grpc/rpc-server.ts'
import { systemClock } from '../../src/base/clock.ts'

const MESSAGE = Buffer.alloc(90, 'm')
const PREFIX_BYTES = 5
const FRAME_BYTES = PREFIX_BYTES + MESSAGE.length
const PATH = '/bench.Stream/Watch'
/** As the API server's transfers fill their blocks. */
const BLOCK_FRAMES = Math.floor((64 * 1024) / FRAME_BYTES)

/** Sends messages through kprobe's own server and gives their number, as a plain HTTP/2 client counts them. */
export async function messagesByKprobe(count: number): Promise<number> {
  const http = plainServer()
  const rpc = new RpcServer({
    http,
    methods: new Map([[PATH, (call: Call) => handler(call, count)]]),
    clock: systemClock,
    connectionsMax: 4,
    callsMax: 4,
    crowded: () => undefined,
    failed: error => {
      throw error
    },
  })
  const listener = listenerFor(socket => rpc.take(socket)).listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const received = await receive(portOf(listener.address()))
  await rpc.close()
  listener.close()
  return received
}

function handler(call: Call, count: number) {
  let left = count
  const fill = (): void => {
    while (left > 0) {
      const frames = Math.min(left, BLOCK_FRAMES)
      left -= frames
      if (!call.write(Buffer.concat(Array.from({ length: frames }, () => frameOf(MESSAGE))))) return
    }
    call.end(OK)
  }
  return { message: fill, drained: fill, ended: () => undefined }
}

function frameOf(message: Buffer): Buffer {
  const frame = Buffer.allocUnsafe(FRAME_BYTES)
  frame[0] = 0
  frame.writeUInt32BE(message.length, 1)
  message.copy(frame, PREFIX_BYTES)
  return frame
}

/** Sends messages through the server of grpc-js, which gets them as bytes already. */
export async function messagesByGrpcJs(count: number): Promise<number> {
  const asIs = (bytes: Buffer): Buffer => bytes
  const server = new grpc.Server()
  server.addService(
    {
      Watch: {
        path: PATH,
        requestStream: false,
        responseStream: true,
        requestSerialize: asIs,
        requestDeserialize: asIs,
        responseSerialize: asIs,
        responseDeserialize: asIs,
      },
    },
    {
      Watch: async (call: grpc.ServerWritableStream<Buffer, Buffer>) => {
        for (let left = count; left > 0; left--) if (!call.write(MESSAGE)) await once(call, 'drain')
        call.end()
      },
    },
  )
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), (error, bound) =>
      error === null ? resolve(bound) : reject(error),
    ),
  )
  const received = await receive(port)
  server.forceShutdown()
  return received
}

async function receive(port: number): Promise<number> {
  const session = connect(`http://127.0.0.1:${port}`)
  const stream = session.request({
    ':method': 'POST',
    ':path': PATH,
    'content-type': 'application/grpc',
    te: 'trailers',
  })
  let bytes = 0
  stream.on('data', (chunk: Buffer) => {
    bytes += chunk.length
  })
  stream.end(frameOf(Buffer.alloc(0)).subarray(0, PREFIX_BYTES))
  await once(stream, 'end')
  session.close()
  return bytes / FRAME_BYTES
}

function portOf(address: AddressInfo | string | null): number {
  if (address === null || typeof address === 'string') throw new Error('no port')
  return address.port
}
