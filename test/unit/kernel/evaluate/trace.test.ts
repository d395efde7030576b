import { describe, expect, test } from 'vitest'
import { PersistentMap } from '../../../../src/base/collections.ts'
import { type Octets, u16be, u32host, zeros } from '../../../../src/base/octets.ts'
import type { DynamicElements } from '../../../../src/kernel/evaluate/single.ts'
import type { TracePacket, TraceSurroundings } from '../../../../src/kernel/evaluate/trace.ts'
import { createTracer } from '../../../../src/kernel/evaluate/trace.ts'
import type { IpsetEntry } from '../../../../src/kernel/ipset/state.ts'
import * as nft from '../../../../src/kernel/nft/constants.ts'
import { TYPE_IPADDR, TYPE_MARK } from '../../../../src/kernel/nft/datatypes.ts'
import type { Expression } from '../../../../src/kernel/nft/expression.ts'
import type { Chain, ChainHook, Element, NftSet, Ruleset } from '../../../../src/kernel/nft/state.ts'
import { ip } from '../../../support/pipeline.ts'

const HOOKS: Readonly<Record<string, ChainHook>> = {
  pre: { type: 'nat', hooknum: nft.NF_INET_PRE_ROUTING, priority: -100 },
  out: { type: 'nat', hooknum: nft.NF_INET_LOCAL_OUT, priority: -100 },
  post: { type: 'nat', hooknum: nft.NF_INET_POST_ROUTING, priority: 100 },
  early: { type: 'filter', hooknum: nft.NF_INET_PRE_ROUTING, priority: -200 },
  late: { type: 'nat', hooknum: nft.NF_INET_PRE_ROUTING, priority: -50 },
  forward: { type: 'filter', hooknum: nft.NF_INET_FORWARD, priority: 0 },
  input: { type: 'filter', hooknum: nft.NF_INET_LOCAL_IN, priority: 0 },
}

type Chains = Readonly<Record<string, ReadonlyArray<readonly Expression[]>>>

function chain(name: string, rules: ReadonlyArray<readonly Expression[]>): Chain {
  return { name, hook: HOOKS[name], rules: rules.map(expressions => ({ expressions, comment: '' })) }
}

const ADDRESS_MAP: Omit<NftSet, 'name'> = {
  flags: nft.NFT_SET_MAP,
  keyType: TYPE_MARK,
  keyLength: 4,
  dataType: TYPE_IPADDR,
  dataLength: 8,
  size: 0,
  timeoutMs: 0,
  userdata: '',
}
const SETS: ReadonlyMap<string, NftSet> = new Map(
  [
    { ...ADDRESS_MAP, name: 'endpoints' },
    { ...ADDRESS_MAP, name: 'verdicts', dataType: nft.NFT_DATA_VERDICT, dataLength: undefined },
    { ...ADDRESS_MAP, name: 'members', flags: 0, dataType: undefined, dataLength: undefined },
    { ...ADDRESS_MAP, name: 'memory', dataType: TYPE_MARK, dataLength: 4, size: 2 },
  ].map(set => [set.name, set]),
)

function ruleset(
  chains: Chains,
  elements: ReadonlyArray<Pick<Element, 'set' | 'key' | 'data'>> = [],
): Ruleset {
  const group = elements.map(element => ({ ...element, comment: '' }))
  const names = Object.entries(chains).map(([name, rules]) => [name, chain(name, rules)] as const)
  const table = {
    family: 'ip',
    name: 't',
    flags: 0,
    comment: undefined,
    chains: new Map(names),
    sets: SETS,
  } as const
  return { tables: [{ ...table, elements: PersistentMap.from([['all', group]]) }] }
}

const PACKET: TracePacket = {
  origin: 'interface',
  interfaceName: 'eth0',
  protocol: 6,
  source: ip('203.0.113.5'),
  sourcePort: 40_000,
  destination: ip('172.30.0.1'),
  destinationPort: 80,
}
const SURROUNDINGS: TraceSurroundings = { localIps: new Set([ip('192.0.2.1')]), random: () => 0 }

