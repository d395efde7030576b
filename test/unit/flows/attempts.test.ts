import { describe, expect, it } from 'vitest'
import { AttemptReader, placeKey, silentIn } from '../../../src/flows/attempts.ts'
import { readTimeouts } from '../../../src/kernel/conntrack/timeouts.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { FakeConntrack } from '../../support/fake-conntrack.ts'
import { type Entry, entry, socket } from '../kernel/conntrack/flows.ts'

const VIP = '10.96.0.1:80'
const [A, B, C] = ['10.1.0.1:8080', '10.1.0.2:8080', '10.1.0.3:8080']
const [D, E, F] = ['10.1.0.4:8080', '10.1.0.5:8080', '10.1.0.6:8080']
const TIMEOUTS = readTimeouts(() => undefined)

interface Words {
  readonly protocol?: 'TCP' | 'UDP'
  readonly client?: string
  /** Seconds since the last packet. */
  readonly agoS?: number
}

let port = 1_024

/** Connections of one client, each from a port of its own. */
function attempts(
  to: string,
  count: number,
  { protocol = 'TCP', client = '10.2.0.1', agoS = 1 }: Words = {},
) {
  const timeoutS = (protocol === 'TCP' ? 120 : 30) - agoS
  return Array.from({ length: count }, () =>
    entry(`${client}:${port++}`, VIP, to, { protocol, isHalfOpen: true, isDnat: false, timeoutS }),
  )
}

/** TCP_CONNTRACK_ESTABLISHED and _TIME_WAIT with their timeouts in s; FIN_WAIT may be the client's alone. */
const STATES = { established: [3, 432_000], timeWait: [7, 120], finWait: [4, 120] } as const

function answer(
  by: string,
  { client = '10.2.0.1', agoS = 1 }: Words = {},
  state: keyof typeof STATES = 'timeWait',
) {
  const [tcpState, full] = STATES[state]
  return entry(`${client}:${port++}`, VIP, by, { protocol: 'TCP', tcpState, timeoutS: full - agoS })
}

const keyOf = (protocol: 'TCP' | 'UDP', text: string) => {
  const { ip, port: number } = socket(text)
  return placeKey(protocol, ip, number)
}

interface Port {
  readonly endpoints: readonly string[]
  readonly out?: readonly string[]
  readonly protocol?: 'TCP' | 'UDP'
}

/** Reads twice, `ms` apart, and gives the endpoints that are to be taken out. */
async function silentOf(first: readonly Entry[], second: readonly Entry[], its: Port, ms = 1_000) {
  const { endpoints, out = [], protocol = 'TCP' } = its
  const clock = new FakeClock()
  const conntrack = new FakeConntrack(first)
  const reader = new AttemptReader({ conntrack, clock })
  await reader.unanswered(TIMEOUTS)
  await clock.advance(ms)
  conntrack.entries = second
  const waiting = await reader.unanswered(TIMEOUTS)
  const places = endpoints.map(text => keyOf(protocol, text))
  const answers = await reader.answers(new Set(places), TIMEOUTS)
  const isOut = (place: string) => out.some(text => keyOf(protocol, text) === place)
  const silent = silentIn({ places, isOut }, waiting, answers).map(({ place }) => place)
  return endpoints.filter(text => silent.includes(keyOf(protocol, text)))
}

const stays = (entries: readonly Entry[], its: Port, ms?: number) => silentOf(entries, entries, its, ms)

describe('an endpoint is silent', () => {
  it('if three attempts wait for a second while another one answers the client', async () => {
    expect(await stays([...attempts(A, 3), answer(B)], { endpoints: [A, B] })).toEqual([A])
    expect(await stays([...attempts(A, 3), answer(B, {}, 'established')], { endpoints: [A, B] })).toEqual([A])
  })

  it('if three clients wait, though no other endpoint answers these', async () => {
    const three = ['10.2.0.2', '10.2.0.3', '10.2.0.4'].flatMap(client => attempts(A, 1, { client }))
    expect(await stays([...three, answer(B)], { endpoints: [A, B] })).toEqual([A])
  })

  it('if it answers UDP no more', async () => {
    const udp = { protocol: 'UDP', endpoints: [A, B] } as const
    const answered = entry(`10.2.0.1:${port++}`, VIP, B, { timeoutS: 119 })
    // An entry that is a stream proves nothing: its client may send for ever.
    expect(await stays([...attempts(A, 3, { protocol: 'UDP' }), answered], udp)).toEqual([])
  })
})

describe('an endpoint is not silent', () => {
  const pair = { endpoints: [A, B] }

  it.each<[string, () => readonly Entry[]]>([
    ['two attempts wait', () => [...attempts(A, 2), answer(B)]],
    ['no other one answers', () => attempts(A, 3)],
    ['the others wait as well', () => [...attempts(A, 3), ...attempts(B, 3), answer(B, { agoS: 2 })]],
    ['it answered in the last second', () => [...attempts(A, 9), answer(A), answer(B)]],
    ['others answered only before the attempts', () => [...attempts(A, 3), answer(B, { agoS: 5 })]],
    ['one client waits that nobody answers', () => [...attempts(A, 9), answer(B, { client: '10.2.0.7' })]],
    ['its clients gave up long ago', () => [...attempts(A, 9, { agoS: 11 }), answer(B)]],
    ['others only got a FIN', () => [...attempts(A, 3), answer(B, {}, 'finWait')]],
  ])('where %s', async (_, entries) => {
    expect(await stays(entries(), pair)).toEqual([])
  })

  it('by attempts that one reading alone has found', async () => {
    const waiting = attempts(A, 3)
    expect(await silentOf([], [...waiting, answer(B)], pair)).toEqual([])
    expect(await silentOf(waiting, [answer(B)], pair)).toEqual([])
  })

  it('before a second is over', async () => {
    expect(await stays([...attempts(A, 3), answer(B)], pair, 900)).toEqual([])
  })
})

describe('at most a third of a port', () => {
  it('is out, with those that are out already, the most silent first', async () => {
    const endpoints = [A, B, C, D, E, F]
    const all = [...attempts(A, 3), ...attempts(B, 5), ...attempts(C, 4), answer(D)]
    expect(await stays(all, { endpoints })).toEqual([B, C])
    expect(await stays(all, { endpoints, out: [E] })).toEqual([B])
    expect(await stays(all, { endpoints, out: [E, F] })).toEqual([])
  })

  it('and one of two', async () => {
    const both = [...attempts(A, 3), answer(B)]
    expect(await stays(both, { endpoints: [A, B], out: [B] })).toEqual([])
    expect(await stays(attempts(A, 3), { endpoints: [A] })).toEqual([])
  })
})
