import { expect, type TestAPI, test } from 'vitest'
import type { Transport } from '../../src/netlink/transport.ts'
import * as of from './objects.ts'
import { lent, type Target, type TargetFactory } from './target.ts'
import {
  batch,
  DUMP,
  datagrams,
  encoded,
  generationOf,
  MSG,
  messagesIn,
  nft,
  type Raw,
  received,
  str,
} from './wire.ts'

const NFNLGRP_NFTABLES = 7

/** What a socket does: limits, loss, order, watching, notifications. */
export function socketSuite(factory: TargetFactory): void {
  const sockets = test.extend<Sockets>({
    target: ({ task: _ }, use) => use(factory()),
    socket: ({ target }, use) => lent(target.open(), use),
  })
  limits(sockets)
  lazyDumps(sockets)
  notifications(sockets)
  lifetime(sockets)
}

function limits(test: TestAPI<Sockets>): void {
  test('a datagram longer than the send buffer is refused, and nothing of it is done', ({ target }) => {
    const small = target.open({ sendBytesMax: 8192 })
    const before = generationOf(small)
    const chains = Array.from({ length: 2000 }, (_, i) => of.chain(`chain-${i}`))
    expect(() => small.sendSync(batch([of.table(), ...chains]))).toThrow(/EMSGSIZE/)
    expect(generationOf(small)).toBe(before)
  })

  test('replies that do not fit the receive buffer are lost, and the loss is told once; the batch is committed', ({
    target,
  }) => {
    const small = target.open({ receiveBytesMax: 16_384 })
    const chains = Array.from({ length: 600 }, (_, i) => acknowledged(of.chain(`chain-${i}`)))
    small.sendSync(batch([of.table(), ...chains]))
    const replies = received(small)
    expect(replies.filter(reply => reply === 'ENOBUFS')).toEqual(['ENOBUFS'])
    expect(replies.length).toBeLessThan(chains.length)
    small.sendSync(batch([of.rule('chain-599', of.counter())]))
    expect(received(small)).toEqual([])
  })

  test('a datagram longer than the reader has room for is lost, and told', ({ target }) => {
    const socket = target.open()
    socket.sendSync(batch([of.table(), ...Array.from({ length: 100 }, (_, i) => of.chain(`chain-${i}`))]))
    socket.sendSync(encoded(nft(MSG.getChain, DUMP), 5))
    expect(() => socket.receive(new Uint8Array(64))).toThrow(/EMSGSIZE/)
  })
}

function acknowledged(message: Raw): Raw {
  return { ...message, flags: message.flags | 4 }
}

interface Sockets {
  readonly target: Target
  readonly socket: Transport
}

const KEYS = Array.from({ length: 5000 }, (_, i) => String.fromCharCode(10, i >> 16, (i >> 8) & 255, i & 255))

function lazyDumps(test: TestAPI<Sockets>): void {
  test('a dump of many elements comes in several datagrams, and is complete', ({ socket }) => {
    fill(socket)
    socket.sendSync(encoded(nft(MSG.getElem, DUMP, str(1, 't'), str(2, 's')), 5))
    const parts = [...datagrams(socket)]
    expect(parts.length).toBeGreaterThan(2)
    const bytes = Buffer.concat(parts.map(part => (typeof part === 'string' ? Buffer.alloc(0) : part)))
    expect(KEYS.filter(key => !bytes.includes(Buffer.from(key, 'latin1')))).toEqual([])
    expect(types(parts).at(-1)).toBe(3)
  })

  test('a dump of chains says that it was interrupted when somebody commits in between; one of elements does not', ({
    target,
    socket,
  }) => {
    fill(socket)
    const other = target.open()
    expect(
      interruptions(socket, nft(MSG.getChain, DUMP), () => other.sendSync(batch([of.chain('x')]))),
    ).toBeGreaterThan(0)
    const elements = nft(MSG.getElem, DUMP, str(1, 't'), str(2, 's'))
    expect(interruptions(socket, elements, () => other.sendSync(batch([of.chain('y')])))).toBe(0)
  })
}

