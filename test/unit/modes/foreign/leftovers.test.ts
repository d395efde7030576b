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

const AROUND: Neighborhood = {
  chains: [],
  tableName: 'kube-proxy',
  legacyTables: [],
  virtualServers: [],
  writesIptables: false,
}

type Found = Neighborhood['chains'][number]

function chainOf(table: string, name: string, hook?: Found['chain']['hook']): Found {
  return { family: 'ip', table, chain: { name, hook, rules: [] } }
}

const NAT = { type: 'nat', hooknum: 0, priority: -100, policy: 1 } as const

/** `note: what there is`, and the advice behind where it is asked for. */
function told(more: Partial<Neighborhood>, hasAdvice = false): readonly string[] {
  return neighborsOf({ ...AROUND, ...more }).map(
    ({ severity, what, advice }) => `${severity}: ${what}${hasAdvice ? `: ${advice}` : ''}`,
  )
}

describe('kprobe doctor', () => {
  it('names chains, ipsets and the device, each with what removes it', () => {
    const chains = [chainOf('nat', 'KUBE-SEP-SXIVWICOYRO3J4NJ')]
    expect(told({ chains, wroteIptables: true }, true)).toEqual([
      "warning: kprobe's iptables mode wrote chains in ip nat: they may catch Service traffic before another mode does; if no kprobe runs in iptables mode, `kprobe cleanup --proxy-mode=iptables` removes them",
    ])
    expect(told({ chains, wroteIptables: true, writesIptables: true }, true)).toEqual([
      "note: chains of an iptables mode are in ip nat: kprobe's iptables mode wrote them, or adopted them from kube-proxy",
    ])
    expect(told({ chains, leftElsewhere: ['2 ipsets'] }, true)).toEqual([
      `warning: an iptables mode, kube-proxy's or kprobe's, left chains in ip nat: they may catch Service traffic before kprobe does; ${REMOVES} removes them`,
      `note: kube-proxy left 2 ipsets: ${REMOVES} removes it`,
    ])
  })

  it('tells what kube-proxy has in legacy iptables, and that two flavours are at work', () => {
    const legacyTables: Neighborhood['legacyTables'] = [
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
    ]
    expect(told({ legacyTables, writesIptables: true })).toEqual([
      "warning: kube-proxy's iptables mode has 2 chains with 5 rules in legacy iptables (ip nat)",
      'note: cannot check whether kube-proxy has chains in legacy iptables (ip6 nat)',
      'warning: legacy iptables tables are in use: ip nat, ip6 nat, beside those of iptables-nft, which kprobe writes in this mode',
    ])
    expect(told({ legacyTables: [{ family: 'ip', name: 'filter', chains: [] }] })).toEqual([
      'note: legacy iptables tables are in use: ip filter',
    ])
  })

  it('takes nothing of the others for leftovers where a named proxy asks, and knows their tables', () => {
    const tables = ['kube-proxy', 'kube-proxy-red', 'kube-proxy-mine', 'other']
    const found = neighborsOf({
      ...AROUND,
      chains: [chainOf('nat', 'KUBE-SERVICES'), ...tables.map(name => chainOf(name, 'prerouting', NAT))],
      tableName: 'kube-proxy-mine',
      virtualServers: ['TCP 0A600001:0050 rr'],
      proxy: 'edge',
    })
    const translates = (table: string, advice: string) => ({
      severity: 'note',
      what: `ip ${table} prerouting translates addresses too (prerouting, priority -100)`,
      advice: expect.stringContaining(advice),
    })
    expect(found).toEqual([
      translates('kube-proxy', 'a table of the unnamed proxy'),
      translates('kube-proxy-red', '`kprobe run --service-proxy-name=red`'),
      translates('other', 'this chain runs after kprobe'),
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
      const chains = [chainOf('other', 'a', { ...NAT, hooknum, priority })]
      expect(neighborsOf({ ...AROUND, chains, ...more })).toMatchObject([
        { advice: expect.stringMatching(advice) },
      ])
    },
  )

  it('does not call the table that its own jumps are in a stranger', () => {
    const chains = ['nat', 'other'].map(table => chainOf(table, 'PREROUTING', NAT))
    const own = told({ chains, writesIptables: true })
    expect(own).toEqual([expect.stringMatching(/: ip other PREROUTING translates/)])
    expect(told({ chains })).toHaveLength(2)
  })

  it('does not take chains of kubelet and of network policies for those of kube-proxy', () => {
    const chains = ['KUBE-FIREWALL', 'KUBE-ROUTER-INPUT'].map(name => chainOf('filter', name))
    expect(told({ chains })).toEqual(['note: kube-router is on this node (rules in ip filter)'])
  })
})
