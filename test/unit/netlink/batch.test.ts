import { describe, expect, it } from 'vitest'
import { messageReceiver, type Sending, sendEach } from '../../../src/netlink/batch.ts'
import { Connection, REQUEST_SEQUENCE_MAX, sendDatagram } from '../../../src/netlink/connection.ts'
import { Batch } from '../../../src/netlink/message.ts'
import { SystemError } from '../../../src/netlink/transport.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { FaultyTransport, messagesIn } from '../../support/faulty-transport.ts'
import { datagram, errorMessage, message, ScriptedTransport } from '../../support/scripted-transport.ts'

const NLM_F_ACK = 4
const EPERM = 1
const ENOENT = 2
const EEXIST = 17

type Answers = ConstructorParameters<typeof ScriptedTransport>[0]

function connect(answers: Answers, sendLimitBytes = 1 << 20) {
  const script = new ScriptedTransport(answers)
  const clock = new FakeClock()
  const transport = new FaultyTransport(script, { sendLimitBytes })
  const connection = new Connection({ transport, clock, timeoutMs: 1_000 })
  return { script, transport, clock, link: { connection, clock } }
}

/** Messages of 20 bytes, each with the first letter of its tag. */
function sending(more: Partial<Sending<string>> = {}): Sending<string> {
  return {
    object: 'things',
    write: (batch, tag) => {
      batch.open(0x30)
      batch.out.out.octets(tag.slice(0, 1))
      batch.close(tag)
    },
    bytesMax: () => 20,
    messagesMax: 100,
    ...more,
  }
}

const sequences = (sent: Uint8Array) => messagesIn(sent).map(({ sequence }) => sequence)
const lastOf = (sent: Uint8Array) => sequences(sent).at(-1) ?? 0
const acknowledge = (sent: Uint8Array) => datagram(errorMessage(lastOf(sent), 0))

function tagsIn(sent: Uint8Array): string {
  return messagesIn(sent)
    .map(({ start }) => String.fromCharCode(sent[start + 16] ?? 0))
    .join('')
}

describe('a batch', () => {
  it('numbers its messages, and finds the tag and the place of each', () => {
    const batch = new Batch<string>(7)
    for (const tag of ['a', 'b']) {
      batch.open(0x30, 0x400)
      batch.out.out.octets(tag)
      batch.close(tag)
    }
    batch.acknowledgeLast()
    expect(batch.bytes).toEqual(
      datagram(
        message({ type: 0x30, flags: 0x401, sequence: 7, payload: 'a' }),
        message({ type: 0x30, flags: 0x405, sequence: 8, payload: 'b' }),
      ),
    )
    expect([6, 7, 8, 9].map(sequence => batch.has(sequence))).toEqual([false, true, true, false])
    expect([6, 7, 8].map(sequence => batch.tagOf(sequence))).toEqual([undefined, 'a', 'b'])
    expect([7, 8, 9].map(sequence => batch.at(sequence))).toEqual([
      { tag: 'a', start: 0, end: 20 },
      { tag: 'b', start: 20, end: 40 },
      undefined,
    ])
  })
})

