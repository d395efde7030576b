import { describe, expect, it } from 'vitest'
import { isKubeProxyIpset, isKubeProxyTable, KUBE_PROXY } from '../../../../src/modes/common/kube-proxy.ts'
import {
  keptTexts,
  type Leftovers,
  leftoverTexts,
  removedTexts,
} from '../../../../src/modes/foreign/leftovers.ts'
import { type Neighborhood, neighborsOf } from '../../../../src/modes/foreign/neighbors.ts'

describe("what is kube-proxy's", () => {
  it.each([
    'KUBE-SERVICES',
    'KUBE-PROXY-CANARY',
    'KUBE-MARK-MASQ',
    'KUBE-SVC-XPGD46QRK7WJZT7O',
    'KUBE-SEP-SXIVWICOYRO3J4NJ',
    'KUBE-SVL-NPX46M4PTMTKRN6Y',
    'KUBE-IPVS-OUT-FILTER',
  ])('the chain %s', name => expect(KUBE_PROXY.ownsChain(name)).toBe(true))

  it.each([
    'KUBE-FIREWALL',
    'KUBE-KUBELET-CANARY',
    'KUBE-MARK-DROP',
    'KUBE-ROUTER-INPUT',
    'KUBE-NWPLCY-ABCDEFGHIJKLMNOP',
    'KUBE-SVC-SHORT',
    'KUBE-SVC-XPGD46QRK7WJZT7O-X',
    'DOCKER',
  ])('not the chain %s', name => expect(KUBE_PROXY.ownsChain(name)).toBe(false))

  it('a jump to one of its entrances with its comment', () => {
    const rule = {
      handle: 1n,
      targets: ['KUBE-SERVICES'],
      sets: [],
      comments: ['kubernetes service portals'],
    }
    expect(KUBE_PROXY.ownsJump(rule)).toBe(true)
    expect(KUBE_PROXY.ownsJump({ ...rule, comments: ['mine'] })).toBe(false)
    expect(KUBE_PROXY.ownsJump({ ...rule, comments: [] })).toBe(false)
    expect(KUBE_PROXY.ownsJump({ ...rule, targets: ['KUBE-MARK-MASQ'] })).toBe(false)
  })

  it('a table with its chains, and ipsets with its names', () => {
    const services = (set: string) => ({ name: 'services', sets: [set] })
    const check = { name: 'service-endpoints-check', sets: [] }
    expect(isKubeProxyTable([services('frontends')])).toBe(false)
    expect(isKubeProxyTable([services('service-ips'), check])).toBe(true)
    // While both run, there are moments with chains of both.
    expect(isKubeProxyTable([services('frontends'), check])).toBe(false)
    const named = ['KUBE-CLUSTER-IP', 'KUBE-6-NODE-PORT-TCP', 'KUBE-ROUTER-X', 'X-KUBE-CLUSTER-IP']
    expect(named.filter(isKubeProxyIpset)).toEqual(['KUBE-CLUSTER-IP', 'KUBE-6-NODE-PORT-TCP'])
  })
})

const NOTHING: Leftovers = {
  nftables: [],
  iptables: [],
  elsewhere: { legacyTables: [], virtualServers: [], ipsets: [], device: false },
}
const REMOVES = '`kprobe cleanup --leftovers-of=kube-proxy`'