const verdict = (code: number, chain?: string): Expression => ({ kind: 'verdict', verdict: { code, chain } })
const drop = verdict(nft.NF_DROP)
const jump = (chain: string) => verdict(nft.NFT_JUMP, chain)
const goTo = (chain: string) => verdict(nft.NFT_GOTO, chain)
const readMark: Expression = { kind: 'meta', key: nft.NFT_META_MARK, dreg: 0 }
const source: Expression = {
  kind: 'payload',
  base: nft.NFT_PAYLOAD_NETWORK_HEADER,
  offset: 12,
  length: 4,
  dreg: 0,
}
const is = (data: Octets, op: 'eq' | 'neq' = 'eq', sreg = 0): Expression => ({ kind: 'cmp', op, sreg, data })
const mask = (m: number, xor: number): Expression => ({
  kind: 'bitwise',
  sreg: 0,
  dreg: 0,
  mask: u32host(m),
  xor: u32host(xor),
})
const writeMark: Expression = { kind: 'meta-set', key: nft.NFT_META_MARK, sreg: 0 }
const roll = (modulus: number): Expression => ({ kind: 'numgen', modulus, dreg: 0 })
const find = (set: string, dreg: number | 'verdict' | undefined, inverted = false): Expression => ({
  kind: 'lookup',
  set,
  sreg: 0,
  dreg,
  inverted,
})
const dnat: Expression = { kind: 'dnat', family: 'ip', addressReg: 4, portReg: 5 }
const masquerade: Expression = { kind: 'masquerade', flags: 0 }
const endpoint = (slot: number, address: string, port: number) => ({
  set: 'endpoints',
  key: u32host(slot),
  data: `${ip(address)}${u16be(port)}${zeros(2)}`,
})

function run(
  chains: Chains,
  elements: Parameters<typeof ruleset>[1] = [],
  packet: Partial<TracePacket> = {},
) {
  return createTracer(ruleset(chains, elements)).trace({ ...PACKET, ...packet }, SURROUNDINGS)
}

describe('verdicts', () => {
  test('without any rule a packet passes untouched', () => {
    expect(run({ pre: [] })).toMatchObject({
      verdict: 'accept',
      destination: { ip: PACKET.destination, port: 80 },
      masquerade: false,
      steps: [],
    })
  })

  test('drop and reject end the walk', () => {
    expect(run({ pre: [[drop], [{ kind: 'reject', code: 3 }]] }).verdict).toBe('drop')
    expect(run({ pre: [[{ kind: 'reject', code: 3 }], [drop]] }).verdict).toBe('reject')
  })

  test('a jump comes back, a goto does not, and return ends the chain it is in', () => {
    const back = verdict(nft.NFT_RETURN)
    expect(run({ pre: [[jump('a')], [drop]], a: [[back], [{ kind: 'reject', code: 3 }]] }).verdict).toBe(
      'drop',
    )
    expect(run({ pre: [[goTo('a')], [drop]], a: [] }).verdict).toBe('accept')
    expect(
      run({ pre: [[jump('a')], [drop]], a: [[goTo('b')], [{ kind: 'reject', code: 3 }]], b: [[back]] })
        .verdict,
    ).toBe('drop')
  })

  test('accept ends one base chain only', () => {
    expect(
      run({ early: [[verdict(nft.NF_ACCEPT)], [{ kind: 'reject', code: 3 }]], pre: [[drop]] }).verdict,
    ).toBe('drop')
  })

  test('chains that go round in circles are an error', () => {
    expect(() => run({ pre: [[goTo('a')]], a: [[goTo('a')]] })).toThrow('circles')
  })
})

describe('ipsets', () => {
  const match = (inverted: boolean, ...dimensions: ('src' | 'dst')[]): Expression => {
    return { kind: 'ipset', set: 'KUBE-LOOP-BACK', dimensions, inverted }
  }
  const asked = (rules: Chains, entry: IpsetEntry) => {
    const size = { maxElements: 65_536, hashSize: 1_024 }
    const set = { name: 'KUBE-LOOP-BACK', type: 'hash:ip,port,ip', family: 'IPv4', ...size } as const
    const ipvs = { servers: [], addresses: [], ipsets: [{ set, entries: [entry] }] }
    return createTracer({ ...ruleset(rules, [endpoint(0, '10.1.0.1', 8080)]), ipvs }).trace(
      PACKET,
      SURROUNDINGS,
    )
  }
  const before = { ip: PACKET.destination, protocol: 6, port: 80, ip2: PACKET.source }
  const behind = { ...before, ip: ip('10.1.0.1'), port: 8080 }

  test('have a packet or not, and an inverted match goes by the other', () => {
    for (const inverted of [false, true]) {
      const rules = { pre: [[match(inverted, 'dst', 'dst', 'src'), drop]] }
      expect(asked(rules, before).verdict).toBe(inverted ? 'accept' : 'drop')
      expect(asked(rules, behind).verdict).toBe(inverted ? 'drop' : 'accept')
    }
  })

  test('are asked about the sides of the packet as it is by then', () => {
    const translated = [readMark, find('endpoints', 4), dnat]
    const post = [match(false, 'dst', 'dst', 'src'), masquerade]
    expect(asked({ pre: [translated], post: [post] }, behind).masquerade).toBe(true)
    expect(asked({ pre: [translated], post: [post] }, before).masquerade).toBe(false)
  })

  test('cannot be traced when nobody says what they have', () => {
    expect(() => run({ pre: [[match(false, 'dst'), drop]] })).toThrow('KUBE-LOOP-BACK')
  })
})

