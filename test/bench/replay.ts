import { performance } from 'node:perf_hooks'
import type { Transport } from '../../src/netlink/transport.ts'

const NLMSG_ERROR = 2
const BARE_BEGIN_BYTES = 20

/** A batch without NFNL_BATCH_GENID, so that the kernel takes it again later. */
export function withoutGeneration(batch: Uint8Array): Uint8Array {
  const view = new DataView(batch.buffer, batch.byteOffset, batch.byteLength)
  const length = view.getUint32(0, true)
  if (length === BARE_BEGIN_BYTES) return batch
  const bare = new Uint8Array(batch.length - (length - BARE_BEGIN_BYTES))
  bare.set(batch.subarray(0, BARE_BEGIN_BYTES))
  bare.set(batch.subarray(length), BARE_BEGIN_BYTES)
  new DataView(bare.buffer).setUint32(0, BARE_BEGIN_BYTES, true)
  return bare
}

/** Milliseconds that the kernel takes for a batch that was sent before: what nobody can be faster than. */
export function replay(transport: Transport, batch: Uint8Array): number {
  const start = performance.now()
  transport.sendSync(batch)
  const elapsed = performance.now() - start
  const into = new Uint8Array(1 << 16)
  for (let length = transport.receive(into); length !== undefined; length = transport.receive(into)) {
    const view = new DataView(into.buffer)
    if (view.getUint16(4, true) === NLMSG_ERROR && view.getInt32(16, true) !== 0)
      throw new Error(`replay refused: ${view.getInt32(16, true)}`)
  }
  return elapsed
}