describe('the texts', () => {
  it('are none where nothing is left', () => {
    expect(leftoverTexts(NOTHING)).toEqual([])
    expect(removedTexts(NOTHING)).toEqual([])
    expect(keptTexts(NOTHING)).toEqual([])
  })

  it('name everything with the command that removes it', () => {
    const found: Leftovers = {
      nftables: [{ family: 'ip6', name: 'kube-proxy' }],
      iptables: [
        {
          table: { family: 'ip', name: 'nat' },
          chains: ['KUBE-SERVICES'],
          jumps: 2,
          kept: [{ chain: 'KUBE-MARK-MASQ', usedBy: 'MINE' }],
          transaction: [],
        },
      ],
      elsewhere: {
        legacyTables: [
          { family: 'ip', name: 'filter', chains: [{ name: 'MINE', rules: 3 }] },
          {
            family: 'ip',
            name: 'nat',
            chains: [
              { name: 'KUBE-SERVICES', rules: 2 },
              { name: 'KUBE-FIREWALL', rules: 1 },
            ],
          },
          { family: 'ip6', name: 'nat', chains: 'no way to ask' },
        ],
        virtualServers: ['TCP 0A600001:0050 rr'],
        ipsets: ['KUBE-A', 'KUBE-B', 'KUBE-C', 'KUBE-D'],
        device: true,
      },
    }
    expect(leftoverTexts(found).map(({ what, command }) => `${what}: ${command}`)).toEqual([
      `table ip6 kube-proxy of its nftables mode: ${REMOVES}`,
      `1 chain and 2 rules that led to them in table ip nat of its iptables mode, or of kprobe's, whose chains have the same names: ${REMOVES}`,
      '1 chain of its iptables mode in legacy iptables, table ip nat: `kube-proxy --cleanup`',
      'its chains, if any, in legacy iptables, table ip6 nat, which cannot be read (no way to ask): `kube-proxy --cleanup`',
      '1 IPVS virtual server, if they are its; the command removes all virtual servers, those of other programs too: `kube-proxy --cleanup`',
      `4 ipsets of its IPVS mode (KUBE-A, KUBE-B, KUBE-C, ...): ${REMOVES}`,
      `the network device kube-ipvs0 of its IPVS mode: ${REMOVES}`,
    ])
    expect(leftoverTexts(found, 'kprobe').filter(({ by }) => by === 'kprobe')).toEqual([
      {
        by: 'kprobe',
        what: '1 chain and 2 rules that led to them in table ip nat of its iptables mode',
        command: '`kprobe cleanup --proxy-mode=iptables`',
      },
    ])
    expect(removedTexts(found)).toEqual([
      'table ip6 kube-proxy',
      '1 chain and 2 rules that led to them in table ip nat',
    ])
    expect(keptTexts(found)).toEqual(['chain KUBE-MARK-MASQ in table ip nat, which MINE leads to'])
  })
})

