import { describe, expect, it } from 'vitest'
import { textWidth } from '../../../../src/inspect/live/live-table.ts'
import type { TableUser } from '../../../../src/inspect/live/top-sampler.ts'
import type { UnansweredRow } from '../../../../src/inspect/live/unanswered-rows.ts'
import { collectStatus } from '../../../../src/inspect/status/collect.ts'
import { statusOf } from '../../../../src/inspect/status/status.ts'
import { daemonFacts, type StatusFacts } from '../../../../src/inspect/status/status-facts.ts'
import { statusText } from '../../../../src/inspect/status/status-text.ts'
import type { RefusedCount } from '../../../../src/modes/refused.ts'
import { unansweredRow } from '../live/rows.ts'

const NOW = Date.parse('2026-01-02T00:00:00Z')
const STATUS = {
  mode: 'nftables',
  startedAt: '2026-01-01T00:00:00Z',
  services: 12,
  quarantined: 0,
  snapshot: 7,
  synced: 7,
  source: { missing: [], silentMs: 2_000 },
  repairs: { passes: 0, objects: 0, recent: [] },
}
const HEALTH = {
  modeFrom: 'default',
  sourceKind: 'kube',
  readiness: { nodeEligible: true, healthy: true },
  rejected: [],
  families: ['IPv4'],
  refused: { services: 0, objects: 0, first: [] },
  withoutEndpoint: { services: 0, first: [] },
  credentials: {},
}

interface Change {
  readonly status?: object
  readonly health?: object
  readonly facts?: Partial<StatusFacts>
}

function judged({ status = {}, health = {}, facts = {} }: Change = {}) {
  const pages = {
    config: { version: '1.2.3' },
    status: { ...STATUS, ...status },
    health: { ...HEALTH, ...health },
  }
  return statusOf({
    wallMs: NOW,
    version: '1.2.3',
    daemon: daemonFacts(pages),
    rules: { findings: [], modes: ['nftables'] },
    conntrack: { entries: 10, entriesMax: 1_000, largest: [] },
    refused: undefined,
    unanswered: undefined,
    unread: [],
    ...facts,
  })
}

function kinds(change: Change): readonly string[] {
  return judged(change).problems.map(({ level, kind }) => `${level} ${kind}`)
}

function unanswered(row: Partial<UnansweredRow> = {}): Partial<StatusFacts> {
  const its = unansweredRow({ endpoint: '10.244.0.12:8080', pod: 'shop/cart-7f', ...row })
  return { unanswered: { rows: [its], seenS: 60 } }
}

function table(entries: number, entriesMax: number | undefined, largest: readonly TableUser[] = []): Change {
  return { facts: { conntrack: { entries, entriesMax, largest } } }
}

function finding(kind: 'damaged' | 'warning', subject: string, text: string): Change {
  return { facts: { rules: { modes: [], findings: [{ kind, subject, text }] } } }
}

function refusedPackets(packets: number, service: string): RefusedCount {
  return { family: 'IPv4', verdict: 'reject', reason: 'no-endpoints', service, packets }
}

