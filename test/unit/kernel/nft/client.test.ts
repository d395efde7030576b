import { describe, expect, it } from 'vitest'
import { createNftClient } from '../../../../src/kernel/nft/client.ts'
import { generationReader } from '../../../../src/kernel/nft/dump.ts'
import type { Operation } from '../../../../src/kernel/nft/transaction.ts'
import { Connection } from '../../../../src/netlink/connection.ts'
import { SystemError } from '../../../../src/netlink/transport.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { columns } from '../../../support/owned.ts'
import {
  attribute,
  be32,
  datagram,
  doneMessage,
  errorMessage,
  message,
  ScriptedTransport,
  sequenceOf,
  typeOf,
} from '../../../support/scripted-transport.ts'
import { declare } from '../../../support/whole-ruleset.ts'

const GETGEN = 0x0a10
const BATCH_BEGIN = 0x10
const TABLES = [{ family: 'ip', name: 't' }] as const

const idOf = (generation: number) => attribute(1, be32(generation))
const generationAnswer = (sequence: number, attributes: string) =>
  datagram(message({ type: 0x0a0f, sequence, payload: `\0\0\0\0${attributes}` }))

type Answer = Uint8Array | SystemError

/** What a kernel does with a batch; by default it commits it. */
interface Kernel {
  generation: number
  batch: (first: number) => readonly Answer[]
  readonly pooled: number[]
}

function start() {
  const kernel: Kernel = {
    generation: 10,
    batch: () => {
      kernel.generation++
      return []
    },
    pooled: [],
  }
  const transport = new ScriptedTransport(sent => {
    const sequence = sequenceOf(sent)
    if (typeOf(sent) === BATCH_BEGIN) return kernel.batch(sequence)
    if (typeOf(sent) !== GETGEN) return [datagram(doneMessage(sequence))]
    return [generationAnswer(sequence, idOf(kernel.generation))]
  })
  const send = transport.send.bind(transport)
  transport.send = bytes => {
    kernel.pooled.push(bytes.length)
    return send(bytes)
  }
  const clock = new FakeClock()
  return { kernel, clock, transport, client: createNftClient({ transport, clock }) }
}

const target = { family: 'ip', table: 'kube-proxy' } as const
const ADD_CHAIN: Operation = {
  ...target,
  verb: 'add-chain',
  chain: { name: 'c', hook: undefined, rules: [] },
}

function addElements(count: number): Operation {
  const set = declare('frontends', {})
  const elements = Array.from({ length: count }, (_, i) => ({
    element: { set: set.name, key: `k${i}`, data: undefined, comment: '' },
    group: `ns1/web-${i}`,
  }))
  return { ...target, verb: 'add-elements', set, ...columns(elements) }
}