describe('hooks', () => {
  test('base chains of a hook run by priority', () => {
    expect(run({ pre: [[drop]], early: [[{ kind: 'reject', code: 3 }]] }).verdict).toBe('reject')
  })

  test('packets of this node pass output and postrouting, others prerouting, forward and postrouting', () => {
    expect(run({ out: [[drop]] }).verdict).toBe('accept')
    expect(run({ out: [[drop]] }, [], { origin: 'process' }).verdict).toBe('drop')
    expect(run({ pre: [[drop]], forward: [[drop]] }, [], { origin: 'process' }).verdict).toBe('accept')
    expect(run({ forward: [[drop]] }).verdict).toBe('drop')
    expect(run({ post: [[masquerade]] }).masquerade).toBe(true)
    expect(run({ post: [[masquerade]] }, [], { origin: 'process' }).masquerade).toBe(true)
  })

  test('packets to this node pass input instead of forward and postrouting', () => {
    const local = { destination: ip('192.0.2.1') }
    expect(run({ input: [[drop]], forward: [[{ kind: 'reject', code: 3 }]] }, [], local).verdict).toBe('drop')
    expect(run({ post: [[masquerade]] }, [], local).masquerade).toBe(false)
  })

  test('a translated connection meets no later nat chain of the hook', () => {
    const chains = { pre: [[roll(1), find('endpoints', 4), dnat]], late: [[drop]] }
    expect(run(chains, [endpoint(0, '10.0.0.1', 8080)])).toMatchObject({
      verdict: 'dnat',
      destination: { ip: ip('10.0.0.1'), port: 8080 },
    })
    expect(run(chains).verdict).toBe('drop')
  })
})

