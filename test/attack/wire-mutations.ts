import type { Random } from '../support/apiserver/random.ts'
import { bytesOf, type Field, type Message, messageIn, varint } from './protobuf-tree.ts'

/** Octets that decoders trip over: borders of varints, braces, quotes, NUL. */
const ODD_OCTETS = [
  0x00, 0x01, 0x07, 0x08, 0x0a, 0x12, 0x22, 0x5b, 0x5d, 0x7b, 0x7d, 0x7f, 0x80, 0xff,
] as const
const ODD_LENGTHS = [
  0,
  1,
  0x7f,
  0x80,
  0x3fff,
  0xffff,
  2 ** 20,
  2 ** 31 - 1,
  2 ** 31,
  2 ** 32,
  2 ** 52,
] as const
const MUCH = 200

/** What octets become, given other octets of the same kind. */
type Mutation = (bytes: Buffer, random: Random, other: Buffer) => Buffer

const ANY_OCTETS: readonly Mutation[] = [
  function flip(bytes, random) {
    const damaged = Buffer.from(bytes)
    for (let count = random.int(1, 6); count > 0 && damaged.length > 0; count--) {
      const at = random.int(0, damaged.length - 1)
      damaged[at] = (damaged[at] ?? 0) ^ (1 << random.int(0, 7))
    }
    return damaged
  },
  function overwrite(bytes, random) {
    const damaged = Buffer.from(bytes)
    const at = random.int(0, damaged.length)
    return damaged.fill(random.pick(ODD_OCTETS), at, Math.min(damaged.length, at + random.int(1, 12)))
  },
  function truncate(bytes, random) {
    return bytes.subarray(0, random.int(0, bytes.length))
  },
  function cutOut(bytes, random) {
    const at = random.int(0, bytes.length)
    return Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + random.int(1, 40))])
  },
  function repeat(bytes, random) {
    const at = random.int(0, bytes.length)
    const end = Math.min(bytes.length, at + random.int(1, 80))
    const part = bytes.subarray(at, end)
    return Buffer.concat([bytes.subarray(0, end), ...Array(random.int(1, 8)).fill(part), bytes.subarray(end)])
  },
  function splice(bytes, random, other) {
    const from = random.int(0, other.length)
    return Buffer.concat([
      bytes.subarray(0, random.int(0, bytes.length)),
      other.subarray(from, random.chance(0.5) ? other.length : from + random.int(0, 200)),
      bytes.subarray(random.int(0, bytes.length)),
    ])
  },
]

// ---- protobuf

type FieldChange = (field: Field, random: Random, others: readonly Field[]) => readonly Field[]

const nested = (number: number, depth: number): Field => {
  let value = Buffer.from([8, 1])
  for (; depth > 0; depth--) value = Buffer.concat([varint(number * 8 + 2), varint(value.length), value])
  return { number, wire: 2, value }
}

const FIELD_CHANGES: readonly FieldChange[] = [
  () => [],
  (field, random) => Array<Field>(random.int(2, 40)).fill(field),
  (field, random) => [{ ...field, number: random.int(1, 20) }],
  (field, random) => [{ ...field, number: random.pick([2 ** 10, 2 ** 28, 2 ** 29 - 1, 2 ** 32]) }],
  (field, random) => [{ ...field, wire: random.int(0, 7) }],
  (field, random, others) => [random.pick(others), field],
  (field, random, others) => [{ ...random.pick(others), number: field.number }],
  (field, random) => [
    { ...field, wire: 2, value: Buffer.alloc(random.int(0, MUCH), random.pick(ODD_OCTETS)) },
  ],
  (field, random) => [{ ...field, wire: 0, value: varint(random.pick(ODD_LENGTHS)) }],
  (field, random) => [{ ...field, wire: 0, value: Buffer.from('ff'.repeat(random.int(1, 12)), 'hex') }],
  (field, random) => [nested(random.int(1, 20), random.int(2, MUCH)), field],
  // Groups, which nobody writes any more: 3 opens, 4 closes.
  ({ number }, random) => Array(random.int(1, MUCH)).fill({ number, wire: 3, value: Buffer.alloc(0) }),
  ({ number }) => [3, 4].map(wire => ({ number, wire, value: Buffer.alloc(0) })),
]

/** Changes one field somewhere in the message; lengths around it stay right. */
function changeField(message: Message, random: Random): Message {
  const { prefix, fields } = message
  if (fields.length === 0) return message
  const at = random.int(0, fields.length - 1)
  const field = fields[at]
  if (field === undefined) return message
  const { value } = field
  const after =
    !Buffer.isBuffer(value) && random.chance(0.8)
      ? [{ ...field, value: changeField(value, random) }]
      : random.pick(FIELD_CHANGES)(field, random, fields)
  return { prefix, fields: [...fields.slice(0, at), ...after, ...fields.slice(at + 1)] }
}

