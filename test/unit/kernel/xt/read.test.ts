import { describe, expect, it } from 'vitest'
import { compileRule } from '../../../../src/kernel/xt/compile.ts'
import { printRule } from '../../../../src/kernel/xt/print.ts'
import { readRule } from '../../../../src/kernel/xt/read.ts'
import { attribute, str, u32 } from '../../../contract/wire.ts'

/** Expressions built by other means than the product's; numbers are those of linux/netfilter/nf_tables.h. */
function expr(name: string, ...data: readonly Buffer[]): Buffer {
  return attribute(1, Buffer.concat([str(1, name), attribute(2, Buffer.concat(data))]))
}

function value(type: number, hex: string): Buffer {
  return attribute(type, attribute(1, Buffer.from(hex, 'hex')))
}

const meta = (key: number, register = 1) => expr('meta', u32(2, key), u32(1, register))
const payload = (base: number, offset: number, length: number, register = 1) =>
  expr('payload', u32(1, register), u32(2, base), u32(3, offset), u32(4, length))
const cmp = (op: number, hex: string, register = 1) =>
  expr('cmp', u32(1, register), u32(2, op), value(3, hex))
const bitwise = (mask: string, xor: string, register = 1) =>
  expr('bitwise', u32(1, register), u32(2, register), u32(3, mask.length / 2), value(4, mask), value(5, xor))
const match = (name: string, revision: number, hex: string) =>
  expr('match', str(1, name), u32(2, revision), attribute(3, Buffer.from(hex, 'hex')))
const target = (name: string, revision: number, hex: string) =>
  expr('target', str(1, name), u32(2, revision), attribute(3, Buffer.from(hex, 'hex')))
const counter = expr('counter', attribute(1, Buffer.alloc(8)), attribute(2, Buffer.alloc(8)))
const accept = expr('immediate', u32(1, 0), attribute(2, attribute(2, u32(1, 1))))
const TCP = [meta(16), cmp(0, '06')]

function printed(...expressions: readonly Buffer[]): string {
  return printRule(readRule(Buffer.concat(expressions).toString('latin1'), 'ip'), 'ip')
}

describe('what other versions of iptables wrote', () => {
  const same: readonly (readonly [what: string, line: string, expressions: readonly Buffer[]])[] = [
    [
      'ports in the structure of the match',
      '-p tcp -m tcp --sport 1:2 ! --dport 80 -j ACCEPT',
      [...TCP, match('tcp', 0, '010002005000500000000002' + '00000000'), counter, accept],
    ],
    [
      'ports of UDP in the structure of the match',
      '-p udp -m udp --dport 53 -j ACCEPT',
      [meta(16), cmp(0, '11'), match('udp', 0, '0000ffff35003500' + '0000000000000000'), counter, accept],
    ],
    [
      'a range as two comparisons',
      '-p tcp -m tcp --dport 90:100',
      [...TCP, payload(2, 2, 2), cmp(5, '005a'), cmp(3, '0064'), counter],
    ],
    [
      'a range as two others',
      '-p tcp -m tcp --dport 90:100',
      [...TCP, payload(2, 2, 2), cmp(2, '0065'), cmp(4, '0059'), counter],
    ],
    [
      'a mark in the structure of the match',
      '-m mark ! --mark 0x4000/0x4000',
      [match('mark', 1, '0040000000400000' + '0100000000000000')],
    ],
    ['the protocol out of the header', '-p udp -j ACCEPT', [payload(1, 9, 1), cmp(0, '11'), counter, accept]],
    [
      'other registers',
      '-s 10.0.0.0/8 -j ACCEPT',
      [payload(1, 12, 1, 12), cmp(0, '0a', 12), counter, accept],
    ],
    [
      'a whole address with the mask of a prefix of whole bytes',
      '-s 10.1.0.0/16',
      [payload(1, 12, 4), bitwise('ffff0000', '00000000'), cmp(0, '0a010000'), counter],
    ],
    [
      'the protocol before the interface, and the destination before the source',
      '-s 10.0.0.0/8 -d 11.0.0.0/8 -i lo -p tcp',
      [...TCP, payload(1, 16, 1), cmp(0, '0b'), payload(1, 12, 1), cmp(0, '0a'), meta(6), cmp(0, '6c6f00')],
    ],
    ['a name padded to the whole field', '-i lo', [meta(6), cmp(0, `6c6f${'00'.repeat(14)}`), counter]],
    [
      'DNAT of revision 0',
      '-j DNAT --to-destination 10.0.0.1:80',
      [counter, target('DNAT', 0, '01000000' + '03000000' + '0a0000010a000001' + '00500050' + '00000000')],
    ],
    [
      'DNAT of revision 1',
      '-j DNAT --to-destination 10.0.0.1:80',
      [counter, target('DNAT', 1, `03000000${`0a000001${'00'.repeat(12)}`.repeat(2)}00500050`)],
    ],
    [
      'a list of recent whose mask was given',
      '-m recent --set --name A --mask 255.255.255.255 --rsource',
      [
        match(
          'recent',
          1,
          `${'00'.repeat(8)}0200${'41'}${'00'.repeat(201)}ffffffff${'00'.repeat(16)}`.padEnd(464, '0'),
        ),
      ],
    ],
    ['no counter', '-j ACCEPT', [accept]],
  ]
  it.each(same)('%s', (_, line, expressions) => {
    expect(printed(...expressions)).toBe(line)
  })
})