describe('expressions', () => {
  test.each<readonly [string, readonly Expression[], boolean]>([
    ['the source address', [source, is(ip('203.0.113.5'))], true],
    ['another source address', [source, is(ip('203.0.113.6'))], false],
    ['not another source address', [source, is(ip('203.0.113.6'), 'neq')], true],
    [
      'a prefix of it',
      [
        source,
        { kind: 'bitwise', sreg: 0, dreg: 0, mask: ip('255.255.255.0'), xor: zeros(4) },
        is(ip('203.0.113.0')),
      ],
      true,
    ],
    ['the protocol', [{ kind: 'meta', key: nft.NFT_META_L4PROTO, dreg: 0 }, is('\x06\0\0\0')], true],
    [
      'the port',
      [
        { kind: 'payload', base: nft.NFT_PAYLOAD_TRANSPORT_HEADER, offset: 2, length: 2, dreg: 0 },
        is(`${u16be(80)}\0\0`),
      ],
      true,
    ],
    [
      'the interface',
      [{ kind: 'meta', key: nft.NFT_META_IIFNAME, dreg: 0 }, is('eth0'.padEnd(16, '\0'))],
      true,
    ],
    [
      'the beginning of the interface',
      [{ kind: 'meta', key: nft.NFT_META_IIFNAME, dreg: 0 }, is('et')],
      true,
    ],
    [
      'a local source',
      [{ kind: 'fib', flags: nft.NFTA_FIB_F_SADDR, dreg: 0 }, is(u32host(nft.RTN_LOCAL))],
      false,
    ],
    ['a mark', [readMark, mask(0xff, 0x100), is(u32host(0x112))], true],
    [
      'an unknown connection',
      [{ kind: 'ct', key: nft.NFT_CT_STATUS, dreg: 0 }, mask(nft.IPS_DST_NAT, 0), is(u32host(0))],
      true,
    ],
    ['a member', [readMark, find('members', undefined)], true],
    ['not a member', [readMark, find('members', undefined, true)], false],
    ['no member', [roll(1), find('members', undefined)], false],
    ['no member, inverted', [roll(1), find('members', undefined, true)], true],
    ['a counter', [{ kind: 'counter' }], true],
  ])('matching %s', (_, expressions, matches) => {
    const elements = [{ set: 'members', key: u32host(0xab12), data: undefined }]
    const result = run({ pre: [[...expressions, drop]] }, elements, { mark: 0xab12 })
    expect(result.verdict).toBe(matches ? 'drop' : 'accept')
  })

  test('local addresses are those given and loopback', () => {
    const rules = {
      pre: [
        [{ kind: 'fib', flags: nft.NFTA_FIB_F_DADDR, dreg: 0 } as const, is(u32host(nft.RTN_LOCAL)), drop],
      ],
    }
    expect(run(rules, [], { destination: ip('192.0.2.1') }).verdict).toBe('drop')
    expect(run(rules, [], { destination: ip('127.1.2.3') }).verdict).toBe('drop')
    expect(run(rules, [], { destination: ip('192.0.2.2') }).verdict).toBe('accept')
  })

  test('a mark that a rule sets outlives the rule, even if it does not match in the end', () => {
    const result = run(
      { pre: [[readMark, mask(~0x4000 >>> 0, 0x4000), writeMark, is(zeros(4)), drop]] },
      [],
      { mark: 0x1 },
    )
    expect(result).toMatchObject({ verdict: 'accept', mark: 0x4001 })
  })

  test('a verdict map decides', () => {
    const elements = [{ set: 'verdicts', key: u32host(7), data: { code: nft.NFT_GOTO, chain: 'a' } }]
    expect(
      run({ pre: [[readMark, find('verdicts', 'verdict')]], a: [[drop]] }, elements, { mark: 7 }).verdict,
    ).toBe('drop')
    expect(
      run({ pre: [[readMark, find('verdicts', 'verdict')]], a: [[drop]] }, elements, { mark: 8 }).verdict,
    ).toBe('accept')
  })

  test('postrouting knows whether the connection is translated, and sees its new destination', () => {
    const destination: Expression = { ...source, offset: 16 }
    const status: Expression = { kind: 'ct', key: nft.NFT_CT_STATUS, dreg: 0 }
    const chains: Chains = {
      pre: [[roll(1), find('endpoints', 4), dnat]],
      post: [
        [status, mask(nft.IPS_DST_NAT, 0), is(zeros(4), 'neq'), destination, is(ip('10.0.0.1')), masquerade],
      ],
    }
    expect(run(chains, [endpoint(0, '10.0.0.1', 80)]).masquerade).toBe(true)
    expect(run(chains, [endpoint(0, '10.0.0.2', 80)]).masquerade).toBe(false)
    expect(run(chains).masquerade).toBe(false)
  })

  test('reading a register that the rule has not written is an error, as in the kernel', () => {
    expect(() => run({ pre: [[readMark], [is(zeros(4)), drop]] })).toThrow(
      'register 0 is read before it is written',
    )
  })

  test('what nobody here writes is an error and not a guess', () => {
    expect(() => run({ pre: [[{ kind: 'unknown', name: 'quota', data: '' }]] })).toThrow('quota')
    expect(() => run({ pre: [[{ kind: 'meta', key: 99, dreg: 0 }]] })).toThrow('meta key 99')
  })
})

