import { expect, it } from 'vitest'
import { chainsOfBlob } from '../../../../src/modes/foreign/legacy-iptables.ts'

interface Entry {
  readonly target: string
  /** Of the chain that a target ERROR begins. */
  readonly chain?: string
  /** Bytes of matches between the entry and its target. */
  readonly matches?: number
}

/** Entries as struct ipt_entry and struct xt_entry_target lay them out. */
function blobOf(
  entries: readonly Entry[],
  head: { readonly length: number; readonly offsets: number },
): DataView {
  const parts = entries.map(({ target, chain = '', matches = 0 }) => {
    const targetAt = head.length + matches
    const length = targetAt + 32 + (target === 'ERROR' ? 32 : 8)
    const part = Buffer.alloc(length)
    part.writeUInt16LE(targetAt, head.offsets)
    part.writeUInt16LE(length, head.offsets + 2)
    part.writeUInt16LE(length - targetAt, targetAt)
    part.write(target, targetAt + 2, 'latin1')
    part.write(chain, targetAt + 32, 'latin1')
    return part
  })
  const bytes = new Uint8Array(Buffer.concat(parts))
  return new DataView(bytes.buffer)
}

const TABLE: readonly Entry[] = [
  // Base chains, each of which ends with its policy.
  { target: '', matches: 48 },
  { target: '' },
  { target: '' },
  { target: 'ERROR', chain: 'KUBE-SERVICES' },
  { target: 'DNAT', matches: 40 },
  { target: '', matches: 304 },
  { target: '' },
  { target: 'ERROR', chain: 'EMPTY' },
  { target: '' },
  { target: 'ERROR', chain: 'ERROR' },
]

it.each([
  ['ip', { length: 112, offsets: 88 }],
  ['ip6', { length: 168, offsets: 140 }],
] as const)('finds the chains of %s and counts their rules', (family, head) => {
  expect(chainsOfBlob(blobOf(TABLE, head), family)).toEqual([
    { name: 'KUBE-SERVICES', rules: 2 },
    { name: 'EMPTY', rules: 0 },
  ])
})

it('takes a table without chains', () => {
  const blob = blobOf([{ target: '' }, { target: 'ERROR', chain: 'ERROR' }], { length: 112, offsets: 88 })
  expect(chainsOfBlob(blob, 'ip')).toEqual([])
})

it('never goes on for ever, nor beyond the end', () => {
  const blob = blobOf(TABLE, { length: 112, offsets: 88 })
  expect(() => chainsOfBlob(new DataView(blob.buffer, 0, 210), 'ip')).toThrow(RangeError)
  blob.setUint16(90, 0, true)
  expect(() => chainsOfBlob(blob, 'ip')).toThrow(RangeError)
})