/** struct xt_conntrack_mtinfo3 with the state as its only condition. */
function conntrack(states: string): string {
  return `${'00'.repeat(146)}01000000${states}${'00'.repeat(16)}`
}

/** struct xt_recent_mtinfo_v1 that asks for the source, or for the destination. */
function recentBy(side: '00' | '01'): string {
  return `${'00'.repeat(8)}020041${'00'.repeat(199)}${side}00${'ff'.repeat(16)}00000000`
}

describe('what nobody has words for', () => {
  const kept: readonly (readonly [what: string, line: RegExp, expressions: readonly Buffer[]])[] = [
    [
      'another match',
      /^\[match multiport revision 1 0x0102\] -j ACCEPT$/,
      [match('multiport', 1, '0102'), counter, accept],
    ],
    ['another revision', /^\[match comment revision 1 0x[0]+\]$/, [match('comment', 1, '00'.repeat(256))]],
    [
      'a structure of another size',
      /^\[match addrtype revision 1 0x0000040000\]$/,
      [match('addrtype', 1, '0000040000')],
    ],
    [
      'a bit where there should be none',
      /^\[match physdev revision 0 /,
      [match('physdev', 0, `01${'00'.repeat(64)}08${'00'.repeat(6)}`)],
    ],
    [
      'a probability the other way round',
      /^\[match statistic revision 0 /,
      [match('statistic', 0, `00000100000000400000000000000040${'00'.repeat(8)}`)],
    ],
    ['a state without a word', /^\[match conntrack /, [match('conntrack', 3, conntrack('1800'))]],
    ['a type without a word', /^\[match addrtype /, [match('addrtype', 1, '0010040000000000')]],
    ['a list by destination', /^\[match recent /, [match('recent', 1, recentBy('01'))]],
    ['another target', /^\[target LOG revision 0 0xaa\]$/, [target('LOG', 0, 'aa')]],
    ['an expression by itself', /^\[nf_tables limit 0x\] -j ACCEPT$/, [expr('limit'), counter, accept]],
    ['a load without a comparison', /^\[nf_tables meta 0x[0-9a-f]+\]$/, [meta(16)]],
    [
      'a comparison with another register',
      /^\[nf_tables meta 0x.*\] \[nf_tables cmp 0x.*\]$/,
      [meta(16), cmp(0, '06', 9)],
    ],
    [
      'bits that are flipped',
      /\[nf_tables bitwise /,
      [meta(3), bitwise('ffffffff', '00000001'), cmp(0, '01000000')],
    ],
    [
      'ports of no protocol',
      /^\[nf_tables payload 0x.*\] \[nf_tables cmp /,
      [payload(2, 2, 2), cmp(0, '0050')],
    ],
    [
      'ports of any protocol but one',
      /\[nf_tables payload /,
      [meta(16), cmp(1, '06'), payload(2, 2, 2), cmp(0, '0050')],
    ],
    [
      'a second source',
      /^-s 10.0.0.0\/8 \[nf_tables payload/,
      [payload(1, 12, 1), cmp(0, '0a'), payload(1, 12, 1), cmp(0, '0b')],
    ],
    [
      'an address that its mask forbids',
      /\[nf_tables bitwise /,
      [payload(1, 12, 4), bitwise('ff000000', '00000000'), cmp(0, '0a000001')],
    ],
    [
      'a source behind a list that it should not be in',
      /--set .* \[nf_tables payload /,
      [match('recent', 1, recentBy('00')), payload(1, 12, 1), cmp(0, '0a')],
    ],
    ['something behind the target', /^\[nf_tables immediate 0x.*\] -j ACCEPT$/, [counter, accept, accept]],
    [
      'a verdict of another kind',
      /^\[nf_tables immediate /,
      [expr('immediate', u32(1, 0), attribute(2, attribute(2, u32(1, 3))))],
    ],
    [
      'a jump nowhere',
      /^\[nf_tables immediate /,
      [expr('immediate', u32(1, 0), attribute(2, attribute(2, u32(1, 0xfffffffd))))],
    ],
    [
      'bytes that are no expression',
      /^\[nf_tables bytes 0x01020304\] -j ACCEPT$/,
      [accept, Buffer.from('01020304', 'hex')],
    ],
    [
      'a structure with a byte where it has no field',
      /^-p tcp \[/,
      [...TCP, match('tcp', 0, '010002005000500000000002' + '00000001')],
    ],
  ]
  it.each(kept)('%s', (_, line, expressions) => {
    expect(printed(...expressions)).toMatch(line)
  })

  it('is written as it was read', () => {
    const bytes = Buffer.concat([
      ...TCP,
      match('multiport', 1, '0102'),
      expr('limit', u32(1, 5)),
      counter,
      target('LOG', 3, 'aabb'),
    ]).toString('latin1')
    expect(compileRule(readRule(bytes, 'ip'), 'ip').compiled).toBe(bytes)
  })

  it('has the number of a set whose name is not known', () => {
    const bytes = Buffer.concat([match('set', 4, `0700020${'2'}${'00'.repeat(44)}`), counter]).toString(
      'latin1',
    )
    expect(printRule(readRule(bytes, 'ip'), 'ip')).toBe('-m set --match-set [ipset 7] src,dst')
    expect(
      printRule(
        readRule(bytes, 'ip', index => `set-${index}`),
        'ip',
      ),
    ).toBe('-m set --match-set set-7 src,dst')
  })
})