function fill(socket: Transport): void {
  const elements: Raw[] = []
  for (let i = 0; i < KEYS.length; i += 1000)
    elements.push(of.add('s', ...KEYS.slice(i, i + 1000).map(key => ({ key }))))
  const chains = Array.from({ length: 1000 }, (_, i) =>
    of.chain(`a-chain-with-a-long-name-so-that-pages-fill-${i}`),
  )
  socket.sendSync(batch([of.table(), of.set('s'), ...elements, ...chains]))
  expect(received(socket)).toEqual([])
}

/** Messages with NLM_F_DUMP_INTR, when something happens after the first datagram. */
function interruptions(socket: Transport, request: Raw, between: () => void): number {
  socket.sendSync(encoded(request, 5))
  const parts: (Buffer | string)[] = []
  for (const part of datagrams(socket)) {
    if (parts.length === 0) between()
    parts.push(part)
  }
  const messages = parts.flatMap(part => (typeof part === 'string' ? [] : messagesIn(part)))
  return messages.filter(message => (message.readUInt16LE(6) & 0x10) !== 0).length
}

function types(parts: readonly (Buffer | string)[]): number[] {
  return parts.flatMap(part => (typeof part === 'string' ? [] : messagesIn(part).map(m => m.readUInt16LE(4))))
}

function notifications(test: TestAPI<Sockets>): void {
  test('a member of the group hears what others commit, and then of the generation and who made it', ({
    target,
    socket,
  }) => {
    const listener = target.open()
    listener.join(NFNLGRP_NFTABLES)
    socket.sendSync(batch([of.table(), of.chain('c')]))
    const heard = [...datagrams(listener)].flatMap(part => (typeof part === 'string' ? [] : messagesIn(part)))
    expect(heard.map(message => message.readUInt16LE(4) & 255)).toEqual([0, 3, 15])
    expect(new Set(heard.map(message => message.readUInt32LE(12)))).toEqual(new Set([socket.portId]))
    expect(heard.at(-1)?.readUInt32BE(24)).toBe(generationOf(socket))
  })

  test('a batch that is refused is not announced, and neither is anything to a socket that left', ({
    target,
    socket,
  }) => {
    const listener = target.open()
    listener.join(NFNLGRP_NFTABLES)
    socket.sendSync(batch([of.table(), of.deleteChain('nope')]))
    expect(received(listener)).toEqual([])
    listener.leave(NFNLGRP_NFTABLES)
    socket.sendSync(batch([of.table()]))
    expect(received(listener)).toEqual([])
  })
}

function lifetime(test: TestAPI<Sockets>): void {
  test('a watcher is called when something waits, and not after it was ended', async ({ socket }) => {
    let calls = 0
    const waiting = new Promise<void>(resolve => {
      const end = socket.watch(() => {
        calls++
        received(socket)
        end()
        resolve()
      })
    })
    socket.sendSync(batch([acknowledged(of.table())]))
    await waiting
    socket.sendSync(batch([acknowledged(of.chain('c'))]))
    await new Promise(resolve => setTimeout(resolve, 20))
    expect(calls).toBe(1)
    expect(received(socket)).toEqual(['2 OK'])
  })

  test('a send from the pool is done when it settles, and closing waits for it', async ({ target }) => {
    const socket = target.open()
    await socket.send(batch([acknowledged(of.table())]))
    expect(received(socket)).toEqual(['2 OK'])
    const sending = socket.send(batch([of.chain('c')]))
    const closing = socket.close()
    await sending
    await closing
    const other = target.open()
    other.sendSync(batch([of.rule('c', of.counter())]))
    expect(received(other)).toEqual([])
    expect(() => socket.sendSync(batch([]))).toThrow(/EBADF/)
  })
}
