import { describe, expect, it } from 'vitest'
import type { Observed } from '../../../../src/kernel/nft/state.ts'
import { compileRule } from '../../../../src/kernel/xt/compile.ts'
import { printRule, printTables } from '../../../../src/kernel/xt/print.ts'
import type { XtRule } from '../../../../src/kernel/xt/rule.ts'
import { address, ports } from '../../../support/xt-words.ts'

/** What the contract suite compares with iptables-save is not repeated here: only what this kernel, or no tool, can tell. */

const rule = (parts: Partial<XtRule>): XtRule => ({ matches: [], target: { kind: 'RETURN' }, ...parts })

describe('a rule as text', () => {
  it('names an IPVS server in the words of iptables-save, one of which iptables does not take', () => {
    const vaddr = address('10.0.0.1', 32)
    const server = rule({ matches: [{ kind: 'ipvs', vproto: 6, vaddr, vport: 80 }] })
    expect(printRule(server, 'ip')).toBe('-m ipvs --proto 6 --vaddr 10.0.0.1 --vport 80 -j RETURN')
    const net = rule({ matches: [{ kind: 'ipvs', vaddr: address('fd00::', 64, true), vport: 80 }] })
    expect(printRule(net, 'ip6')).toBe('-m ipvs ! --vaddr fd00::/64 --vport 80 -j RETURN')
  })

  it('is empty for one that only counts', () => {
    expect(printRule({ matches: [], target: undefined }, 'ip')).toBe('')
  })

  it('leaves out what asks nothing', () => {
    const nothing = rule({
      protocol: { number: 6, inverted: false },
      source: address('10.0.0.1', 0),
      inInterface: { name: '+', inverted: false },
      matches: [{ kind: 'tcp', destinationPorts: ports(0, 65_535) }],
    })
    expect(printRule(nothing, 'ip')).toBe('-p tcp -m tcp -j RETURN')
  })
})

describe('tables as text', () => {
  const compiled = (one: XtRule) => compileRule(one, 'ip').compiled
  const observed: Observed = new Map([
    [
      'ip nat',
      {
        chains: new Map([
          ['b', { name: 'b', hook: undefined, rules: [] }],
          ['A', { name: 'A', hook: undefined, rules: [{ handle: 1n, compiled: compiled(rule({})) }] }],
        ]),
      },
    ],
    [
      'ip filter',
      {
        chains: new Map([
          [
            'FORWARD',
            {
              name: 'FORWARD',
              hook: { type: 'filter', hooknum: 2, priority: 0, policy: 0 },
              rules: [{ handle: 2n, compiled: compiled({ matches: [], target: undefined }) }],
            },
          ],
        ]),
      },
    ],
    ['ip6 nat', { chains: new Map() }],
  ])

  it('come in the order of iptables-save, those of one family alone', () => {
    expect(printTables(observed, 'ip')).toBe(
      [
        '*filter',
        ':INPUT ACCEPT [0:0]',
        ':FORWARD DROP [0:0]',
        ':OUTPUT ACCEPT [0:0]',
        '-A FORWARD',
        'COMMIT',
        '*nat',
        ':PREROUTING ACCEPT [0:0]',
        ':INPUT ACCEPT [0:0]',
        ':OUTPUT ACCEPT [0:0]',
        ':POSTROUTING ACCEPT [0:0]',
        ':A - [0:0]',
        ':b - [0:0]',
        '-A A -j RETURN',
        'COMMIT',
        '',
      ].join('\n'),
    )
  })
})