describe('statusOf', () => {
  it('says that a node is well, with the facts of the screen', () => {
    const status = judged()
    expect(status).toMatchObject({ verdict: 'well', problems: [] })
    expect(statusText(status, { color: false })).toBe(
      [
        'WELL  kprobe serves 12 Services on this node as configured',
        '',
        'daemon     kprobe 1.2.3, nftables mode (default), for 24 h',
        'source     API server; last read 2 s ago',
        'services   12 served, 0 with refused fields, 0 without endpoint',
        'kernel     holds the state of the daemon; no repair in the last hour',
        'conntrack  10 of 1000 entries (1.0 %)',
        '',
      ].join('\n'),
    )
  })

  it.each<[string, Change, string]>([
    ['a failed write', { status: { error: 'EBUSY' } }, 'error sync-failed'],
    ['a Service that the kernel rejects', { status: { quarantined: 1 } }, 'error services-rejected'],
    ['a family that it rejects', { health: { rejected: [{ service: 'IPv6' }] } }, 'error services-rejected'],
    ['a source that fails', { status: { source: { trouble: 'refused' } } }, 'warning source-failed'],
    ['a saved state', { health: { readiness: { staleSeconds: 9 } } }, 'warning source-stale'],
    ['a silent source', { status: { source: { silentMs: 301_000 } } }, 'warning source-silent'],
    ['a node that is not ready', { health: { readiness: { reason: 'why' } } }, 'warning not-ready'],
    ['refusals', { health: { refused: { services: 1, objects: 0 } } }, 'warning services-refused'],
    ['repairs', { status: { repairs: { recent: [{ at: '2026-01-01T23:59:00Z' }] } } }, 'warning repaired'],
    [
      'an expired certificate',
      { health: { credentials: { certificateMs: NOW } } },
      'error certificate-expiry',
    ],
    ['a token that ends', { health: { credentials: { tokenMs: NOW + 60_000 } } }, 'warning token-expiry'],
    ['a full table', table(99, 100), 'error conntrack-full'],
    ['a filling table', table(90, 100), 'warning conntrack-full'],
    ['an endpoint without replies', { facts: unanswered() }, 'error unanswered'],
    ['damage', finding('damaged', 'a', 'b'), 'error rules-damaged'],
    ['another program', finding('warning', 'a', 'b'), 'warning check'],
  ])('an impaired node: %s', (_, change, expected) => {
    expect([judged(change).verdict, kinds(change)]).toEqual(['impaired', [expected]])
  })

  it.each<[string, Change]>([
    ['half of the connections have no reply', { facts: unanswered({ unanswered: 20 }) }],
    ['a UDP port never replies', { facts: unanswered({ isOneWay: true }) }],
    ['Services have no endpoint', { health: { withoutEndpoint: { services: 1, first: ['a/b'] } } }],
    ['the connection table has no limit', table(9, undefined)],
    [
      'IPv6 is not forwarded, and no Service is of it',
      finding('warning', 'net/ipv6/conf/all/forwarding', '0'),
    ],
  ])('well although %s', (_, change) => {
    expect(judged(change).verdict).toBe('well')
  })

  it('names endpoint, pod and Service of unanswered connections', () => {
    const [problem] = judged({ facts: unanswered() }).problems
    expect(problem).toEqual({
      level: 'error',
      kind: 'unanswered',
      text: 'shop/cart:http: 41 of 41 connections to 10.244.0.12:8080 (pod shop/cart-7f) had no reply in the last minute',
      hint: '`kprobe why shop/cart`',
      service: 'shop/cart',
      pod: 'shop/cart-7f',
    })
  })

  it('names the largest users of a table that fills', () => {
    const largest = [
      { service: 'shop/cart:http', open: 70 },
      { service: 'infra/dns:dns', open: 9 },
    ]
    const [problem] = judged(table(90, 100, largest)).problems
    expect(problem?.text).toBe(
      'the connection table is filling: 90 of 100 entries; most entries: shop/cart:http 70, infra/dns:dns 9',
    )
  })

  it('counts refused packets, with the reasons of most', () => {
    const refused = [
      refusedPackets(5, 'shop/empty:http'),
      { ...refusedPackets(3, 'shop/empty:http'), family: 'IPv6' as const },
      { ...refusedPackets(4, ''), verdict: 'drop' as const, reason: 'source-ranges' as const },
    ]
    const { verdict, facts } = judged({ facts: { refused } })
    expect([verdict, facts.find(({ name }) => name === 'packets')]).toEqual([
      'well',
      {
        name: 'packets',
        text: '8 rejected, 4 dropped since their rules were written: shop/empty:http no-endpoints 8, source-ranges 4',
        values: { rejected: 8, dropped: 4, rejectedPerSecond: null, droppedPerSecond: null },
      },
    ])
  })

  it('gives the rate of refused packets where the daemon knows their number of a minute ago', () => {
    const refused = [refusedPackets(620, ''), { ...refusedPackets(4, ''), verdict: 'drop' as const }]
    const textOf = (before: object) =>
      judged({ health: { refusedPackets: before }, facts: { refused } }).facts.find(
        ({ name }) => name === 'packets',
      )?.text
    expect(textOf({ rejected: 20, dropped: 1, ageMs: 60_000 })).toMatch(
      /^620 rejected \(10\/s\), 4 dropped \(0.05\/s\) /,
    )
    // The rules were written again meanwhile.
    expect(textOf({ rejected: 700, dropped: 4, ageMs: 60_000 })).toMatch(/^620 rejected, 4 dropped \(0\/s\) /)
  })

  it('names the process of a repair, and has no age below zero when the clock was set back', () => {
    const recent = [{ at: '2026-01-02T05:00:00Z', objects: 3, process: 'nft (pid 7)' }]
    expect(judged({ status: { repairs: { recent } } }).problems[0]?.text).toBe(
      "another program changed kprobe's rules; repaired 1 time in the last hour, last 0 s ago; changed by nft (pid 7)",
    )
  })

  it.each(['absent', 'silent'] as const)('a daemon that is %s', kind => {
    const { verdict, problems } = judged({ facts: { daemon: { kind, text: 'since noon' } } })
    expect(verdict).toBe(kind === 'absent' ? 'down' : 'impaired')
    expect(problems[0]?.text).toContain('since noon')
  })

  it('is down before the first sync', () => {
    const status = { synced: undefined, source: { missing: ['services'] } }
    expect(judged({ status })).toMatchObject({
      verdict: 'down',
      problems: [{ text: 'nothing is programmed yet: it has not read services' }],
    })
  })

  it('omits what a daemon of the last release does not report', () => {
    const daemon = daemonFacts({
      config: { version: '1.1.0' },
      status: { ...STATUS, repairs: {} },
      health: undefined,
    })
    const { verdict, facts } = judged({ facts: { daemon } })
    expect([verdict, facts.slice(0, 4).map(({ text }) => text)]).toEqual([
      'well',
      [
        'kprobe 1.1.0, nftables mode, for 24 h; this command is 1.2.3',
        'last read 2 s ago',
        '12 served',
        'holds the state of the daemon',
      ],
    ])
  })
})

