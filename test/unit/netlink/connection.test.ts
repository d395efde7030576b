import { describe, expect, it } from 'vitest'
import type { ByteView } from '../../../src/netlink/attribute.ts'
import { Connection } from '../../../src/netlink/connection.ts'
import type { Request } from '../../../src/netlink/conversation.ts'
import { OutcomeUnknownError } from '../../../src/netlink/errors.ts'
import type { Message } from '../../../src/netlink/message.ts'
import { SystemError } from '../../../src/netlink/transport.ts'
import { FakeClock, settle } from '../../support/fake-clock.ts'
import {
  datagram,
  doneMessage,
  errorMessage,
  message,
  ScriptedTransport,
  sequenceOf,
} from '../../support/scripted-transport.ts'

type Answers = ConstructorParameters<typeof ScriptedTransport>[0]

const LOSS = new SystemError('recvmsg', 105, 'ENOBUFS')

function connect(answers: Answers) {
  const transport = new ScriptedTransport(answers)
  const clock = new FakeClock()
  const connection = new Connection({ transport, clock, timeoutMs: 1000 })
  return { transport, clock, connection }
}

/** A request that collects the payloads of its answers. */
function collecting(): Request & { readonly payloads: string[] } {
  const payloads: string[] = []
  return {
    operation: 'list',
    object: 'things',
    payloads,
    build: sequence => datagram(message({ type: 0x20, sequence })),
    onMessage: (view, { start, end }) => payloads.push(view.bytes.toString('latin1', start, end)),
  }
}

function part(sequence: number, payload: string, flags = 2): string {
  return message({ type: 0x21, flags, sequence, payload })
}

describe('a round trip', () => {
  it('hands the answer over and drops those to other sequence numbers', () => {
    const { connection } = connect(sent => {
      const sequence = sequenceOf(sent)
      return [datagram(part(sequence + 7, 'theirs')), datagram(part(sequence, 'ours'))]
    })
    const request = collecting()
    connection.roundTrip(request)
    expect(request.payloads).toEqual(['ours'])
  })

  it('throws what the kernel says', () => {
    const { connection } = connect(sent => [datagram(errorMessage(sequenceOf(sent), 1))])
    expect(() => connection.roundTrip(collecting())).toThrow('list things: EPERM (Operation not permitted)')
  })

  it('does not know the outcome when no answer is waiting, or it was dropped', () => {
    const silent = connect(() => [])
    expect(() => silent.connection.roundTrip(collecting())).toThrow(OutcomeUnknownError)
    const lossy = connect(() => [LOSS])
    expect(() => lossy.connection.roundTrip(collecting())).toThrow(/ENOBUFS/)
  })

  it.each([
    ['datagram', () => datagram('nonsense')],
    ['error', (sequence: number) => datagram(message({ type: 2, sequence, payload: '\0' }))],
  ])('does not know the outcome when the %s cannot be read', (_, answer) => {
    const { connection } = connect(sent => [answer(sequenceOf(sent))])
    expect(() => connection.roundTrip(collecting())).toThrow(OutcomeUnknownError)
    expect(() => connection.roundTrip(collecting())).toThrow(/EBADMSG .* cannot be read/)
  })

  it('reads the answer to a send that outlasted the limit', () => {
    const { connection, clock } = connect(sent => {
      const sentMs = clock.nowMs()
      clock.nowMs = () => sentMs + 1001
      return [datagram(part(sequenceOf(sent), 'late'))]
    })
    const request = collecting()
    connection.roundTrip(request)
    expect(request.payloads).toEqual(['late'])
  })

  it.each(['EINTR', 'EBADF'])('does not know the outcome when receiving fails with %s', async code => {
    const { connection, clock } = connect(() => [new SystemError('recvmsg', 4, code)])
    expect(() => connection.roundTrip(collecting())).toThrow(OutcomeUnknownError)
    await expect(connection.dump(collecting())).rejects.toThrow(OutcomeUnknownError)
    expect(clock.pending).toBe(0)
  })

  it('ends at the first failure of a socket from which nothing can be received', async () => {
    const { connection, transport } = connect(() => [])
    let calls = 0
    transport.receive = () => {
      if (++calls > 5) return undefined
      throw new SystemError('recvmsg', 9, 'EBADF')
    }
    const burst = { bytes: datagram(), has: () => true }
    const { loss } = await connection.burst(burst, { pool: false, object: 'batch' })
    // Once before the send, and once after it.
    expect([loss?.code, calls]).toEqual(['EBADF', 2])
  })

  it('numbers every request differently', () => {
    const { connection, transport } = connect(sent => [datagram(part(sequenceOf(sent), ''))])
    connection.roundTrip(collecting())
    connection.roundTrip(collecting())
    expect(new Set(transport.sent.map(sequenceOf)).size).toBe(2)
  })
})

