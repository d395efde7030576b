import { describe, expect, it } from 'vitest'
import { DEFAULT_IPTABLES_OPTIONS } from '../../../../src/modes/iptables/settings.ts'
import { staticsOf } from '../../../../src/modes/iptables/state.ts'
import { cidr, ip } from '../../../support/addresses.ts'
import { node, tableOf } from '../../model/objects.ts'
import { fixedLines, jumpLines, staticsIn } from './rendered-text.ts'

const TABLE = tableOf([])
const IPV4_ONLY = (line: string): boolean => !line.startsWith('ip6 ')

function onAddresses(ips: readonly string[], localhostNodePorts: boolean) {
  const nodePorts = {
    IPv4: { kind: 'only', ips: ips.map(ip) },
    IPv6: { kind: 'only', ips: [ip('::1'), ip('fd00::1')] },
  } as const
  const options = { ...DEFAULT_IPTABLES_OPTIONS, localhostNodePorts }
  return staticsOf(options, { nodePorts, node: TABLE.node }, false)
}

describe('the chains that are always there', () => {
  it('leave packets in state INVALID alone where the kernel is liberal', () => {
    const lines = fixedLines(staticsIn({ options: { tcpBeLiberal: true } }))
    expect(lines.filter(line => line.includes('INVALID'))).toEqual([])
  })

  it('say what kube-proxy says in them, in both families', () => {
    const nfacct = { invalidDropped: true, localhostAccepted: true }
    expect(fixedLines(staticsIn({ options: { nfacct } }))).toMatchInlineSnapshot(`
      [
        "filter KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP",
        "filter KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT",
        "filter KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "nat KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
        "nat KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
        "nat KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
        "nat KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully",
        "nat KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
        "ip6 filter KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP",
        "ip6 filter KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT",
        "ip6 filter KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "ip6 nat KUBE-SERVICES ! -d ::1/128 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
        "ip6 nat KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
        "ip6 nat KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
        "ip6 nat KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully",
        "ip6 nat KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
      ]
    `)
  })

  it('use the mark that is asked for, the highest bit as well', () => {
    const lines = fixedLines(staticsIn({ options: { masqueradeBit: 31 } })).filter(IPV4_ONLY)
    expect(lines.filter(line => line.includes('mark'))).toMatchInlineSnapshot(`
      [
        "filter KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x80000000/0x80000000 -j ACCEPT",
        "nat KUBE-POSTROUTING -m mark ! --mark 0x80000000/0x80000000 -j RETURN",
        "nat KUBE-POSTROUTING -j MARK --set-xmark 0x80000000/0x0",
        "nat KUBE-MARK-MASQ -j MARK --set-xmark 0x80000000/0x80000000",
      ]
    `)
  })

  it('lead to NodePorts last: at local addresses, at those but loopback, or at each that is listed', () => {
    const tail = (statics = staticsIn()) =>
      fixedLines(statics)
        .filter(line => line.includes('KUBE-SERVICES'))
        .map(line => line.replace(/-m comment --comment "[^"]*" /, ''))
    expect(tail(staticsIn({ options: { localhostNodePorts: false } }))).toMatchInlineSnapshot(`
      [
        "nat KUBE-SERVICES ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
        "ip6 nat KUBE-SERVICES ! -d ::1/128 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
      ]
    `)
    expect(tail(onAddresses(['127.0.0.1', '192.168.1.7'], true))).toMatchInlineSnapshot(`
      [
        "nat KUBE-SERVICES -d 127.0.0.1/32 -j KUBE-NODEPORTS",
        "nat KUBE-SERVICES -d 192.168.1.7/32 -j KUBE-NODEPORTS",
        "ip6 nat KUBE-SERVICES -d fd00::1/128 -j KUBE-NODEPORTS",
      ]
    `)
    expect(tail(onAddresses(['127.0.0.1', '192.168.1.7'], false))).toMatchInlineSnapshot(`
      [
        "nat KUBE-SERVICES -d 192.168.1.7/32 -j KUBE-NODEPORTS",
        "ip6 nat KUBE-SERVICES -d fd00::1/128 -j KUBE-NODEPORTS",
      ]
    `)
    expect(tail(onAddresses([], true))).toEqual(['ip6 nat KUBE-SERVICES -d fd00::1/128 -j KUBE-NODEPORTS'])
  })
})

describe('what leads to them', () => {
  it('keeps neighbors from loopback as long as NodePorts answer there', () => {
    const keeps = (statics: ReturnType<typeof staticsIn>): boolean =>
      jumpLines(statics).some(line => line.startsWith('filter KUBE-FIREWALL'))
    expect(keeps(staticsIn({ options: { localhostNodePorts: false } }))).toBe(false)
    expect(keeps(onAddresses(['192.168.1.7'], true))).toBe(false)
    expect(keeps(onAddresses(['127.0.0.1'], true))).toBe(true)
    expect(keeps(onAddresses(['127.0.0.1'], false))).toBe(false)
  })

  it('is what kube-proxy puts first, one after another', () => {
    expect(jumpLines().filter(IPV4_ONLY)).toMatchInlineSnapshot(`
      [
        "filter INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES",
        "filter FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES",
        "filter INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS",
        "filter FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES",
        "filter OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES",
        "filter FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD",
        "filter INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL",
        "filter OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL",
        "filter FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL",
        "nat OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES",
        "nat PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES",
        "nat POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING",
        "filter INPUT -j KUBE-FIREWALL",
        "filter OUTPUT -j KUBE-FIREWALL",
        "filter KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
      ]
    `)
    const ofV6 = jumpLines().filter(line => !IPV4_ONLY(line))
    expect(ofV6.map(line => line.replace('ip6 ', ''))).toEqual(jumpLines().filter(IPV4_ONLY).slice(0, -1))
  })
})

describe('staticsOf', () => {
  it('follows the node where its pods are told by the node', () => {
    const of = (podCIDRs: readonly string[]) => {
      const detector = { IPv4: { kind: 'node-cidr' }, IPv6: { kind: 'node-cidr' } } as const
      return staticsIn({ options: { detector } }, tableOf([node({ podCIDRs })]))
    }
    expect(of(['10.1.0.0/24']).families.ip.detector).toEqual({ kind: 'cidr', cidr: cidr('10.1.0.0/24') })
    expect(of(['10.1.0.0/24']).families.ip6.detector).toBeUndefined()
    expect(of([]).serviceKey).not.toBe(of(['10.1.0.0/24']).serviceKey)
  })
})
