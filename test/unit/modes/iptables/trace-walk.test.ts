import { describe, expect, it } from 'vitest'
import { IPPROTO_TCP } from '../../../../src/kernel/nft/constants.ts'
import type { XtAddress, XtMatch, XtRule, XtTarget } from '../../../../src/kernel/xt/rule.ts'
import type { XtTableName } from '../../../../src/kernel/xt/scope.ts'
import type { DynamicElements } from '../../../../src/proof/evaluate/single.ts'
import type { TracePacket, Tracer, TraceSurroundings } from '../../../../src/proof/evaluate/trace.ts'
import { ip4, ip6 } from '../../../support/frontends.ts'
import { createXtTracer } from '../../../support/tracers.ts'

/* Rules of no Service: what each match, target and hook does. */

const NODE_IP = ip4(192, 168, 0, 2)
const OUTSIDE = ip4(203, 0, 113, 9)
const FAR = ip4(198, 51, 100, 7)
const POD = ip4(10, 180, 0, 1)

type Rules = Readonly<Record<string, readonly XtRule[]>>

function tableNamed(name: string | undefined): XtTableName {
  return name === 'mangle' || name === 'filter' ? name : 'nat'
}

function rule(target: XtTarget | undefined, more: Partial<XtRule> = {}): XtRule {
  return { matches: [], ...more, target }
}

function when(match: XtMatch, target: XtTarget | undefined): XtRule {
  return rule(target, { matches: [match] })
}

const ACCEPT = { kind: 'ACCEPT' } as const
const DROP = { kind: 'DROP' } as const
const REJECT = { kind: 'REJECT', with: 'icmp-port-unreachable' } as const
const MASQUERADE = { kind: 'MASQUERADE', randomFully: true } as const
const jump = (chain: string) => ({ kind: 'jump', chain }) as const
const dnat = (port: number) => ({ kind: 'DNAT', ip: POD, port }) as const

/** Packets pass nat chains only where some rule of the family lets the kernel track connections. */
const TRACKS: Rules = { 'ip nat TRACKS': [rule(MASQUERADE)], 'ip6 nat TRACKS': [rule(MASQUERADE)] }

function tracer(chains: Rules): Tracer {
  return createXtTracer(() => ({
    chains: Object.entries({ ...TRACKS, ...chains }).map(([key, rules]) => {
      const [family, table, name = ''] = key.split(' ')
      return { family: family === 'ip6' ? 'ip6' : 'ip', table: tableNamed(table), name, rules, last: [] }
    }),
    jumps: [],
    print: ({ target }) => `-j ${target?.kind}`,
  }))
}

function packet(more: Partial<TracePacket> = {}): TracePacket {
  return {
    origin: 'interface',
    interfaceName: 'ext0',
    protocol: IPPROTO_TCP,
    source: OUTSIDE,
    sourcePort: 40_000,
    destination: FAR,
    destinationPort: 80,
    ...more,
  }
}

const AROUND: TraceSurroundings = { localIps: new Set([NODE_IP]), random: () => 0 }

function run(chains: Rules, more: Partial<TracePacket> = {}, around: Partial<TraceSurroundings> = {}) {
  return tracer(chains).trace(packet(more), { ...AROUND, ...around })
}

/** Whether a packet meets the one rule there is. */
function meets(its: Partial<XtRule>, more: Partial<TracePacket> = {}): boolean {
  return run({ 'ip nat PREROUTING': [rule(DROP, its)] }, more).verdict === 'drop'
}

describe('hooks of iptables', () => {
  const everywhere = Object.fromEntries(
    ['mangle', 'filter', 'nat'].flatMap(table =>
      ['PREROUTING', 'INPUT', 'FORWARD', 'OUTPUT', 'POSTROUTING'].map(hook => [
        `ip ${table} ${hook}`,
        [rule(undefined)],
      ]),
    ),
  )
  const way = (more: Partial<TracePacket>) => run(everywhere, more).steps.map(({ chain }) => chain.slice(3))

  it('end with INPUT for this node', () => {
    expect(way({ destination: NODE_IP }).slice(2)).toEqual(['mangle INPUT', 'filter INPUT', 'nat INPUT'])
  })

  it('begin with OUTPUT for a process, translated before it is filtered', () => {
    const sent = { origin: 'process', source: NODE_IP } as const
    expect(way(sent)).toEqual([
      'mangle OUTPUT',
      'nat OUTPUT',
      'filter OUTPUT',
      'mangle POSTROUTING',
      'nat POSTROUTING',
    ])
    expect(way({ ...sent, destination: NODE_IP })).toContain('filter INPUT')
  })

  it('go where the translation leads', () => {
    const { verdict, destination, steps } = run(
      {
        'ip nat PREROUTING': [rule(dnat(8080)), rule(DROP)],
        'ip filter INPUT': [rule(DROP)],
        'ip filter FORWARD': [rule(ACCEPT), rule(DROP)],
        'ip nat POSTROUTING': [rule(MASQUERADE), rule(DROP)],
      },
      { destination: NODE_IP },
    )
    expect(verdict).toBe('dnat')
    expect(destination).toEqual({ ip: POD, port: 8080 })
    expect(steps.map(({ chain, rule: number }) => `${chain} ${number}`)).toEqual([
      'ip nat PREROUTING 1',
      'ip filter FORWARD 1',
      'ip nat POSTROUTING 1',
    ])
  })

  it('of another family are none of its business', () => {
    const source = ip6(1, 1)
    const chains = {
      'ip nat PREROUTING': [rule(DROP)],
      'ip6 nat PREROUTING': [rule({ ...REJECT, with: 'icmp6-port-unreachable' })],
    }
    expect(run(chains, { source, destination: ip6(1, 2) }).verdict).toBe('reject')
  })
})