describe('messages that each stand for themselves', () => {
  const tags = ['a', 'b', 'c', 'd', 'e']

  it('go in as few datagrams as their bounds allow, of which the last message is acknowledged', async () => {
    for (const [limit, more] of [
      [45, {}],
      [1 << 20, { messagesMax: 2 }],
      [1 << 20, { datagramBytesMax: 59 }],
    ] as const) {
      const { link, script } = connect(sent => [acknowledge(sent)], limit)
      const result = await sendEach(link, tags, sending(more))
      expect(result).toEqual({ refused: [], loss: undefined, bytes: 100, messages: 5 })
      expect(script.sent.map(tagsIn)).toEqual(['ab', 'cd', 'e'])
      const flags = script.sent.map(sent => messagesIn(sent).map(each => each.flags & NLM_F_ACK))
      expect(flags).toEqual([[0, 4], [0, 4], [4]])
      const numbers = script.sent.flatMap(sequences)
      expect(new Set(numbers).size).toBe(5)
      expect(Math.min(...numbers)).toBeGreaterThan(REQUEST_SEQUENCE_MAX)
    }
  })

  it('that are too long by themselves go alone', async () => {
    const { link, script } = connect(sent => [acknowledge(sent)], 10)
    expect(await sendEach(link, ['a', 'b'], sending())).toMatchObject({ messages: 2 })
    expect(script.sent.map(tagsIn)).toEqual(['a', 'b'])
  })

  it('of which there are none make no datagram', async () => {
    const { link, script } = connect(() => [])
    expect(await sendEach(link, [], sending())).toEqual({
      refused: [],
      loss: undefined,
      bytes: 0,
      messages: 0,
    })
    expect(script.sent).toEqual([])
  })

  it('are refused one by one, in whichever order the answers come', async () => {
    const { link } = connect(sent => {
      const [first = 0, second = 0, third = 0] = sequences(sent)
      return [
        datagram(errorMessage(third, EEXIST)),
        datagram(errorMessage(first - 1, EPERM), errorMessage(third + 1, EPERM)),
        datagram(errorMessage(second, ENOENT)),
      ]
    })
    const { refused, loss } = await sendEach(link, ['a', 'b', 'c'], sending())
    expect(refused.map(({ tag, errno }) => [tag, errno])).toEqual([
      ['c', EEXIST],
      ['b', ENOENT],
    ])
    expect(loss).toBeUndefined()
  })

  it('have an unknown outcome without an answer to the last one, and nothing is sent behind them', async () => {
    const { link, script } = connect(sent => [datagram(errorMessage(sequences(sent)[0] ?? 0, ENOENT))])
    const { refused, loss, messages } = await sendEach(link, tags, sending({ messagesMax: 2 }))
    expect(refused.map(({ tag }) => tag)).toEqual(['a'])
    expect(loss?.message).toContain("commit things: ENODATA (No data available): the kernel's reply was lost")
    expect([messages, script.sent.length]).toEqual([2, 1])
  })

  it('are not answered by what comes late for the datagram before', async () => {
    let late = 0
    const { link, script } = connect(sent => {
      const [previous, answer] = [late, errorMessage(lastOf(sent), 0)]
      late = lastOf(sent)
      return previous === 0 ? [datagram(answer)] : [datagram(errorMessage(previous, EEXIST), answer)]
    })
    expect((await sendEach(link, tags, sending({ messagesMax: 2 }))).refused).toEqual([])
    expect(script.sent).toHaveLength(3)
  })

  it('are all refused when nfnetlink denies the datagram with its first message', async () => {
    const { link } = connect(sent => [datagram(errorMessage(sequences(sent)[0] ?? 0, EPERM))])
    const { refused, loss } = await sendEach(link, ['a', 'b', 'c'], sending())
    expect(refused.map(({ tag, errno }) => [tag, errno])).toEqual(['a', 'b', 'c'].map(tag => [tag, EPERM]))
    expect(loss).toBeUndefined()
  })

  it('are refused from the first on that cannot be sent', async () => {
    const { link, transport } = connect(sent => [acknowledge(sent)])
    let sends = 0
    transport.faults.onSend = sent => {
      if (++sends === 2) throw new SystemError('sendmsg', 90, 'EMSGSIZE')
      return sent
    }
    const { refused, loss, messages } = await sendEach(link, tags, sending({ messagesMax: 2 }))
    expect(refused.map(({ tag, errno, extendedAck }) => [tag, errno, extendedAck])).toEqual(
      ['c', 'd', 'e'].map(tag => [tag, 90, 'nothing was sent (sendmsg: EMSGSIZE)']),
    )
    expect([loss, messages]).toEqual([undefined, 2])
  })

  it('are followed up before the rest', async () => {
    const { link, script } = connect(sent => {
      const [first = 0] = sequences(sent)
      const refusal = tagsIn(sent).startsWith('a') ? [errorMessage(first, EEXIST)] : []
      return [datagram(...refusal, errorMessage(lastOf(sent), 0))]
    })
    const { refused, messages } = await sendEach(
      link,
      tags,
      sending({
        messagesMax: 2,
        followUp: some => ({ refused: [], again: some.map(({ tag }) => tag.toUpperCase()) }),
      }),
    )
    expect(script.sent.map(tagsIn)).toEqual(['ab', 'Ac', 'de'])
    expect([refused, messages]).toEqual([[], 6])
  })

  it('go by the thread pool when they take long', async () => {
    const { link, transport } = connect(sent => [acknowledge(sent)])
    const pooled: number[] = []
    transport.faults.beforePoolSend = async () => {
      pooled.push(1)
    }
    await sendEach(link, tags, sending({ messagesMax: 2, isLong: some => some.includes('c') }))
    expect(pooled).toHaveLength(1)
  })

  it('leave the event loop its turns', async () => {
    const { link, clock } = connect(sent => [acknowledge(sent)])
    let [nowMs, breaths] = [0, 0]
    clock.nowMs = () => nowMs++
    clock.breathe = async () => {
      breaths++
    }
    await sendEach(
      link,
      Array.from({ length: 40 }, () => 'a'),
      sending({ messagesMax: 1 }),
    )
    expect(breaths).toBeGreaterThan(10)
  })
})