describe('many short dumps', () => {
  it('come one after the other, and none after one that was torn', async () => {
    const { connection, transport } = connect(sent => {
      const sequence = sequenceOf(sent)
      const flags = transport.sent.length === 3 ? 2 | 0x10 : 2
      return [datagram(part(sequence, `n${transport.sent.length}`, flags), doneMessage(sequence))]
    })
    const request = collecting()
    const list = [request, request]
    expect(await connection.dumps(request, list)).toBe(true)
    expect(await connection.dumps(request, list)).toBe(false)
    expect(request.payloads).toEqual(['n1', 'n2', 'n3'])
  })

  it('let the event loop have its turn', async () => {
    const { connection, clock } = connect(sent => [datagram(doneMessage(sequenceOf(sent)))])
    let nowMs = 0
    let breaths = 0
    clock.nowMs = () => nowMs++
    clock.breathe = async () => {
      breaths++
    }
    const request = collecting()
    await connection.dumps(request, [request, request, request, request])
    expect(breaths).toBeGreaterThan(0)
  })

  it('end at the first that fails', async () => {
    const { connection, transport } = connect(sent => [datagram(errorMessage(sequenceOf(sent), 2))])
    const request = collecting()
    await expect(connection.dumps(request, [request, request])).rejects.toMatchObject({ code: 'ENOENT' })
    expect(transport.sent).toHaveLength(1)
  })
})

describe('a dump', () => {
  it('collects the messages of all datagrams until the end', async () => {
    const { connection } = connect(sent => {
      const sequence = sequenceOf(sent)
      return [
        datagram(part(sequence, 'a'), part(sequence, 'b')),
        datagram(part(sequence, 'c'), doneMessage(sequence)),
      ]
    })
    const request = collecting()
    expect(await connection.dump(request)).toBe(true)
    expect(request.payloads).toEqual(['a', 'b', 'c'])
  })

  it('says when what it listed changed meanwhile', async () => {
    const { connection } = connect(sent => {
      const sequence = sequenceOf(sent)
      return [datagram(part(sequence, 'a'), part(sequence, 'b', 0x12)), datagram(doneMessage(sequence))]
    })
    expect(await connection.dump(collecting())).toBe(false)
  })

  it('waits for what has not arrived yet', async () => {
    const { connection, transport } = connect(sent => [datagram(part(sequenceOf(sent), 'a'))])
    const request = collecting()
    const dump = connection.dump(request)
    await settle()
    expect(transport.watched).toBe(true)
    transport.arrive(datagram(doneMessage(1)))
    expect(await dump).toBe(true)
    expect(transport.watched).toBe(false)
  })

  it('gives up at the deadline, and leaves no timer and no watch behind', async () => {
    const { connection, transport, clock } = connect(sent => [datagram(part(sequenceOf(sent), 'a'))])
    const dump = expect(connection.dump(collecting())).rejects.toThrow(OutcomeUnknownError)
    await clock.advance(1000)
    await dump
    expect(transport.watched).toBe(false)
    expect(clock.pending).toBe(0)
  })

  it('takes as long as something arrives, up to ten times the limit of silence', async () => {
    for (const parts of [9, 12]) {
      const { connection, transport, clock } = connect(() => [])
      const dump = connection.dump(collecting())
      const isWhole = dump.catch(() => false)
      for (let at = 0; at < parts; at++) {
        await clock.advance(900)
        transport.arrive(datagram(part(1, 'a')))
        await settle()
      }
      transport.arrive(datagram(doneMessage(1)))
      expect(await isWhole).toBe(parts === 9)
    }
  })

  it('reads what arrived while the process waited for its turn, before it gives up', async () => {
    const { connection, transport, clock } = connect(() => [])
    const dump = connection.dump(collecting())
    await settle()
    transport.arriveUnseen(datagram(part(1, 'a'), doneMessage(1)))
    await clock.advance(1000)
    expect(await dump).toBe(true)
  })

  it('rejects with an error, at the start or at the end', async () => {
    const refused = connect(sent => [datagram(errorMessage(sequenceOf(sent), 2))])
    await expect(refused.connection.dump(collecting())).rejects.toMatchObject({ code: 'ENOENT' })
    const broken = connect(sent => [datagram(doneMessage(sequenceOf(sent), 4))])
    await expect(broken.connection.dump(collecting())).rejects.toMatchObject({ code: 'EINTR' })
  })

  it('rejects when datagrams were dropped, or did not fit', async () => {
    const { connection } = connect(() => [new SystemError('recvmsg', 90, 'EMSGSIZE')])
    await expect(connection.dump(collecting())).rejects.toThrow(OutcomeUnknownError)
  })

  it('rejects with what its reader throws', async () => {
    const { connection } = connect(sent => [
      datagram(part(sequenceOf(sent), 'a'), doneMessage(sequenceOf(sent))),
    ])
    const onMessage = (): never => {
      throw new RangeError('mine')
    }
    await expect(connection.dump({ ...collecting(), onMessage })).rejects.toThrow('mine')
  })

  it('goes after the one before it, while round trips come between', async () => {
    const { connection, transport } = connect(sent => {
      const sequence = sequenceOf(sent)
      return sequence === 1
        ? [datagram(part(1, 'first'))]
        : [datagram(part(sequence, 'x'), doneMessage(sequence))]
    })
    const first = collecting()
    const second = collecting()
    const dumps = [connection.dump(first), connection.dump(second)]
    await settle()
    expect(transport.sent).toHaveLength(1)
    const between = collecting()
    connection.roundTrip(between)
    expect(between.payloads).toEqual(['x'])
    transport.arrive(datagram(doneMessage(1)))
    await Promise.all(dumps)
    expect([first.payloads, second.payloads]).toEqual([['first'], ['x']])
  })

  it('has the whole time when its turn comes, however long the one before it took', async () => {
    const { connection, transport, clock } = connect(sent =>
      sequenceOf(sent) === 2 ? [datagram(doneMessage(2))] : [],
    )
    const first = connection.dump(collecting())
    const second = connection.dump(collecting())
    for (let at = 0; at < 3; at++) {
      await clock.advance(900)
      transport.arrive(datagram(part(1, 'a')))
      await settle()
    }
    transport.arrive(datagram(doneMessage(1)))
    expect(await Promise.all([first, second])).toEqual([true, true])
  })

  it('hands its own messages to it that a round trip comes upon', async () => {
    const { connection, transport } = connect(sent => {
      const sequence = sequenceOf(sent)
      return sequence === 1 ? [] : [datagram(part(1, 'late')), datagram(part(sequence, 'x'))]
    })
    const dumped = collecting()
    const dump = connection.dump(dumped)
    await settle()
    connection.roundTrip(collecting())
    transport.arrive(datagram(doneMessage(1)))
    await dump
    expect(dumped.payloads).toEqual(['late'])
  })
})

