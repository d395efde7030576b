import { readFileSync } from 'node:fs'
import protobuf from 'protobufjs'

// Benchmarks are bundled elsewhere, and name the repository.
const TEXT = readFileSync(`${process.env.KPROBE_ROOT ?? '.'}/src/api/localv1.proto`, 'utf8')
const root = protobuf.parse(TEXT, { keepCase: true }).root

/** Its bytes, by an implementation of protobuf that is not ours. */
export function encodeLocalv1(type: string, value: object): Buffer {
  const its = root.lookupType(`localv1.${type}`)
  const wrong = its.verify(value)
  if (wrong !== null) throw new Error(`${type}: ${wrong}`)
  return Buffer.from(its.encode(its.create(value)).finish())
}

/** A message behind gRPC's prefix. */
export function framed(message: Uint8Array): Buffer {
  const prefix = Buffer.alloc(5)
  prefix.writeUInt32BE(message.length, 1)
  return Buffer.concat([prefix, message])
}

export interface ReceivedItem {
  readonly Op: 'Sync' | 'Set' | 'Delete' | 'Reset'
  readonly Set?: { readonly Ref: ReceivedRef; readonly Bytes: Buffer }
  readonly Delete?: ReceivedRef
}

interface ReceivedRef {
  readonly Set: number
  readonly Path: string
}

export function decodeOpItem(bytes: Uint8Array): ReceivedItem {
  const its = root.lookupType('localv1.OpItem')
  const item: unknown = its.toObject(its.decode(bytes), { oneofs: true, defaults: false })
  if (!isItem(item)) throw new Error('an OpItem without an operation')
  return item
}

function isItem(value: unknown): value is ReceivedItem {
  return typeof value === 'object' && value !== null && 'Op' in value
}

/** The definitions as they are, to compare with what reflection publishes. */
export const LOCALV1_ROOT = root