describe('a commit', () => {
  it('succeeds when nothing failed and the generation moved', async () => {
    const { client, transport } = start()
    expect(await client.commit([ADD_CHAIN])).toMatchObject({
      outcome: 'committed',
      generation: 11,
      foreign: false,
      failures: [],
      messages: 3,
    })
    await client.close()
    expect(transport.closed).toBe(true)
  })

  it('is not refused because the question for the generation behind it failed', async () => {
    const ENOMEM = 12
    const { client, kernel, transport } = start()
    const { receive } = transport
    let question = 0
    transport.receive = into => {
      const length = receive.call(transport, into)
      const sequence = length === undefined ? 0 : sequenceOf(into)
      if (sequence < 0x8000_0000 || question > 0) return length
      question = sequence
      const failed = datagram(errorMessage(question, ENOMEM))
      into.set(failed)
      return failed.length
    }
    expect(await client.commit([ADD_CHAIN])).toMatchObject({ outcome: 'committed', generation: 11 })
    expect([question > 0, kernel.generation]).toEqual([true, 11])
  })

  it('is unknown when answers were dropped, although the generation moved', async () => {
    const { client, kernel } = start()
    kernel.batch = () => {
      kernel.generation++
      return [new SystemError('recvmsg', 105, 'ENOBUFS')]
    }
    expect(await client.commit([ADD_CHAIN])).toMatchObject({ outcome: 'unknown', generation: 11 })
  })

  it('is unknown when the generation behind it cannot be read', async () => {
    const { client, transport } = start()
    client.generation()
    const { sendSync } = transport
    transport.sendSync = bytes => {
      if (typeOf(bytes) === GETGEN) throw new SystemError('sendmsg', 12, 'ENOMEM')
      sendSync.call(transport, bytes)
    }
    expect(await client.commit([ADD_CHAIN])).toMatchObject({ outcome: 'unknown', generation: 10 })
  })

  it('blames an error about the whole batch on no element', async () => {
    const { client, kernel } = start()
    kernel.batch = first => [datagram(errorMessage(first, 1))]
    const { outcome, failures } = await client.commit([addElements(1), ADD_CHAIN])
    expect(outcome).toBe('refused')
    expect(failures).toMatchObject([{ elements: [], error: { code: 'EPERM', operation: 'commit' } }])
  })

  it('names a generation three times, and then none', async () => {
    const { client, kernel, transport } = start()
    const ERESTART = 85
    kernel.batch = first => {
      kernel.generation++
      return [datagram(errorMessage(first, ERESTART))]
    }
    expect(await client.commit([ADD_CHAIN])).toMatchObject({ outcome: 'stale', foreign: true })
    const batches = transport.sent.filter(sent => typeOf(sent) === BATCH_BEGIN)
    expect(batches.map(batch => Buffer.from(batch).readUInt32BE(24))).toEqual([10, 11, 12, 0])
  })

  it('notices that somebody committed before it, or beside it', async () => {
    const { client, kernel } = start()
    await client.commit([ADD_CHAIN])
    kernel.generation++
    expect(await client.commit([ADD_CHAIN])).toMatchObject({ foreign: true })
    expect(await client.commit([ADD_CHAIN])).toMatchObject({ foreign: false })
    kernel.batch = () => {
      kernel.generation += 2
      return []
    }
    expect(await client.commit([ADD_CHAIN])).toMatchObject({ outcome: 'committed', foreign: true })
  })

  it('knows that the counter of generations leaves out zero', async () => {
    const { client, kernel } = start()
    kernel.generation = 0xffffffff
    kernel.batch = () => {
      kernel.generation = 1
      return []
    }
    expect(await client.commit([ADD_CHAIN])).toMatchObject({
      outcome: 'committed',
      foreign: false,
      generation: 1,
    })
  })

  it('goes by the thread pool when it has many elements or many bytes', async () => {
    const { client, kernel } = start()
    await client.commit([addElements(500)])
    expect(kernel.pooled).toHaveLength(0)
    await client.commit([addElements(501)])
    expect(kernel.pooled).toHaveLength(1)
    const rule = { expressions: [], comment: 'x'.repeat(200) }
    await client.commit(
      Array.from({ length: 400 }, () => ({ ...target, verb: 'add-rule', chain: 'c', rule }) as const),
    )
    expect(kernel.pooled).toHaveLength(2)
    const compiled = { compiled: 'x'.repeat(600), protocol: 0, protocolInverted: false }
    const insertion = { ...target, verb: 'insert-rule', chain: 'c', rule: compiled } as const
    await client.commit(Array.from({ length: 50 }, () => insertion))
    expect(kernel.pooled).toHaveLength(2)
    await client.commit(Array.from({ length: 150 }, () => insertion))
    expect(kernel.pooled).toHaveLength(3)
  })

  it('leaves the bytes alone that a send in the thread pool has not read by its deadline', async () => {
    const { client, transport, clock } = start()
    let inFlight: Uint8Array = new Uint8Array()
    transport.send = bytes => {
      inFlight = bytes
      return new Promise(() => undefined)
    }
    const late = client.commit([addElements(501)])
    await clock.advance(0)
    const asSent = inFlight.slice()
    await clock.advance(15_000)
    expect(await late).toMatchObject({ outcome: 'unknown' })
    void client.commit([ADD_CHAIN])
    await clock.advance(0)
    expect(asSent.length).toBeGreaterThan(0)
    expect(inFlight).toEqual(asSent)
  })

  it('is refused after four sends that failed, since nothing was sent', async () => {
    const { client, kernel, clock } = start()
    let sends = 0
    kernel.batch = () => {
      sends++
      throw new SystemError('sendmsg', 1, 'ENOBUFS')
    }
    const result = client.commit([ADD_CHAIN])
    await clock.advance(1000)
    const { outcome, failures } = await result
    expect(outcome).toBe('refused')
    expect(failures[0]?.error.message).toMatch(/ENOBUFS .*nothing was sent/)
    expect(sends).toBe(4)
  })
})