describe('a burst', () => {
  const burst = {
    bytes: datagram(message({ type: 0x30, sequence: 100 }), message({ type: 0x31, sequence: 101 })),
    has: (sequence: number) => sequence >= 100 && sequence <= 101,
  }

  it.each([false, true])('collects every error (on the thread pool: %s)', async pool => {
    const { connection } = connect(() => [
      datagram(errorMessage(100, 17), errorMessage(101, 0)),
      datagram(errorMessage(101, 2), errorMessage(55, 1)),
    ])
    const { errors, loss } = await connection.burst(burst, { pool, object: 'batch' })
    expect(errors.map(({ sequence, errno }) => [sequence, errno])).toEqual([
      [100, 17],
      [101, 2],
    ])
    expect(loss).toBeUndefined()
  })

  it('shows each error while it can be read, and no acknowledgement', async () => {
    const { connection } = connect(() => [datagram(errorMessage(100, 17), errorMessage(101, 0))])
    const shown: number[] = []
    const onError = (view: ByteView, { start }: Message): number =>
      shown.push(view.data.getInt32(start, true))
    await connection.burst({ ...burst, onError }, { pool: false, object: 'batch' })
    expect(shown).toEqual([-17])
  })

  it('knows when answers were lost, and still collects the others', async () => {
    const { connection } = connect(() => [LOSS, datagram(errorMessage(101, 2))])
    const { errors, loss } = await connection.burst(burst, { pool: false, object: 'batch' })
    expect(errors).toHaveLength(1)
    expect(loss).toMatchObject({ code: 'ENOBUFS', message: expect.stringContaining('reply was lost') })
  })

  it('does not wait for a send that takes longer than the deadline, but lets nobody pass it', async () => {
    const { connection, transport, clock } = connect(sent => [datagram(doneMessage(sequenceOf(sent)))])
    let settleSend = (): void => expect.unreachable()
    transport.send = () =>
      new Promise(resolve => {
        settleSend = resolve
      })
    const replies = connection.burst(burst, { pool: true, object: 'batch' })
    await clock.advance(1000)
    expect((await replies).loss).toMatchObject({ code: 'ETIMEDOUT' })
    const dump = connection.dump(collecting())
    await settle()
    expect(transport.sent).toHaveLength(0)
    settleSend()
    expect(await dump).toBe(true)
  })

  it('rejects when nothing could be sent', async () => {
    const { connection } = connect(() => {
      throw new SystemError('sendmsg', 105, 'ENOBUFS')
    })
    await expect(connection.burst(burst, { pool: false, object: 'batch' })).rejects.toThrow(SystemError)
    await expect(connection.burst(burst, { pool: true, object: 'batch' })).rejects.toThrow(SystemError)
  })
})

it('closes its socket', async () => {
  const { connection, transport } = connect(() => [])
  await connection.close()
  expect(transport.closed).toBe(true)
})