describe('statusText', () => {
  it.each(['n', '名'])('stays below 25 lines, with every problem and names of 253 characters: %s', letter => {
    const name = letter.repeat(253)
    const first = Array.from({ length: 3 }, () => ({ object: `Service ${name}/${name}`, reason: name }))
    const status = judged({
      status: {
        error: `${name} \u001b[2J`,
        source: { trouble: name },
        repairs: { recent: [{ at: '2026-01-01T23:59:00Z', process: name }] },
      },
      health: {
        refused: { services: 10_000, objects: 10_000, first },
        withoutEndpoint: { services: 10_000, first: [name, name, name] },
        credentials: { tokenMs: 0, certificateMs: 0 },
      },
      facts: {
        ...unanswered(),
        conntrack: { entries: 9, entriesMax: 9, largest: [{ service: name, open: 9 }] },
        refused: [refusedPackets(9, name)],
        unread: [{ part: name, reason: name }],
      },
    })
    for (const columns of [40, 80, 200]) {
      const lines = statusText(status, { color: false, columns }).split('\n')
      expect(lines.length).toBeLessThan(26)
      expect(lines.every(line => textWidth(line) <= Math.min(columns, 160))).toBe(true)
      expect(lines.join('')).not.toContain('\u001b')
    }
    expect(statusText(status, { color: false })).toContain('  and 4 more; -o json lists all\n')
  })

  it('colors verdict and level, whose words say the same', () => {
    const text = statusText(judged({ status: { error: 'EBUSY' } }), { color: true })
    expect(text).toContain('\u001b[33mIMPAIRED\u001b[0m')
    expect(text).toContain('\u001b[31merror\u001b[0m')
  })
})

describe('collectStatus', () => {
  const failed = () => Promise.reject(new Error('EPERM'))
  const collected = (pages: { readonly status?: object; readonly health?: object | undefined }) =>
    collectStatus({
      wallMs: () => NOW,
      version: '1',
      daemon: () => Promise.resolve(daemonFacts({ config: {}, status: STATUS, health: HEALTH, ...pages })),
      rules: failed,
      conntrack: failed,
      refused: () => Promise.resolve([]),
      unanswered: () => Promise.resolve(undefined),
    })

  it('does not call a node well whose parts cannot be read, and names them', async () => {
    const { verdict, sentence, problems, facts } = await collected({})
    expect([verdict, problems]).toEqual(['unknown', []])
    expect(sentence).toBe(
      'kprobe serves 12 Services on this node; the state of this node is unknown; not read: rules, connection table',
    )
    expect(facts.at(-1)?.text).toBe('rules: EPERM; connection table: EPERM')
  })

  it('names them beside problems, and counts what an older daemon does not report', async () => {
    const broken = await collected({ status: { ...STATUS, error: 'EBUSY' }, health: undefined })
    expect(broken).toMatchObject({
      verdict: 'impaired',
      sentence:
        'kprobe serves 12 Services on this node, with 1 problem; not read: refused fields, rules, connection table',
    })
  })
})