describe('a listing', () => {
  const NEWTABLE = 0x0a00
  const table = (sequence: number) => {
    const payload = `\x02\0\0\0${attribute(1, 't\0')}${attribute(2, be32(0))}`
    return message({ type: NEWTABLE, flags: 2, sequence, payload })
  }

  /** A kernel with one empty table; `disturb` runs at each dump. */
  function listing(disturb: (kernel: { generation: number }, dumps: number) => string) {
    const kernel = { generation: 5 }
    let dumps = 0
    const transport = new ScriptedTransport(sent => {
      const sequence = sequenceOf(sent)
      if (typeOf(sent) === GETGEN) {
        return [generationAnswer(sequence, idOf(kernel.generation))]
      }
      const extra = disturb(kernel, ++dumps)
      if (extra === 'ENOENT') return [datagram(errorMessage(sequence, 2))]
      const flags = extra === 'interrupted' ? 0x12 : 2
      const tables = typeOf(sent) === 0x0a01 ? table(sequence) : ''
      return [datagram(tables, message({ type: 3, flags, sequence, payload: be32(0) }))]
    })
    const clock = new FakeClock()
    return { client: createNftClient({ transport, clock }), clock, dumps: () => dumps }
  }

  it('is repeated until nobody committed meanwhile', async () => {
    const { client, clock, dumps } = listing((kernel, dumps) => {
      if (dumps <= 4) kernel.generation++
      return ''
    })
    const result = client.list(TABLES)
    await clock.advance(1000)
    expect(await result).toMatchObject({ generation: 9, ruleset: { tables: [{ name: 't' }] } })
    expect(dumps()).toBe(8)
  })

  it.each(['interrupted', 'ENOENT'])('is repeated when a dump was %s', async how => {
    const { client, clock, dumps } = listing((_, dumps) => (dumps === 2 ? how : ''))
    const result = client.list(TABLES)
    await clock.advance(1000)
    expect((await result).ruleset.tables).toHaveLength(1)
    // Tables, chains, rules and sets, twice.
    expect(dumps()).toBe(8)
  })

  it('is unsettled when somebody commits all the time, and from before the first of them', async () => {
    const { client, clock, dumps } = listing((kernel, dumps) => {
      kernel.generation++
      // The last attempt: rules and sets may be torn, tables and chains are dumped again.
      return dumps === 33 || dumps === 35 || dumps === 37 ? 'interrupted' : ''
    })
    const result = client.list(TABLES)
    await clock.advance(10_000)
    expect(await result).toMatchObject({
      unsettled: true,
      generation: 5 + 32,
      ruleset: { tables: [{ name: 't' }] },
    })
    expect(dumps()).toBe(38)
  })

  it('ends with an error when tables come and go all the time', async () => {
    const { client, clock } = listing(kernel => {
      kernel.generation++
      return 'interrupted'
    })
    const result = expect(client.list(TABLES)).rejects.toMatchObject({
      code: 'EAGAIN',
      message: expect.stringContaining('list table ip t'),
    })
    await clock.advance(10_000)
    await result
  })

  it('lets a generation that is read in between count as seen', async () => {
    const { client } = listing(() => '')
    expect((await client.list(TABLES)).generation).toBe(client.generation())
  })
})

describe('a reader of the generation', () => {
  const PROCESS_NAME = attribute(2, 'nft\0')
  const reading = (answer: (sequence: number) => Uint8Array) => {
    const transport = new ScriptedTransport(sent => [answer(sequenceOf(sent))])
    return { transport, read: generationReader(new Connection({ transport, clock: new FakeClock() })) }
  }

  it('reads each generation, also one beyond 31 bits', () => {
    let generation = 7
    const { read } = reading(sequence => generationAnswer(sequence, PROCESS_NAME + idOf(generation)))
    expect(read()).toBe(7)
    generation = 0xfffffffe
    expect(read()).toBe(0xfffffffe)
  })

  it('sends the same datagram each time, under another sequence number', () => {
    const { read, transport } = reading(sequence => generationAnswer(sequence, idOf(7)))
    read()
    read()
    const [first = new Uint8Array(), second = new Uint8Array()] = transport.sent
    expect(sequenceOf(first)).not.toBe(sequenceOf(second))
    expect([...first.slice(0, 8), ...first.slice(12)]).toEqual([...second.slice(0, 8), ...second.slice(12)])
  })

  it.each<[string, (sequence: number) => Uint8Array, string]>([
    [
      'without the generation',
      sequence => generationAnswer(sequence, PROCESS_NAME),
      'a message without its id',
    ],
    ['without attributes', sequence => generationAnswer(sequence, ''), 'a message without its id'],
    [
      'that is empty',
      sequence => datagram(errorMessage(sequence, 0)),
      'read nf_tables generation: EPROTO (Protocol error): an empty answer',
    ],
  ])('rejects an answer %s, whatever it read before', (_, broken, words) => {
    const answers = [(sequence: number) => generationAnswer(sequence, idOf(8)), broken]
    const { read } = reading(sequence => answers.shift()?.(sequence) ?? new Uint8Array())
    expect(read()).toBe(8)
    expect(read).toThrow(words)
  })
})
