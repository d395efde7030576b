import { describe, expect, it } from 'vitest'
import { AttemptReader, judgeList, placeKey } from '../../../src/flows/attempts.ts'
import { readTimeouts } from '../../../src/kernel/conntrack/timeouts.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { FakeConntrack } from '../../support/fake-conntrack.ts'
import { type Entry, entry, socket } from '../kernel/conntrack/flows.ts'

const VIP = '10.96.0.1:80'
const [A, B, C] = ['10.1.0.1:8080', '10.1.0.2:8080', '10.1.0.3:8080']
const [D, E, F] = ['10.1.0.4:8080', '10.1.0.5:8080', '10.1.0.6:8080']
const TIMEOUTS = readTimeouts(() => undefined)

/** TCP_CONNTRACK_* with their timeouts in s. */
const STATES = {
  synSent: [1, 120],
  synReceived: [2, 60],
  established: [3, 432_000],
  finWait: [4, 120],
  closeWait: [5, 60],
  lastAck: [6, 30],
  timeWait: [7, 120],
  close: [8, 10],
} as const

interface Words {
  readonly protocol?: 'TCP' | 'UDP'
  readonly client?: string
  /** Seconds since the last packet. */
  readonly agoS?: number
  readonly state?: keyof typeof STATES
}

let port = 1_024

/** Connections of one client, each from a port of its own. */
function attempts(to: string, count: number, words: Words = {}) {
  const { protocol = 'TCP', client = '10.2.0.1', agoS = 1, state = 'synSent' } = words
  const [tcpState, full] = STATES[state]
  const ends = protocol === 'TCP' ? { tcpState, timeoutS: full - agoS } : { timeoutS: 30 - agoS }
  return Array.from({ length: count }, () =>
    entry(`${client}:${port++}`, VIP, to, { protocol, isHalfOpen: true, isDnat: false, ...ends }),
  )
}

function answer(by: string, words: Words = {}) {
  const { protocol = 'TCP', client = '10.2.0.1', agoS = 0, state = 'timeWait' } = words
  const [tcpState, full] = STATES[state]
  const ends = protocol === 'TCP' ? { tcpState, timeoutS: full - agoS } : { timeoutS: 120 - agoS }
  return entry(`${client}:${port++}`, VIP, by, { protocol, ...ends })
}

const keyOf = (protocol: 'TCP' | 'UDP', text: string) => {
  const { ip, port: number } = socket(text)
  return placeKey({ protocol, ip, port: number })
}

interface Port {
  readonly endpoints: readonly string[]
  readonly out?: readonly string[]
  readonly protocol?: 'TCP' | 'UDP'
  readonly ways?: ConstructorParameters<typeof FakeConntrack>[1]
}

/** Reads as often as there are lists of entries, `ms` apart, and judges the last reading. */
async function judged(readings: readonly (readonly Entry[])[], its: Port, ms = 1_000) {
  const { endpoints, out = [], protocol = 'TCP', ways } = its
  const clock = new FakeClock()
  const conntrack = new FakeConntrack([], ways)
  const reader = new AttemptReader({ conntrack, clock, isStopped: () => false })
  const places = endpoints.map(text => keyOf(protocol, text))
  const isOut = (place: string) => out.some(text => keyOf(protocol, text) === place)
  let judgment: ReturnType<typeof judgeList> = { silent: new Map(), isDead: false }
  for (const entries of readings) {
    conntrack.entries = entries
    const { waiting, suspects } = await reader.unanswered(TIMEOUTS)
    if (suspects.size === 0) reader.forgetAnswers()
    else judgment = judgeList({ places, isOut }, waiting, await reader.answers(TIMEOUTS))
    await clock.advance(ms)
  }
  return judgment
}

async function silentOf(readings: readonly (readonly Entry[])[], its: Port, ms?: number) {
  const { silent } = await judged(readings, its, ms)
  return its.endpoints.filter(text => silent.has(keyOf(its.protocol ?? 'TCP', text)))
}

/** These wait in two readings, and the others are new in the second. */
const meanwhile = (waiting: readonly Entry[], ...news: readonly Entry[]) => [waiting, [...waiting, ...news]]

const pair = { endpoints: [A, B] }

describe('an endpoint is silent', () => {
  it.each(['synReceived', 'established', 'timeWait'] as const)(
    'if three attempts wait for a second while another one answers the client: %s',
    async state => {
      expect(await silentOf(meanwhile(attempts(A, 3), answer(B, { state })), pair)).toEqual([A])
    },
  )

  it('on kernels that list all entries, too', async () => {
    const ways = { ignoresFilter: true }
    const readings = meanwhile(attempts(A, 3), ...attempts(A, 1), answer(B))
    expect(await silentOf(readings, { ...pair, ways })).toEqual([A])
  })

  it('if three clients wait, though no other endpoint answers these', async () => {
    const three = ['10.2.0.2', '10.2.0.3', '10.2.0.4'].flatMap(client => attempts(A, 1, { client }))
    expect(await silentOf(meanwhile(three, answer(B)), pair)).toEqual([A])
  })

  it('if one client waits that another endpoint answers beside many', async () => {
    const many = Array.from({ length: 20 }, (_, at) => answer(B, { client: `10.3.0.${at}` }))
    expect(await silentOf(meanwhile(attempts(A, 3), ...many, answer(B)), pair)).toEqual([A])
  })

  it('if it answers UDP no more', async () => {
    const udp = { protocol: 'UDP' } as const
    expect(await silentOf(meanwhile(attempts(A, 3, udp), answer(B, udp)), { ...pair, ...udp })).toEqual([A])
  })

  it.each(['established', 'finWait', 'closeWait', 'lastAck', 'timeWait'] as const)(
    'though its clients renew old entries of it: %s',
    async state => {
      const waiting = [...attempts(A, 3), answer(A, { state, agoS: 1 })]
      expect(await silentOf(meanwhile(waiting, answer(B)), pair)).toEqual([A])
    },
  )
})

