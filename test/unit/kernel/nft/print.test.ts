import { describe, expect, test } from 'vitest'
import { PersistentMap } from '../../../../src/base/collections.ts'
import { describeOperation, printRuleset, rulesetToJson } from '../../../../src/kernel/nft/print.ts'
import { formatElementKey } from '../../../../src/kernel/nft/print-data.ts'
import { formatRule } from '../../../../src/kernel/nft/print-rule.ts'
import type { Element, Expression, Rule, Ruleset } from '../../../../src/kernel/nft/state.ts'
import type { Operation } from '../../../../src/kernel/nft/transaction.ts'
import { columns } from '../../../support/owned.ts'
import { declare } from '../../../support/whole-ruleset.ts'

const [IP, IP6, PROTO, SERVICE, MARK, VERDICT] = [7, 8, 12, 13, 19, 0xffffff00] as const

function type(...fields: number[]): number {
  return fields.reduce((all, field) => (all << 6) | field, 0)
}

const FRONTENDS = declare('frontends', {
  flags: 8,
  keyType: type(IP, PROTO, SERVICE),
  keyLength: 12,
  dataType: MARK,
  dataLength: 4,
  size: 4096,
})
const AFFINITY = declare('affinity', {
  flags: 8 | 16 | 32,
  keyType: type(MARK, IP),
  keyLength: 8,
  dataType: MARK,
  dataLength: 4,
  size: 1_048_576,
  timeoutMs: 10_800_000,
})
const DISPATCH = declare('dispatch', { flags: 8, dataType: VERDICT, dataLength: 16, size: 0 })

const OTHER_KEY = '\x0a\x60\x00\x09\x06\0\0\0\x00\x35\0\0'
const DNS_KEY = '\x0a\x60\x00\x0a\x06\0\0\0\x00\x35\0\0'

function text(...expressions: Expression[]): string {
  return formatRule({ expressions, comment: '' }, { family: 'ip', sets: new Map() })
}

// The expected texts are those of nft 1.0.6 for the same expressions.
describe('a rule is written as nft writes it', () => {
  test('when it matches a family by name', () => {
    const family = (data: string) =>
      text({ kind: 'meta', key: 15, dreg: 1 }, { kind: 'cmp', op: 'eq', sreg: 1, data })
    expect(['\x02', '\x0a'].map(family)).toEqual(['meta nfproto ipv4', 'meta nfproto ipv6'])
  })

  test('when it asks an ipset', () => {
    const match = { kind: 'ipset', set: 'KUBE-CLUSTER-IP' } as const
    const words = text(
      { ...match, dimensions: ['dst', 'dst', 'src'], inverted: false },
      { ...match, dimensions: ['src'], inverted: true },
      { kind: 'counter' },
    )
    expect(words).toBe('match-set KUBE-CLUSTER-IP dst,dst,src ! match-set KUBE-CLUSTER-IP src counter')
  })

  test('with its jumps, its comment and what we do not know', () => {
    const rule: Rule = {
      expressions: [
        { kind: 'payload', base: 1, offset: 9, length: 1, dreg: 8 },
        { kind: 'cmp', op: 'eq', sreg: 8, data: '\x06' },
        { kind: 'unknown', name: 'quota', data: '\x01\x02' },
        { kind: 'verdict', verdict: { code: -4, chain: 'mod-1' } },
      ],
      comment: 'ns1/web',
    }
    expect(formatRule(rule, { family: 'ip', sets: new Map() })).toBe(
      '@nh,72,8 0x06 [quota 0x0102] goto mod-1 comment "ns1/web"',
    )
  })
})

const counting: Rule = { expressions: [{ kind: 'counter' }], comment: '' }

describe('describing operations', () => {
  const at = { family: 'ip', table: 'kube-proxy' } as const
  const dns: Element = { set: 'frontends', key: DNS_KEY, data: '\x10\x20\0\0', comment: '' }

  test('writes an added element with its data and a deleted one without', () => {
    const elements = columns([{ element: dns, group: 'ns1/dns' }])
    expect(describeOperation({ ...at, verb: 'add-elements', set: FRONTENDS, ...elements })).toBe(
      'add element ip kube-proxy frontends { 10.96.0.10 . tcp . 53 : 0x00002010 }',
    )
    expect(describeOperation({ ...at, verb: 'delete-elements', set: FRONTENDS, ...elements })).toBe(
      'delete element ip kube-proxy frontends { 10.96.0.10 . tcp . 53 }',
    )
  })

  test('counts what it does not write out', () => {
    const elements = columns(Array.from({ length: 9 }, () => ({ element: dns, group: '' })))
    const line = describeOperation(
      { ...at, verb: 'delete-elements', set: FRONTENDS, ...elements },
      { elements: 1 },
    )
    expect(line).toBe('delete element ip kube-proxy frontends { 10.96.0.10 . tcp . 53, and 8 more }')
  })

  test.each<[Operation, string]>([
    [{ ...at, verb: 'add-table', flags: 0, comment: undefined }, 'add table ip kube-proxy'],
    [{ ...at, verb: 'delete-table' }, 'delete table ip kube-proxy'],
    [
      {
        ...at,
        verb: 'add-chain',
        chain: { name: 'n', hook: { type: 'nat', hooknum: 0, priority: -100 }, rules: [] },
      },
      'add chain ip kube-proxy n { type nat hook prerouting priority dstnat; policy accept; }',
    ],
    [
      {
        ...at,
        verb: 'add-chain',
        chain: { name: 'n', hook: { type: 'nat', hooknum: 3, priority: -100, policy: 0 }, rules: [] },
      },
      'add chain ip kube-proxy n { type nat hook output priority -100; policy drop; }',
    ],
    [{ ...at, verb: 'flush-chain', chain: 'mod-2' }, 'flush chain ip kube-proxy mod-2'],
    [{ ...at, verb: 'delete-rule', chain: 'mod-2', handle: 7n }, 'delete rule ip kube-proxy mod-2 handle 7'],
    [{ ...at, verb: 'delete-chain', chain: 'mod-2' }, 'delete chain ip kube-proxy mod-2'],
    [{ ...at, verb: 'add-rule', chain: 'c', rule: counting }, 'add rule ip kube-proxy c counter'],
    [{ ...at, verb: 'add-set', set: FRONTENDS }, 'add map ip kube-proxy frontends'],
    [{ ...at, verb: 'delete-set', set: 'slots' }, 'delete set ip kube-proxy slots'],
  ])('writes %o', (operation, line) => {
    expect(describeOperation(operation)).toBe(line)
  })

  // As nft 1.0.6 lists them.
  test.each([
    ['prerouting', -310, 'raw - 10'],
    ['prerouting', -311, '-311'],
    ['output', -150, 'mangle'],
    ['prerouting', -101, 'dstnat - 1'],
    ['prerouting', -99, 'dstnat + 1'],
    ['output', -99, '-99'],
    ['input', -89, '-89'],
    ['input', 10, 'filter + 10'],
    ['input', 11, '11'],
    ['forward', 60, 'security + 10'],
    ['postrouting', 99, 'srcnat - 1'],
    ['input', 100, '100'],
  ])('writes at %s the priority %i as %s', (hook, priority, name) => {
    const hooknum = ['prerouting', 'input', 'forward', 'output', 'postrouting'].indexOf(hook)
    const chain = { name: 'n', hook: { type: 'filter', hooknum, priority }, rules: [] } as const
    expect(describeOperation({ ...at, verb: 'add-chain', chain })).toContain(` priority ${name}; `)
  })
})

