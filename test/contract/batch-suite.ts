import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Transport } from '../../src/netlink/transport.ts'
import type { Case } from './case.ts'
import { COMPAT_CASES } from './compat-cases.ts'
import { ELEMENT_CASES } from './element-cases.ts'
import { OBJECT_CASES } from './object-cases.ts'
import * as of from './objects.ts'
import { isUpTo, type Target, type TargetFactory } from './target.ts'
import {
  ACK,
  type BatchOptions,
  batch,
  DUMP,
  encoded,
  generationOf,
  MSG,
  nft,
  type Raw,
  received,
  str,
} from './wire.ts'

/** What the kernel answers to batches and dumps, byte by byte. */
export function batchSuite(factory: TargetFactory): void {
  let target: Target
  let socket: Transport
  beforeEach(() => {
    target = factory()
    socket = target.open()
  })
  afterEach(() => socket.close())

  describe('a batch', () => {
    test.each([...OBJECT_CASES, ...ELEMENT_CASES, ...COMPAT_CASES].map(one => [one.title, one] as const))(
      '%s',
      (_title, one) =>
        runCase(socket, isUpTo(target, one.older?.upTo ?? [0, 0]) ? { ...one, ...one.older } : one),
    )
    acknowledgements(
      () => socket,
      () => target,
    )
    generations(() => socket)
  })
  describe('a dump', () => dumps(() => socket))
}

function runCase(socket: Transport, { given = [], batch: messages, replies, commits = false }: Case): void {
  expect(sent(socket, [of.table()])).toEqual([])
  if (given.length > 0) expect(sent(socket, given)).toEqual([])
  const before = generationOf(socket)
  expect(sent(socket, messages)).toEqual(replies)
  expect(generationOf(socket) - before).toBe(commits ? 1 : 0)
}

function sent(socket: Transport, messages: readonly Raw[], options?: BatchOptions): string[] {
  socket.sendSync(batch(messages, options))
  return received(socket)
}

function acknowledged(messages: readonly Raw[]): readonly Raw[] {
  return messages.map(message => ({ ...message, flags: message.flags | ACK }))
}

function acknowledgements(socket: () => Transport, target: () => Target): void {
  test('acknowledges the messages that ask for it', () => {
    expect(sent(socket(), acknowledged([of.table(), of.chain('a')]))).toEqual(['2 OK', '3 OK'])
  })

  test('acknowledges good messages of a batch that is refused', () => {
    const replies = sent(socket(), acknowledged([of.table(), of.deleteChain('nope'), of.chain('a')]))
    expect(replies).toEqual(['2 OK', '3 ENOENT @28', '4 OK'])
    expect(sent(socket(), [of.deleteTable()])).toEqual(['2 ENOENT @20'])
  })

  test('acknowledges what it does not commit, when the end of the batch is missing', () => {
    const before = generationOf(socket())
    expect(sent(socket(), acknowledged([of.table()]), { endless: true })).toEqual(['2 OK'])
    expect(generationOf(socket())).toBe(before)
    expect(sent(socket(), [of.deleteTable()])).toEqual(['2 ENOENT @20'])
  })

  test('acknowledges begin and end, and the end only of a batch that is committed', () => {
    const both = { beginFlags: ACK, endFlags: ACK }
    const neither = isUpTo(target(), [6, 1])
    expect(sent(socket(), [of.table()], both)).toEqual(neither ? [] : ['1 OK', '3 OK'])
    expect(sent(socket(), [of.deleteChain('nope')], both)).toEqual([
      ...(neither ? [] : ['1 OK']),
      '2 ENOENT @28',
    ])
  })
}

function generations(socket: () => Transport): void {
  test('is refused as a whole, at its begin, when its generation is not current', () => {
    const stale = { generation: generationOf(socket()) + 1 }
    expect(sent(socket(), acknowledged([of.table()]), stale)).toEqual(['1 ERESTART'])
    expect(sent(socket(), [of.deleteTable()])).toEqual(['2 ENOENT @20'])
  })

  test('is committed when its generation is current', () => {
    expect(sent(socket(), acknowledged([of.table()]), { generation: generationOf(socket()) })).toEqual([
      '2 OK',
    ])
  })

  test('is refused outside of a batch', () => {
    socket().sendSync(encoded({ ...of.table(), flags: of.table().flags | ACK }, 7))
    expect(received(socket())).toEqual(['7 EINVAL'])
  })
}

function dumps(socket: () => Transport): void {
  const dump = (kind: number, ...filter: readonly Buffer[]): string[] => {
    socket().sendSync(encoded(nft(kind, DUMP, ...filter), 5))
    return received(socket())
  }

  test('lists every object once, and says when it is done', () => {
    expect(
      sent(socket(), [of.table(), of.chain('c'), of.chain('d'), of.rule('c', of.counter()), of.set('s')]),
    ).toEqual([])
    expect(dump(MSG.getTable)).toEqual(['message 0', 'DONE'])
    expect(dump(MSG.getChain)).toEqual(['message 3', 'message 3', 'DONE'])
    expect(dump(MSG.getRule)).toEqual(['message 6', 'DONE'])
    expect(dump(MSG.getSet)).toEqual(['message 9', 'DONE'])
  })

  test('filters rules and sets by table', () => {
    expect(sent(socket(), [of.table(), of.chain('c'), of.rule('c', of.counter())])).toEqual([])
    expect(dump(MSG.getRule, str(1, 't'))).toEqual(['message 6', 'DONE'])
    expect(dump(MSG.getRule, str(1, 'nope'))).toEqual(['DONE'])
    expect(dump(MSG.getSet, str(1, 'nope'))).toEqual([expect.stringMatching(/^5 ENOENT/)])
  })

  test('of elements is refused when there is no such table or set', () => {
    expect(sent(socket(), [of.table()])).toEqual([])
    expect(dump(MSG.getElem, str(1, 't'), str(2, 'nope'))).toEqual([expect.stringMatching(/^5 ENOENT/)])
    expect(dump(MSG.getElem, str(1, 'nope'), str(2, 's'))).toEqual([expect.stringMatching(/^5 ENOENT/)])
  })

  test('answers a request that reads the generation, which is the same until somebody commits', () => {
    const before = generationOf(socket())
    expect(generationOf(socket())).toBe(before)
    expect(sent(socket(), [of.table()])).toEqual([])
    expect(generationOf(socket())).toBe(before + 1)
  })
}
