import { afterEach, beforeEach, expect, test } from 'vitest'
import type { Transport } from '../../src/netlink/transport.ts'
import type { IpsetTarget, IpsetTargetFactory } from './ipset-client-suite.ts'
import { isUpTo } from './target.ts'
import { attribute, datagrams, encoded, messagesIn, nest, str } from './wire.ts'

const ACK = 0x4
const EXCL = 0x200
const NET = 0x4000
const CMD = {
  create: 2,
  destroy: 3,
  flush: 4,
  swap: 6,
  list: 7,
  add: 9,
  del: 10,
  type: 13,
  byName: 14,
  byIndex: 15,
}

/** What the kernel answers, message by message: built byte by byte, by other means than the product's. */
export function ipsetMessagesSuite(factory: IpsetTargetFactory): void {
  let target: IpsetTarget
  let socket: Transport
  beforeEach(() => {
    target = factory()
    socket = target.open()
  })
  afterEach(() => socket.close())
  const ask = (command: number, flags: number, ...attributes: readonly Buffer[]): readonly string[] => {
    const body = Buffer.concat(attributes)
    socket.sendSync(encoded({ type: (6 << 8) | command, flags: flags | 1, family: 0, body }, 5))
    return [...datagrams(socket, 100)].flatMap(each =>
      typeof each === 'string' ? [each] : messagesIn(each).map(wordsOf),
    )
  }

  test.each(cases())('$title', ({ given = [], asked, replies, upTo61 }) => {
    for (const [command, ...attributes] of given) expect(ask(command, ACK, ...attributes)).toEqual(['0'])
    const [command, flags, ...attributes] = asked
    const expected = isUpTo(target, [6, 1]) ? (upTo61 ?? replies) : replies
    expect(ask(command, flags, ...attributes)).toEqual(expected)
  })
}

/** `-errno`, and for copies of a refused message `-errno at LINE`; else the command and the payload. */
function wordsOf(message: Buffer): string {
  const type = message.readUInt16LE(4)
  if (type === 3) return `done ${message.readInt32LE(16)}`
  if (type !== 2) return `${type & 255} ${message.subarray(20).toString('hex')}`
  const errno = message.readInt32LE(16)
  const isCopy = (message.readUInt16LE(6) & 0x100) === 0 && errno !== 0
  return isCopy ? `${errno} at ${lineIn(message)}` : String(errno)
}

function lineIn(message: Buffer): number | undefined {
  for (let at = 40; at + 8 <= message.length; at += (message.readUInt16LE(at) + 3) & ~3)
    if ((message.readUInt16LE(at + 2) & 0x3fff) === 9) return message.readUInt32BE(at + 4)
  return undefined
}

interface MessageCase {
  readonly title: string
  readonly given?: readonly (readonly [command: number, ...Buffer[]])[]
  readonly asked: readonly [command: number, flags: number, ...Buffer[]]
  readonly replies: readonly string[]
  /** Of Linux up to 6.1, where they differ. */
  readonly upTo61?: readonly string[]
}

const byte = (type: number, value: number): Buffer => attribute(type, Buffer.of(value))
const number16 = (type: number, value: number): Buffer => attribute(type, Buffer.of(value >> 8, value & 255))
const number32 = (type: number, value: number): Buffer => {
  const payload = Buffer.alloc(4)
  payload.writeUInt32BE(value)
  return attribute(type, payload)
}
const protocol = (value = 6): Buffer => byte(1, value)
const name = (text: string): Buffer => str(2, text)

interface Made {
  readonly type?: string
  readonly revision?: number
  readonly family?: number
  readonly data?: readonly Buffer[]
}

function made(text: string, { type = 'hash:ip', revision = 4, family = 2, data = [] }: Made = {}): Buffer[] {
  return [protocol(), name(text), str(3, type), byte(4, revision), byte(5, family), nest(7, ...data)]
}

const element = (line: number, ...octets: readonly number[]): Buffer =>
  nest(7, nest(1, attribute(1 | NET, Buffer.from(octets))), number32(9 | NET, line))
const adt = (set: string, ...elements: readonly Buffer[]): Buffer[] => [
  protocol(),
  name(set),
  number32(9 | NET, 0),
  nest(8, ...elements),
]

/** Cases of a kernel that was given the same before. */
function withGiven(given: MessageCase['given']) {
  return (title: string, asked: MessageCase['asked'], ...replies: readonly string[]): MessageCase => ({
    title,
    ...(given && { given }),
    asked,
    replies,
  })
}

function cases(): readonly MessageCase[] {
  return [...creating(), ...changing(), ...asking()]
}

