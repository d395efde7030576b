import { describe, expect, it } from 'vitest'
import type { Touched } from '../../../../src/kernel/nft/monitor.ts'
import { compileRule } from '../../../../src/kernel/xt/compile.ts'
import { isOurChain, KUBE_CHAINS, OtherChains, touchesUs } from '../../../../src/modes/xt-common/layout.ts'

const RULE: Touched = {
  family: 'ip',
  table: 'nat',
  chain: 'PREROUTING',
  handle: undefined,
  targets: () => [],
}

function jumpTo(chain: string, handle: bigint) {
  const { compiled } = compileRule({ matches: [], target: { kind: 'jump', chain } }, 'ip')
  return { handle, compiled }
}

function otherChains(): OtherChains {
  const others = new OtherChains()
  const rules = [jumpTo('KUBE-SERVICES', 4n), jumpTo('DOCKER', 5n)]
  const chain = (name: string) => [name, { name, hook: undefined, rules }] as const
  const chains = new Map(['PREROUTING', 'POSTROUTING', 'KUBE-SERVICES'].map(chain))
  others.read(new Map([['ip nat', { chains }]]), (table, name) => isOurChain(KUBE_CHAINS, table, name))
  const place = { family: 'ip', table: 'nat', owner: undefined, chain: 'POSTROUTING' } as const
  others.wrote([{ ...place, verb: 'insert-rule', rule: { matches: [], target: undefined } }])
  return others
}

describe('what somebody else touched', () => {
  it.each<[string, Partial<Touched>, boolean]>([
    ['a whole table', { chain: undefined }, true],
    ['a whole table of no concern', { chain: undefined, table: 'kubesphere' }, false],
    ['a chain of ours', { chain: 'KUBE-SVC-ABCDEFGHIJKLMNOP' }, true],
    ['a chain of that name in another table', { table: 'filter', chain: 'KUBE-SVC-ABCDEFGHIJKLMNOP' }, false],
    ["kubelet's chain, which holds a rule of ours", { table: 'filter', chain: 'KUBE-FIREWALL' }, true],
    ["kubelet's canary", { table: 'mangle', chain: 'KUBE-KUBELET-CANARY' }, false],
    ['a rule that leads to us', { targets: () => ['KUBE-SERVICES'] }, true],
    ['a rule that leads elsewhere', { targets: () => ['DOCKER'] }, false],
    ['a rule of which the number alone is told, and led to us', { handle: 4n }, true],
    ['a rule of which the number alone is told, and led elsewhere', { handle: 5n }, false],
    ['a rule of a number that nobody had', { handle: 6n }, false],
    ['a rule of which the number alone is told, in a chain not known', { chain: 'INPUT', handle: 6n }, true],
    [
      'a rule of which the number alone is told, where we wrote since',
      { chain: 'POSTROUTING', handle: 5n },
      true,
    ],
  ])('concerns us or not: %s', (_, touched, concerns) => {
    expect(touchesUs({ ...RULE, ...touched }, otherChains(), KUBE_CHAINS)).toBe(concerns)
  })
})
