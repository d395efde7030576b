import { describe, expect, test } from 'vitest'
import { u16be, u32host, zeros } from '../../../../src/base/octets.ts'
import type { IpsetEntry } from '../../../../src/kernel/ipset/state.ts'
import * as nft from '../../../../src/kernel/nft/constants.ts'
import type { Expression } from '../../../../src/kernel/nft/state.ts'
import { createTracer, type Trace, type TracePacket } from '../../../../src/proof/evaluate/trace.ts'
import { ip } from '../../../support/pipeline.ts'
import {
  dnat,
  drop,
  find,
  goTo,
  is,
  jump,
  mask,
  masquerade,
  readMark,
  roll,
  source,
  verdict,
  writeMark,
} from '../expressions.ts'
import { type Chains, endpoint, PACKET, ruleset, run, SURROUNDINGS } from './tracing.ts'

const reject: Expression = { kind: 'reject', code: 3 }
const back = verdict(nft.NFT_RETURN)
const PROCESS = { origin: 'process' } as const
const HERE = { destination: ip('192.0.2.1') } as const
const BACKENDS = [endpoint(0, '10.0.0.1', 8080)]
const translated = { pre: [[roll(1), find('endpoints', 4), dnat]], late: [[drop]] }

test.each<[string, Chains, Partial<TracePacket>, Partial<Trace>]>([
  ['a packet without any rule passes', { pre: [] }, {}, { verdict: 'accept', masquerade: false, steps: [] }],
  ['drop ends the walk', { pre: [[drop], [reject]] }, {}, { verdict: 'drop' }],
  ['reject ends the walk', { pre: [[reject], [drop]] }, {}, { verdict: 'reject' }],
  ['a jump comes back', { pre: [[jump('a')], [drop]], a: [[back], [reject]] }, {}, { verdict: 'drop' }],
  ['a goto does not', { pre: [[goTo('a')], [drop]], a: [] }, {}, { verdict: 'accept' }],
  [
    'return ends the chain it is in',
    { pre: [[jump('a')], [drop]], a: [[goTo('b')], [reject]], b: [[back]] },
    {},
    { verdict: 'drop' },
  ],
  [
    'accept ends one base chain only',
    { early: [[verdict(nft.NF_ACCEPT)], [reject]], pre: [[drop]] },
    {},
    { verdict: 'drop' },
  ],
  ['base chains run by priority', { pre: [[drop]], early: [[reject]] }, {}, { verdict: 'reject' }],
  ['packets from elsewhere pass no output', { out: [[drop]] }, {}, { verdict: 'accept' }],
  ['packets of this node pass output', { out: [[drop]] }, PROCESS, { verdict: 'drop' }],
  [
    'packets of this node pass no prerouting and no forward',
    { pre: [[drop]], forward: [[drop]] },
    PROCESS,
    { verdict: 'accept' },
  ],
  ['packets from elsewhere pass forward', { forward: [[drop]] }, {}, { verdict: 'drop' }],
  ['packets from elsewhere pass postrouting', { post: [[masquerade]] }, {}, { masquerade: true }],
  ['packets of this node pass postrouting', { post: [[masquerade]] }, PROCESS, { masquerade: true }],
  [
    'packets to this node pass input instead of forward',
    { input: [[drop]], forward: [[reject]] },
    HERE,
    { verdict: 'drop' },
  ],
  ['packets to this node pass no postrouting', { post: [[masquerade]] }, HERE, { masquerade: false }],
])('%s', (_, chains, packet, expected) => {
  expect(run(chains, [], packet)).toMatchObject(expected)
})

test('a translated connection meets no later nat chain of the hook', () => {
  const destination = { ip: ip('10.0.0.1'), port: 8080 }
  expect(run(translated, BACKENDS)).toMatchObject({ verdict: 'dnat', destination })
  expect(run(translated).verdict).toBe('drop')
})

test('chains that go round in circles are an error', () => {
  expect(() => run({ pre: [[goTo('a')]], a: [[goTo('a')]] })).toThrow('circles')
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

test('a table of the other family does not see the packet', () => {
  const six = { ...PACKET, source: ip('2001:db8::5'), destination: ip('2001:db8::1') }
  expect(createTracer(ruleset({ pre: [[drop]] })).trace(six, SURROUNDINGS).verdict).toBe('accept')
})