describe('what packets remember', () => {
  const key: Expression = { kind: 'meta', key: nft.NFT_META_MARK, dreg: 0 }
  const value: Expression = { kind: 'numgen', modulus: 100, dreg: 1 }
  const dynset = (op: 'update' | 'delete'): Expression => ({
    kind: 'dynset',
    op,
    set: 'memory',
    keyReg: 0,
    dataReg: op === 'delete' ? undefined : 1,
    timeoutMs: 1000,
  })

  function remember(chains: Chains, marks: readonly number[], values: readonly number[]): DynamicElements {
    const tracer = createTracer(ruleset(chains))
    let dynamic: DynamicElements = new Map()
    for (const [index, mark] of marks.entries()) {
      const surroundings = { ...SURROUNDINGS, dynamic, random: () => values[index] ?? 0 }
      dynamic = tracer.trace({ ...PACKET, mark }, surroundings).dynamic
    }
    return dynamic
  }

  test('update writes once and never replaces, delete makes room', () => {
    const update = { pre: [[key, value, dynset('update')]] }
    expect(remember(update, [1, 1], [10, 20]).get('ip t memory')).toEqual(
      new Map([[u32host(1), u32host(10)]]),
    )
    const replace = { pre: [[key, value, dynset('delete'), dynset('update')]] }
    expect(remember(replace, [1, 1], [10, 20]).get('ip t memory')).toEqual(
      new Map([[u32host(1), u32host(20)]]),
    )
  })

  test('a full set ends the rule', () => {
    const chains = { pre: [[key, value, dynset('update'), drop]] }
    const tracer = createTracer(ruleset(chains))
    const dynamic = remember(chains, [1, 2], [1, 1])
    expect(tracer.trace({ ...PACKET, mark: 2 }, { ...SURROUNDINGS, dynamic }).verdict).toBe('drop')
    expect(tracer.trace({ ...PACKET, mark: 3 }, { ...SURROUNDINGS, dynamic }).verdict).toBe('accept')
  })

  test('a later packet finds it', () => {
    const chains = {
      pre: [
        [key, find('memory', 4), drop],
        [key, value, dynset('update')],
      ],
    }
    const tracer = createTracer(ruleset(chains))
    const first = tracer.trace({ ...PACKET, mark: 5 }, SURROUNDINGS)
    expect(first.verdict).toBe('accept')
    const second = tracer.trace({ ...PACKET, mark: 5 }, { ...SURROUNDINGS, dynamic: first.dynamic })
    expect(second.verdict).toBe('drop')
  })
})

describe('steps', () => {
  test('the rules that took effect are told, with the elements they found', () => {
    const { steps } = run(
      {
        pre: [[jump('a')]],
        a: [
          [source, is(ip('1.2.3.4')), drop],
          [roll(1), find('endpoints', 4), dnat],
        ],
      },
      [endpoint(0, '10.0.0.1', 8080)],
    )
    expect(steps.map(({ chain, rule }) => `${chain} ${rule}`)).toEqual(['ip t pre 1', 'ip t a 2'])
    expect(steps[0]?.text).toBe('jump a')
    expect(steps[1]?.elements).toEqual([expect.stringContaining('endpoints: 0x00000000')])
  })
})

describe('ways', () => {
  test('every end is found, with its probability', () => {
    const chains = {
      pre: [
        [roll(4), find('endpoints', 4), dnat],
        [roll(2), find('endpoints', 4), dnat],
      ],
    }
    const elements = [endpoint(0, '10.0.0.1', 80), endpoint(1, '10.0.0.2', 80), endpoint(2, '10.0.0.3', 80)]
    const ways = createTracer(ruleset(chains, elements)).ways(PACKET, SURROUNDINGS)
    const found = ways.map(({ trace, probability }) => [trace.destination.ip, probability])
    expect(found).toEqual([
      [ip('10.0.0.1'), 0.375],
      [ip('10.0.0.2'), 0.375],
      [ip('10.0.0.3'), 0.25],
    ])
  })

  test('numbers that a rule wrote before it ended stay several ways', () => {
    const pre = [
      [roll(4), writeMark, find('endpoints', 4), dnat],
      [readMark, is(u32host(1)), drop],
    ]
    const ways = createTracer(ruleset({ pre })).ways(PACKET, SURROUNDINGS)
    const found = ways.map(({ trace, probability }) => [trace.verdict, probability])
    expect(Object.fromEntries(found)).toEqual({ accept: 0.75, drop: 0.25 })
  })

  test('too many sequences of random numbers are an error', () => {
    const chains = { pre: [[roll(100), roll(100), roll(100), drop]] }
    expect(() => createTracer(ruleset(chains)).ways(PACKET, SURROUNDINGS, 1000)).toThrow('too many ways')
  })
})

test('a table of the other family does not see the packet', () => {
  const six = { ...PACKET, source: ip('2001:db8::5'), destination: ip('2001:db8::1') }
  expect(createTracer(ruleset({ pre: [[drop]] })).trace(six, SURROUNDINGS).verdict).toBe('accept')
})