function mutateMessage(bytes: Buffer, random: Random): Buffer {
  let message = messageIn(bytes)
  if (message === undefined) return ANY_OCTETS[0]?.(bytes, random, bytes) ?? bytes
  for (let count = random.int(1, 4); count > 0; count--) message = changeField(message, random)
  return bytesOf(message)
}

/** A frame of a watch: four octets of length, then a message. */
function mutateFrame(bytes: Buffer, random: Random): Buffer {
  const frames: Buffer[] = []
  for (let at = 0; at + 4 <= bytes.length; ) {
    const end = at + 4 + bytes.readUInt32BE(at)
    frames.push(bytes.subarray(at + 4, end))
    at = end
  }
  const changed = random.int(0, Math.max(0, frames.length - 1))
  return Buffer.concat(
    frames.flatMap((frame, index) => {
      const body = index === changed ? mutateMessage(frame, random) : frame
      const length = Buffer.alloc(4)
      length.writeUInt32BE(random.chance(0.95) ? body.length : random.int(0, 0xffff_ffff))
      return [length, body]
    }),
  )
}

// ---- JSON

// biome-ignore format: one a line says no more
const ODD_VALUES: readonly unknown[] = [
  null, true, false, 0, -1, 0.5, 65_536, 2 ** 31, 2 ** 53, 1e308, '', ' ', '0', '-1', 'None', '127.0.0.1', '::', '::ffff:1.2.3.4',
  '0.0.0.0/0', '::/0', '999.1.1.1', '1.2.3.4/33', '__proto__', 'constructor', 'x'.repeat(70), 'x'.repeat(5_000), '\u0000', '\u202e', '\ud800',
  '+275760-09-13T00:00:00Z', '-000001-01-01T00:00:00Z', [], {}, [[]], [null], [{}], { length: 5 }, { toString: 1 }, { metadata: {} },
]

const ODD_KEYS = [
  '__proto__',
  'constructor',
  'toString',
  'items',
  'metadata',
  'kind',
  'apiVersion',
  '',
] as const

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function deep(random: Random): unknown {
  let value: unknown = 1
  for (let depth = random.int(10, MUCH); depth > 0; depth--)
    value = random.chance(0.5) ? [value] : { a: value }
  return value
}

function changeValue(value: unknown, random: Random): unknown {
  if (random.chance(0.02)) return deep(random)
  if (Array.isArray(value) && value.length > 0 && random.chance(0.9)) return changeList(value, random)
  if (!isRecord(value) || random.chance(0.06)) return random.pick(ODD_VALUES.map(odd => [odd]))[0]
  const entries = Object.entries(value)
  if (entries.length === 0) return random.pick(ODD_VALUES.map(odd => [odd]))[0]
  const at = random.int(0, entries.length - 1)
  const [key, its] = entries[at] ?? ['', undefined]
  const dice = random.int(0, 99)
  if (dice < 8) entries.splice(at, 1)
  else if (dice < 14) entries[at] = [random.pick(ODD_KEYS), its]
  else if (dice < 20) entries.push([random.pick(ODD_KEYS), its])
  else entries[at] = [key, changeValue(its, random)]
  return Object.fromEntries(entries)
}

function changeList(list: readonly unknown[], random: Random): readonly unknown[] {
  const at = random.int(0, list.length - 1)
  const its = list[at]
  const around = (...between: unknown[]) => [...list.slice(0, at), ...between, ...list.slice(at + 1)]
  const dice = random.int(0, 99)
  if (dice < 10) return around()
  if (dice < 20) return around(...Array(random.int(2, 60)).fill(its))
  if (dice < 25) return around([its])
  if (dice < 30) return [its, ...list]
  return around(changeValue(its, random))
}

function mutateLine(line: string, random: Random): string {
  let value: unknown = JSON.parse(line)
  for (let count = random.int(1, 4); count > 0; count--) value = changeValue(value, random)
  const text = JSON.stringify(value) ?? ''
  return random.chance(0.1) ? text.replace(/"(\w+)":/, '"$1":{},"$1":') : text
}

function mutateJson(bytes: Buffer, random: Random): Buffer {
  const lines = bytes.toString().split('\n')
  const at = random.int(0, lines.length - 1)
  return Buffer.from(
    lines.map((line, index) => (index === at && line !== '' ? mutateLine(line, random) : line)).join('\n'),
  )
}

export interface Body {
  readonly encoding: 'protobuf' | 'json'
  readonly isWatch: boolean
  readonly bytes: Buffer
}

/** The body with damage, often within its structure and sometimes to its octets. */
export function mutated({ encoding, isWatch, bytes }: Body, random: Random, other: Buffer): Buffer {
  const structural = encoding === 'json' ? mutateJson : isWatch ? mutateFrame : mutateMessage
  const inside = random.chance(0.65) ? structural(bytes, random) : bytes
  if (inside !== bytes && random.chance(0.85)) return inside
  let damaged = inside
  for (let count = random.int(1, 3); count > 0; count--)
    damaged = random.pick(ANY_OCTETS)(damaged, random, other)
  return damaged
}
