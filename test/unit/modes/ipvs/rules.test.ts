import { describe, expect, it } from 'vitest'
import { formatRule } from '../../../../src/kernel/nft/print-rule.ts'
import type { TableContext } from '../../../../src/modes/common/rules.ts'
import { LAYOUTS } from '../../../../src/modes/common/tables.ts'
import { declareNftSet, NFT_SET_NAMES } from '../../../../src/modes/ipvs/layout.ts'
import { rulesOf } from '../../../../src/modes/ipvs/rules.ts'

const IP: TableContext = {
  layout: LAYOUTS.ip,
  masqueradeMark: 0x4000,
  masqueradeAll: false,
  detector: undefined,
  nodePorts: { kind: 'all' },
  serviceCidrs: [],
}

describe('the rules', () => {
  it('ask for the protocol of a NodePort, which a bitmap does not know', () => {
    const sets = new Map(NFT_SET_NAMES.map(name => [name, declareNftSet(name, 64, LAYOUTS.ip)] as const))
    const chain = rulesOf('nftables', IP).find(({ name }) => name === 'node-ports')
    expect(chain?.rules.map(rule => formatRule(rule, { family: 'ip', sets }))).toMatchInlineSnapshot(`
      [
        "meta l4proto tcp match-set KUBE-NODE-PORT-LOCAL-TCP dst goto external-local",
        "meta l4proto tcp match-set KUBE-NODE-PORT-TCP dst goto external",
        "meta l4proto udp match-set KUBE-NODE-PORT-LOCAL-UDP dst goto external-local",
        "meta l4proto udp match-set KUBE-NODE-PORT-UDP dst goto external",
        "meta l4proto sctp match-set KUBE-NODE-PORT-LOCAL-SCTP-HASH dst,dst goto external-local",
        "meta l4proto sctp match-set KUBE-NODE-PORT-SCTP-HASH dst,dst goto external",
      ]
    `)
  })
})