describe('an endpoint is not silent', () => {
  it.each<[string, readonly (readonly Entry[])[]]>([
    ['two attempts wait', meanwhile(attempts(A, 2), answer(B))],
    ['no other one answers', meanwhile(attempts(A, 3))],
    ['the others wait as well', meanwhile([...attempts(A, 3), ...attempts(B, 3), answer(B, { agoS: 2 })])],
    ['it answers, too', meanwhile(attempts(A, 9), answer(A), answer(B))],
    ['the other one refuses', meanwhile(attempts(A, 3), answer(B, { state: 'close' }))],
    ['one client waits that nobody answers', meanwhile(attempts(A, 9), answer(B, { client: '10.2.0.7' }))],
    ['its clients gave up long ago', meanwhile(attempts(A, 9, { agoS: 11 }), answer(B))],
    ['streams wait that began elsewhere', meanwhile(attempts(A, 3, { state: 'established' }), answer(B))],
    [
      'a pod cannot reach itself',
      meanwhile(attempts(A, 3, { client: '10.1.0.1' }), answer(B, { client: '10.1.0.1' })),
    ],
  ])('where %s', async (_, readings) => {
    expect(await silentOf(readings, pair)).toEqual([])
  })

  it.each(['established', 'finWait', 'closeWait', 'lastAck', 'timeWait'] as const)(
    'where clients alone renew old entries of the others: %s',
    async state => {
      const readings = meanwhile([...attempts(A, 3), answer(B, { state })])
      expect(await silentOf(readings, pair)).toEqual([])
      expect(await silentOf([...readings, ...readings], pair)).toEqual([])
    },
  )

  it('where a client goes on to send UDP to another one', async () => {
    const udp = { protocol: 'UDP' } as const
    const waiting = [...attempts(A, 3, udp), answer(B, udp)]
    expect(await silentOf(meanwhile(waiting), { ...pair, ...udp })).toEqual([])
  })

  it('where others answered only before the attempts', async () => {
    const [earlier, answered] = [attempts(C, 3), answer(B)]
    const waiting = [...earlier, ...attempts(A, 3), answered]
    expect(await silentOf([earlier, [...earlier, answered], waiting, waiting], pair)).toEqual([])
  })

  it('where it may have answered after the attempts began', async () => {
    const [first, second] = [attempts(A, 2), attempts(A, 1)]
    const waiting = [...first, ...second, answer(A, { agoS: 1 })]
    const readings = [first, first, ...meanwhile(waiting, answer(B))]
    expect(await silentOf(readings, pair)).toEqual([])
  })

  it('where it answers now and then', async () => {
    const before = [...attempts(A, 3), answer(A)]
    const now = [...before, ...attempts(A, 3)]
    expect(
      await silentOf([before.slice(0, 3), before, ...meanwhile(now, answer(A), answer(B))], pair),
    ).toEqual([])
  })

  it('by attempts that one reading alone has found', async () => {
    const waiting = attempts(A, 3)
    const others = attempts(C, 3)
    expect(await silentOf([others, [...others, ...waiting, answer(B)]], pair)).toEqual([])
    expect(
      await silentOf(
        [
          [...others, ...waiting],
          [...others, answer(B)],
        ],
        pair,
      ),
    ).toEqual([])
  })

  it('before a second is over', async () => {
    expect(await silentOf(meanwhile(attempts(A, 3), answer(B)), pair, 900)).toEqual([])
  })
})

it('compares with no listing that lacks entries', async () => {
  const clock = new FakeClock()
  const conntrack = new FakeConntrack([answer(B)])
  const reader = new AttemptReader({ conntrack, clock, isStopped: () => false })
  const clientsOfB = async () => (await reader.answers(TIMEOUTS)).get(keyOf('TCP', B))?.clients.size
  conntrack.isTorn = true
  expect(await clientsOfB()).toBe(0)
  conntrack.isTorn = false
  conntrack.entries = [...conntrack.entries, answer(B)]
  expect(await clientsOfB()).toBe(0)
  conntrack.entries = [...conntrack.entries, answer(B)]
  expect(await clientsOfB()).toBe(1)
})

describe('at most a third of a list', () => {
  it('is out, with those that are out already, the most silent first', async () => {
    const endpoints = [A, B, C, D, E, F]
    const all = meanwhile([...attempts(A, 3), ...attempts(B, 5), ...attempts(C, 4)], answer(D))
    expect(await silentOf(all, { endpoints })).toEqual([B, C])
    expect(await silentOf(all, { endpoints, out: [E] })).toEqual([B])
    expect(await silentOf(all, { endpoints, out: [E, F] })).toEqual([])
  })

  it('and one of two', async () => {
    const both = meanwhile(attempts(A, 3), answer(B))
    expect(await silentOf(both, { endpoints: [A, B], out: [B] })).toEqual([])
    expect(await silentOf(meanwhile(attempts(A, 3)), { endpoints: [A] })).toEqual([])
  })
})

it('a list is dead if every endpoint that is used is silent', async () => {
  const dead = meanwhile([...attempts(A, 3), ...attempts(B, 3)])
  expect(await judged(dead, { endpoints: [A, B, C], out: [C] })).toMatchObject({ isDead: true })
  expect(await judged(dead, { endpoints: [A, B, C] })).toMatchObject({ isDead: false })
})