describe('printing a ruleset', () => {
  const client = { set: 'affinity', key: '\0\x20\0\0\x0a\0\0\x01', data: '\x01\0\0\x80', comment: '' }
  const ruleset: Ruleset = {
    tables: [
      {
        family: 'ip',
        name: 'kube-proxy',
        flags: 0,
        comment: 'of kprobe',
        sets: new Map([FRONTENDS, AFFINITY, DISPATCH].map(s => [s.name, s] as const)),
        chains: new Map([
          ['mod-1', { name: 'mod-1', hook: undefined, rules: [counting] }],
          ['out', { name: 'out', hook: { type: 'nat', hooknum: 3, priority: -100 }, rules: [] }],
        ]),
        elements: PersistentMap.from<readonly Element[]>([
          ['a', [{ set: 'frontends', key: DNS_KEY, data: '\x10\x20\0\0', comment: 'ns1/dns' }]],
          ['b', [{ set: 'frontends', key: OTHER_KEY, data: '\0\0\0\0', comment: 'evil\n"\u202e' }]],
          ['c', [{ set: 'dispatch', key: '\x10\0\0\0', data: { code: -4, chain: 'mod-1' }, comment: '' }]],
          ['d', [{ ...client, expiresMs: 61_500 }]],
        ]),
      },
    ],
  }

  test('looks like a listing of nft', () => {
    expect([...printRuleset(ruleset)].join('\n')).toBe(LISTING)
  })

  test('gives plain values with readable addresses for JSON', () => {
    expect(JSON.parse(JSON.stringify(rulesetToJson(ruleset)))).toMatchObject({
      tables: [
        {
          family: 'ip',
          name: 'kube-proxy',
          comment: 'of kprobe',
          sets: [
            {
              name: 'frontends',
              elements: [{}, { key: '10.96.0.10 . tcp . 53', data: '0x00002010', comment: 'ns1/dns' }],
            },
            {
              name: 'affinity',
              elements: [{ key: '0x00002000 . 10.0.0.1', data: '0x80000001', expiresMs: 61_500 }],
            },
            { name: 'dispatch', elements: [{ key: '0x00000010', data: 'goto mod-1' }] },
          ],
          chains: [
            { name: 'mod-1', rules: ['counter'] },
            { name: 'out', hook: { hooknum: 'output' } },
          ],
        },
      ],
    })
  })

  test('falls back to hexadecimal for keys of unknown types and wrong lengths', () => {
    expect(formatElementKey({ keyType: 41 }, 'eth0')).toBe('0x65746830')
    expect(formatElementKey({ keyType: IP }, '\x0a\0')).toBe('0x0a00')
    expect(formatElementKey({ keyType: IP6 }, `\xfd${'\0'.repeat(14)}\x01`)).toBe('fd00::1')
  })
})

const LISTING = `table ip kube-proxy {
\tcomment "of kprobe"

\tmap frontends {
\t\ttype ipv4_addr . inet_proto . inet_service : mark
\t\tsize 4096
\t\telements = { 10.96.0.9 . tcp . 53 comment "evil\\n\\"\\u{202e}" : 0x00000000,
\t\t\t     10.96.0.10 . tcp . 53 comment "ns1/dns" : 0x00002010 }
\t}

\tmap affinity {
\t\ttype mark . ipv4_addr : mark
\t\tsize 1048576
\t\tflags dynamic,timeout
\t\ttimeout 3h
\t\telements = { 0x00002000 . 10.0.0.1 expires 1m1s500ms : 0x80000001 }
\t}

\tmap dispatch {
\t\ttype mark : verdict
\t\telements = { 0x00000010 : goto mod-1 }
\t}

\tchain mod-1 {
\t\tcounter
\t}

\tchain out {
\t\ttype nat hook output priority -100; policy accept;
\t}
}`