describe('kprobe doctor', () => {
  it('names chains, ipsets and the device, each with what removes it', () => {
    const chain = { name: 'KUBE-SEP-SXIVWICOYRO3J4NJ', hook: undefined, rules: [] }
    const around: Neighborhood = {
      chains: [{ family: 'ip', table: 'nat', chain }],
      tableName: 'kube-proxy',
      legacyTables: [],
      virtualServers: [],
      leftElsewhere: ['2 ipsets'],
      writesIptables: false,
    }
    const told = (more: Partial<Neighborhood>) =>
      neighborsOf({ ...around, ...more }).map(
        ({ severity, what, advice }) => `${severity}: ${what}: ${advice}`,
      )
    expect(told({ wroteIptables: true, leftElsewhere: [] })).toEqual([
      "warning: kprobe's iptables mode wrote chains in ip nat: they may catch Service traffic before another mode does; if no kprobe runs in iptables mode, `kprobe cleanup --proxy-mode=iptables` removes them",
    ])
    expect(told({ wroteIptables: true, writesIptables: true, leftElsewhere: [] })).toEqual([
      "note: chains of an iptables mode are in ip nat: kprobe's iptables mode wrote them, or adopted them from kube-proxy",
    ])
    expect(told({})).toEqual([
      `warning: an iptables mode, kube-proxy's or kprobe's, left chains in ip nat: they may catch Service traffic before kprobe does; ${REMOVES} removes them`,
      `note: kube-proxy left 2 ipsets: ${REMOVES} removes it`,
    ])
  })

  it('tells what kube-proxy has in legacy iptables, and that two flavours are at work', () => {
    const around: Neighborhood = {
      chains: [],
      tableName: 'kube-proxy',
      virtualServers: [],
      writesIptables: true,
      legacyTables: [
        {
          family: 'ip',
          name: 'nat',
          chains: [
            { name: 'KUBE-SERVICES', rules: 2 },
            { name: 'KUBE-SEP-SXIVWICOYRO3J4NJ', rules: 3 },
            { name: 'MINE', rules: 9 },
          ],
        },
        { family: 'ip6', name: 'nat', chains: 'no way to ask' },
      ],
    }
    const told = (of: Neighborhood) => neighborsOf(of).map(({ severity, what }) => `${severity}: ${what}`)
    expect(told(around)).toEqual([
      "warning: kube-proxy's iptables mode has 2 chains with 5 rules in legacy iptables (ip nat)",
      'note: cannot check whether kube-proxy has chains in legacy iptables (ip6 nat)',
      'warning: legacy iptables tables are in use: ip nat, ip6 nat, beside those of iptables-nft, which kprobe writes in this mode',
    ])
    const legacyTables = [{ family: 'ip' as const, name: 'filter', chains: [] }]
    expect(told({ ...around, writesIptables: false, legacyTables })).toEqual([
      'note: legacy iptables tables are in use: ip filter',
    ])
  })

  it('takes nothing of the others for leftovers where a named proxy asks, and knows their tables', () => {
    const hook = { type: 'nat', hooknum: 0, priority: -100, policy: 1 } as const
    const nat = (table: string): Neighborhood['chains'][number] => ({
      family: 'ip',
      table,
      chain: { name: 'prerouting', hook, rules: [] },
    })
    const around: Neighborhood = {
      chains: [
        { family: 'ip', table: 'nat', chain: { name: 'KUBE-SERVICES', hook: undefined, rules: [] } },
        ...['kube-proxy', 'kube-proxy-red', 'kube-proxy-mine', 'other'].map(nat),
      ],
      tableName: 'kube-proxy-mine',
      legacyTables: [],
      virtualServers: ['TCP 0A600001:0050 rr'],
      writesIptables: false,
      proxy: 'edge',
    }
    expect(neighborsOf(around)).toEqual([
      {
        severity: 'note',
        what: 'ip kube-proxy prerouting translates addresses too (prerouting, priority -100)',
        advice: expect.stringContaining('a table of the unnamed proxy'),
      },
      {
        severity: 'note',
        what: 'ip kube-proxy-red prerouting translates addresses too (prerouting, priority -100)',
        advice: expect.stringContaining('`kprobe run --service-proxy-name=red`'),
      },
      {
        severity: 'note',
        what: 'ip other prerouting translates addresses too (prerouting, priority -100)',
        advice: expect.stringContaining('this chain runs after kprobe'),
      },
    ])
  })

  it.each([
    [0, -102, {}, /^this chain runs before kprobe; connections that it translates never reach a Service$/],
    [0, -101, {}, /the newer chain runs first/],
    [3, -100, {}, /^this chain runs after kprobe/],
    [0, -100, { writesIptables: true }, /the newer chain runs first/],
    [0, -100, { usesIpvs: true }, /^this chain runs before kprobe/],
    [0, -101, { proxy: 'edge' }, /^this chain runs after kprobe/],
    [4, 100, {}, /^connections whose source this chain translates first are not masqueraded/],
  ])(
    'says whether a NAT chain at hook %i with priority %i runs before kprobe (%j)',
    (hooknum, priority, more, advice) => {
      const hook = { type: 'nat', hooknum, priority, policy: 1 } as const
      const chains = [{ family: 'ip', table: 'other', chain: { name: 'a', hook, rules: [] } }]
      const around = { chains, tableName: 'kube-proxy', legacyTables: [], virtualServers: [] }
      expect(neighborsOf({ ...around, writesIptables: false, ...more })).toMatchObject([
        { advice: expect.stringMatching(advice) },
      ])
    },
  )

  it('does not call the table that its own jumps are in a stranger', () => {
    const hook = { type: 'nat', hooknum: 0, priority: -100, policy: 1 } as const
    const chains = ['nat', 'other'].map(table => ({
      family: 'ip',
      table,
      chain: { name: 'PREROUTING', hook, rules: [] },
    }))
    const around = { chains, tableName: 'kube-proxy', legacyTables: [], virtualServers: [] }
    const told = (writesIptables: boolean) =>
      neighborsOf({ ...around, writesIptables }).map(({ what }) => what)
    expect(told(true)).toEqual([expect.stringMatching(/^ip other PREROUTING translates/)])
    expect(told(false)).toHaveLength(2)
  })

  it('does not take chains of kubelet and of network policies for those of kube-proxy', () => {
    const chains = ['KUBE-FIREWALL', 'KUBE-ROUTER-INPUT'].map(name => ({
      family: 'ip',
      table: 'filter',
      chain: { name, hook: undefined, rules: [] },
    }))
    const around = {
      chains,
      tableName: 'kube-proxy',
      legacyTables: [],
      virtualServers: [],
      writesIptables: false,
    }
    expect(neighborsOf(around).map(({ severity, what }) => `${severity}: ${what}`)).toEqual([
      'note: kube-router is on this node (rules in ip filter)',
    ])
  })
})