describe('chains', () => {
  it('name each rule that was met as iptables-save does', () => {
    const { steps } = run({ 'ip filter FORWARD': [rule(jump('A'))], 'ip filter A': [rule(ACCEPT)] })
    expect(steps).toEqual([
      { chain: 'ip filter FORWARD', rule: 1, text: '-A FORWARD -j jump', elements: [] },
      { chain: 'ip filter A', rule: 1, text: '-A A -j ACCEPT', elements: [] },
    ])
  })

  it('that loop or are missing are errors', () => {
    expect(() => run({ 'ip filter FORWARD': [rule(jump('A'))] })).toThrow('there is no chain A')
    const round = { 'ip filter FORWARD': [rule(jump('A'))], 'ip filter A': [rule(jump('A'))] }
    expect(() => run(round)).toThrow('circles at A')
  })
})

describe('what a rule asks of a packet', () => {
  it('is its interface, by prefix, where there is one', () => {
    const by = (name: string, inverted = false) => ({ inInterface: { name, inverted } })
    expect(meets(by('ext0'))).toBe(true)
    expect(meets(by('ext'))).toBe(false)
    expect(meets(by('ext+'))).toBe(true)
    expect(meets(by('veth+'))).toBe(false)
    expect(meets(by('veth+', true))).toBe(true)
    const sent = { origin: 'process', source: NODE_IP } as const
    expect(run({ 'ip nat OUTPUT': [rule(DROP, by('ext0'))] }, sent).verdict).toBe('accept')
    expect(run({ 'ip nat OUTPUT': [rule(DROP, by('ext0', true))] }, sent).verdict).toBe('drop')
    expect(
      run({ 'ip filter INPUT': [rule(DROP, by('lo'))] }, { ...sent, destination: NODE_IP }).verdict,
    ).toBe('drop')
  })

  it('is the state of its connection: new, and translated or not', () => {
    const NEW = 1 << 3
    const DNAT = 1 << 7
    const destination: XtAddress = { ip: FAR, mask: ip4(255, 255, 255, 255), inverted: false }
    const filtered = (states: number, inverted = false) => ({
      'ip nat PREROUTING': [rule(dnat(80), { destination })],
      'ip filter FORWARD': [when({ kind: 'conntrack', states, inverted }, DROP)],
    })
    const other = { destination: ip4(198, 51, 100, 8) }
    expect(run(filtered(NEW)).verdict).toBe('drop')
    expect(run(filtered(DNAT)).verdict).toBe('drop')
    expect(run(filtered(DNAT), other).verdict).toBe('accept')
    expect(run(filtered(DNAT | (1 << 1) | (1 << 2), true), other).verdict).toBe('drop')
    expect(run(filtered(1)).verdict).toBe('dnat')
  })

  it('cannot be told where a rule asks for what Kubernetes does not', () => {
    const unknown = { kind: 'unknown', name: 'owner', revision: 1, info: '' } as const
    expect(() => meets({ matches: [unknown] })).toThrow('cannot trace the match owner')
    expect(() => run({ 'ip nat PREROUTING': [rule(unknown)] })).toThrow('cannot trace the target owner')
  })
})

describe('-m statistic', () => {
  const UNITS = 2 ** 31
  it('throws dice of its own for every other rule', () => {
    const half = (port: number) => when({ kind: 'statistic', probability: UNITS / 2 }, dnat(port))
    const rules = { 'ip nat PREROUTING': [half(1), half(2), rule(dnat(3))] }
    const found = tracer(rules).ways(packet(), AROUND)
    expect(found.map(({ trace, probability }) => [trace.destination.port, probability])).toEqual([
      [1, 0.5],
      [2, 0.25],
      [3, 0.25],
    ])
  })

  it('takes any probability, one in so many or not', () => {
    const rules = [when({ kind: 'statistic', probability: 1_500_000_000 }, dnat(1)), rule(dnat(2))]
    const port = (roll: number) =>
      run({ 'ip nat PREROUTING': rules }, {}, { random: modulus => (modulus === UNITS ? roll : Number.NaN) })
        .destination.port
    expect(port(1_499_999_999)).toBe(1)
    expect(port(1_500_000_000)).toBe(2)
  })
})

describe('-m recent', () => {
  const recent = (mode: 'set' | 'rcheck', name: string) =>
    ({ kind: 'recent', mode, name, seconds: mode === 'rcheck' ? 60 : 0, reap: mode === 'rcheck' }) as const
  const chains = {
    'ip nat PREROUTING': [when(recent('rcheck', 'A'), dnat(1)), when(recent('set', 'A'), dnat(2))],
  }
  const all = tracer(chains)
  const client = (number: number) => packet({ source: ip4(203, 0, number >> 8, number & 255) })

  it('forgets who was not seen for longest when a hundred and one want to be known', () => {
    let dynamic: DynamicElements = new Map()
    for (let number = 1; number <= 101; number++)
      dynamic = all.trace(client(number), { ...AROUND, dynamic }).dynamic
    const port = (number: number) => all.trace(client(number), { ...AROUND, dynamic }).destination.port
    expect([1, 2, 101].map(port)).toEqual([2, 1, 1])
  })

  it('forgets everybody when no rule names the list any more', () => {
    const { dynamic } = all.trace(client(1), AROUND)
    expect([...dynamic.keys()]).toEqual(['recent A'])
    const none = tracer({}).trace(client(1), { ...AROUND, dynamic })
    expect([...none.dynamic.keys()]).toEqual([])
  })
})