describe('a datagram', () => {
  async function send(failures: readonly string[]) {
    const { link, transport, clock, script } = connect(() => [])
    let sends = 0
    transport.faults.onSend = sent => {
      const code = failures[sends++]
      if (code !== undefined) throw new SystemError('sendmsg', 1, code)
      return sent
    }
    const burst = { bytes: Uint8Array.of(1), has: () => false }
    const replies = sendDatagram(link, burst, { pool: true, object: 'things' })
    await clock.advance(1_000)
    return { replies: await replies, sends, sent: script.sent.length }
  }

  it('is sent again when the failure may pass', async () => {
    const { replies, sends, sent } = await send(['EAGAIN', 'ENOBUFS', 'EINTR'])
    expect(replies).toEqual({ errors: [], acknowledged: 0, loss: undefined, unsent: undefined })
    expect([sends, sent]).toEqual([4, 1])
  })

  it('is not sent again when its answer cannot be received', async () => {
    const { link, script } = connect(() => [new SystemError('recvmsg', 4, 'EINTR')])
    const burst = { bytes: Uint8Array.of(1), has: () => false }
    const replies = await sendDatagram(link, burst, { pool: false, object: 'things' })
    expect([replies.unsent, replies.loss?.code, script.sent.length]).toEqual([undefined, 'EINTR', 1])
  })

  it('is given up after four attempts', async () => {
    const { replies, sends, sent } = await send(['ENOMEM', 'ENOMEM', 'ENOMEM', 'ENOMEM'])
    expect(replies.unsent).toMatchObject({ errno: 12, extendedAck: 'nothing was sent (sendmsg: ENOMEM)' })
    expect([sends, sent]).toEqual([4, 0])
  })

  it('is given up at once when trying again cannot help', async () => {
    const { replies, sends } = await send(['EPERM'])
    expect(replies.unsent).toMatchObject({ errno: 1 })
    expect(sends).toBe(1)
  })
})

describe('a receiver of messages', () => {
  const overrun = () => new SystemError('recvmsg', 105, 'ENOBUFS')

  function receiving(...waiting: readonly (Uint8Array | SystemError)[]) {
    const transport = new ScriptedTransport(() => [])
    transport.arriveUnseen(...waiting)
    const counts = { taken: 0, lost: 0 }
    const receive = messageReceiver({
      transport,
      take: () => counts.taken++,
      lost: () => counts.lost++,
    })
    return { receive, counts }
  }

  it('ends its turn when receiving fails again and again', () => {
    const { receive, counts } = receiving(...Array.from({ length: 1_000 }, overrun))
    expect(receive(500)).toBe(2)
    expect(counts).toEqual({ taken: 0, lost: 2 })
  })

  it('goes on behind a failure', () => {
    const one = datagram(errorMessage(1, 0))
    const { receive, counts } = receiving(overrun(), one, overrun(), one, overrun(), one)
    expect(receive(500)).toBe(6)
    expect(counts).toEqual({ taken: 3, lost: 3 })
  })
})

it('numbers of bursts start over before they end', () => {
  const { link } = connect(() => [])
  const first = link.connection.takeSequences(1)
  const count = 0xffff_ffff - first
  expect(link.connection.takeSequences(count - 1)).toBe(first + 1)
  expect(link.connection.takeSequences(1)).toBe(first)
})