function creating(): readonly MessageCase[] {
  const given = [[CMD.create, ...made('a')]] as const
  const of = withGiven(given)
  const creates = (title: string, attributes: readonly Buffer[], reply: string, flags = ACK): MessageCase =>
    of(`create: ${title}`, [CMD.create, flags, ...attributes], reply)
  return [
    creates('the same again', made('a'), '0'),
    creates('the same again with NLM_F_EXCL', made('a'), '-17', ACK | EXCL),
    creates('the same of another revision', made('a', { revision: 3 }), '0'),
    creates('the same of another size', made('a', { data: [number32(19 | NET, 3)] }), '-17'),
    {
      ...creates(
        'the same of the other family, which the kernel takes for the same',
        made('a', { family: 10 }),
        '0',
      ),
      upTo61: ['-17'],
    },
    creates('another type', made('a', { type: 'hash:ip,port' }), '-17'),
    creates('a size that is not marked as network order', made('c', { data: [number32(19, 3)] }), '-4097'),
    creates('a revision that there is not', made('c', { revision: 99 }), '-4098'),
    creates('a type that there is not', made('c', { type: 'hash:nothing' }), '-4098'),
    creates('a family that there is not', made('c', { family: 7 }), '-4106'),
    creates(
      'a bitmap without its range',
      made('c', { type: 'bitmap:port', revision: 3, family: 0 }),
      '-4097',
    ),
    creates('without a revision', [protocol(), name('c'), str(3, 'hash:ip'), byte(5, 2)], '-4097'),
    creates('an old protocol', [protocol(5), ...made('c').slice(1)], '-4097'),
    creates('a new protocol', [protocol(7), ...made('c').slice(1)], '0'),
    creates('a name that is too long', made('x'.repeat(32)), '-22'),
    creates('the longest name', made('x'.repeat(31)), '0'),
  ]
}

function changing(): readonly MessageCase[] {
  const given = [
    [CMD.create, ...made('a')],
    [CMD.create, ...made('b', { family: 10 })],
    [CMD.add, ...adt('a', element(1, 10, 0, 0, 1), element(2, 10, 0, 0, 2))],
  ] as const
  const asks = withGiven(given)
  const two = adt('a', element(1, 10, 0, 0, 3), element(2, 10, 0, 0, 1), element(3, 10, 0, 0, 4))
  return [
    asks('add: what is there', [CMD.add, ACK, ...two], '0'),
    asks(
      'add: what is there, with NLM_F_EXCL, and the line of it comes back',
      [CMD.add, ACK | EXCL, ...two],
      '-4103 at 2',
    ),
    asks(
      'add: without a line',
      [CMD.add, ACK, protocol(), name('a'), nest(8, element(1, 1, 1, 1, 1))],
      '-4097',
    ),
    asks('add: a null address', [CMD.add, ACK, ...adt('a', element(7, 0, 0, 0, 0))], '-4353 at 7'),
    asks(
      'add: a null address without a line of its own',
      [CMD.add, ACK, ...adt('a', element(0, 0, 0, 0, 0))],
      '-4353',
    ),
    asks(
      'add: an address that is not marked as network order',
      [CMD.add, 0, ...adt('a', nest(7, nest(1, attribute(1, Buffer.of(1, 1, 1, 1))), number32(9 | NET, 4)))],
      '-4097 at 4',
    ),
    asks('add: to no set', [CMD.add, 0, ...adt('z', element(1, 1, 1, 1, 1))], '-2'),
    asks('delete: what is not there', [CMD.del, ACK, ...adt('a', element(1, 9, 9, 9, 9))], '0'),
    asks(
      'delete: the same with NLM_F_EXCL',
      [CMD.del, EXCL, ...adt('a', element(1, 9, 9, 9, 9))],
      '-4103 at 1',
    ),
    asks('destroy: what is not there', [CMD.destroy, ACK, protocol(), name('z')], '0'),
    asks('destroy: the same with NLM_F_EXCL', [CMD.destroy, ACK | EXCL, protocol(), name('z')], '-2'),
    asks('flush: what is not there', [CMD.flush, ACK, protocol(), name('z')], '-2'),
    asks('swap: the first is not there', [CMD.swap, ACK, protocol(), name('z'), str(3, 'a')], '-2'),
    asks('swap: the second is not there', [CMD.swap, ACK, protocol(), name('a'), str(3, 'z')], '-4101'),
    asks('swap: another family', [CMD.swap, ACK, protocol(), name('a'), str(3, 'b')], '-4102'),
    asks('a command that there is not', [30, ACK, protocol()], '-22'),
  ]
}

function asking(): readonly MessageCase[] {
  const given = [[CMD.create, ...made('a')]] as const
  const index = number16(11 | NET, 0)
  const tell = withGiven(given)
  const found = Buffer.concat([protocol(7), index]).toString('hex')
  return [
    tell('a type that there is not', [CMD.type, 0, protocol(), str(3, 'nothing'), byte(5, 2)], '-4098'),
    tell('the number of a set, in protocol 6', [CMD.byName, 0, protocol(), name('a')], '-4097'),
    tell('the number of no set', [CMD.byName, 0, protocol(7), name('z')], '-2'),
    tell(
      'the name of a number',
      [CMD.byIndex, 0, protocol(7), index],
      `15 ${Buffer.concat([protocol(7), name('a')]).toString('hex')}`,
    ),
    tell('the name of no number', [CMD.byIndex, 0, protocol(7), number16(11 | NET, 99)], '-2'),
    tell('a list of no set', [CMD.list, 0x300, protocol(), name('z')], '-2'),
    tell(
      'names alone',
      [CMD.list, 0x300, protocol(), number32(6, 2)],
      `7 ${Buffer.concat([protocol(), name('a')]).toString('hex')}`,
      'done 0',
    ),
    tell(
      'the number of a set',
      [CMD.byName, 0, protocol(7), name('a')],
      expect.stringContaining(found.slice(16)),
    ),
  ]
}
