import { readFileSync } from 'node:fs'
import { DataType, load, open } from 'ffi-rs'

const LINUX_CAPABILITY_VERSION_3 = 0x20080522
const CAP_NET_ADMIN = 1n << 12n

/** Takes CAP_NET_ADMIN from this thread, which must be the main one; the result gives it back. capset(2). */
export function dropNetAdmin(): () => void {
  open({ library: 'libc', path: 'libc.so.6' })
  const status = readFileSync('/proc/thread-self/status', 'utf8')
  const permitted = BigInt(`0x${/^CapPrm:\s*([0-9a-f]+)$/m.exec(status)?.[1] ?? '0'}`)
  setEffective(permitted & ~CAP_NET_ADMIN, permitted)
  return () => setEffective(permitted, permitted)
}

function setEffective(effective: bigint, permitted: bigint): void {
  const header = Buffer.alloc(8)
  header.writeUInt32LE(LINUX_CAPABILITY_VERSION_3, 0)
  const data = Buffer.alloc(24)
  for (const half of [0, 1]) {
    const bits = (value: bigint) => Number((value >> BigInt(32 * half)) & 0xffff_ffffn)
    data.writeUInt32LE(bits(effective), 12 * half)
    data.writeUInt32LE(bits(permitted), 12 * half + 4)
  }
  const failed = load({
    library: 'libc',
    funcName: 'capset',
    retType: DataType.I32,
    paramsType: [DataType.U8Array, DataType.U8Array],
    paramsValue: [header, data],
  })
  if (failed !== 0) throw new Error('capset failed')
}
