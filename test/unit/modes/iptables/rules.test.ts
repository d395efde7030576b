import { describe, expect, it } from 'vitest'
import { KUBE_CHAINS, portChains } from '../../../../src/modes/xt-common/layout.ts'
import { linesOf, web } from './rendered-text.ts'

const { svc: SVC } = portChains(KUBE_CHAINS, 'ns/web:p80', 'TCP')

/** With the hashes of ns/web:p80 as short words, so that the lines can be read. */
function short(lines: readonly string[]): readonly string[] {
  const hash = SVC.slice(9)
  const endpoints = new Map<string, string>()
  for (const line of lines) {
    const dnat = /^(?:ip6 )?nat (KUBE-SEP-\S+) .*--to-destination (\S+)$/.exec(line)
    if (dnat !== null) endpoints.set(dnat[1] ?? '', `<${dnat[2]}>`)
  }
  return lines.map(line =>
    line.replaceAll(hash, '<web>').replace(/KUBE-SEP-[A-Z2-7]{16}/g, name => endpoints.get(name) ?? name),
  )
}

describe('a Service of type ClusterIP', () => {
  it('is balanced over its endpoints, in the order of their text', () => {
    expect(short(linesOf(web({}, ['10.1.0.9', '10.1.0.10', '10.1.0.2'])))).toMatchInlineSnapshot(`
      [
        "nat KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "ns/web:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-<web>",
        "nat KUBE-SVC-<web> ! -s 10.0.0.0/8 -d 10.96.0.1/32 -p tcp -m comment --comment "ns/web:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ",
        "nat KUBE-SVC-<web> -m comment --comment "ns/web:p80 -> 10.1.0.10:8080" -m statistic --mode random --probability 0.33333333349 -j <10.1.0.10:8080>",
        "nat KUBE-SVC-<web> -m comment --comment "ns/web:p80 -> 10.1.0.2:8080" -m statistic --mode random --probability 0.50000000000 -j <10.1.0.2:8080>",
        "nat KUBE-SVC-<web> -m comment --comment "ns/web:p80 -> 10.1.0.9:8080" -j <10.1.0.9:8080>",
        "nat <10.1.0.10:8080> -s 10.1.0.10/32 -m comment --comment "ns/web:p80" -j KUBE-MARK-MASQ",
        "nat <10.1.0.10:8080> -p tcp -m comment --comment "ns/web:p80" -m tcp -j DNAT --to-destination 10.1.0.10:8080",
        "nat <10.1.0.2:8080> -s 10.1.0.2/32 -m comment --comment "ns/web:p80" -j KUBE-MARK-MASQ",
        "nat <10.1.0.2:8080> -p tcp -m comment --comment "ns/web:p80" -m tcp -j DNAT --to-destination 10.1.0.2:8080",
        "nat <10.1.0.9:8080> -s 10.1.0.9/32 -m comment --comment "ns/web:p80" -j KUBE-MARK-MASQ",
        "nat <10.1.0.9:8080> -p tcp -m comment --comment "ns/web:p80" -m tcp -j DNAT --to-destination 10.1.0.9:8080",
      ]
    `)
  })

  it('remembers clients for session affinity', () => {
    const affinity = {
      sessionAffinity: 'ClientIP',
      sessionAffinityConfig: { clientIP: { timeoutSeconds: 60 } },
    }
    expect(short(linesOf(web(affinity, ['10.1.0.1', '10.1.0.2'])))).toMatchInlineSnapshot(`
      [
        "nat KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "ns/web:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-<web>",
        "nat KUBE-SVC-<web> ! -s 10.0.0.0/8 -d 10.96.0.1/32 -p tcp -m comment --comment "ns/web:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ",
        "nat KUBE-SVC-<web> -m comment --comment "ns/web:p80 -> 10.1.0.1:8080" -m recent --rcheck --seconds 60 --reap --name <10.1.0.1:8080> --mask 255.255.255.255 --rsource -j <10.1.0.1:8080>",
        "nat KUBE-SVC-<web> -m comment --comment "ns/web:p80 -> 10.1.0.2:8080" -m recent --rcheck --seconds 60 --reap --name <10.1.0.2:8080> --mask 255.255.255.255 --rsource -j <10.1.0.2:8080>",
        "nat KUBE-SVC-<web> -m comment --comment "ns/web:p80 -> 10.1.0.1:8080" -m statistic --mode random --probability 0.50000000000 -j <10.1.0.1:8080>",
        "nat KUBE-SVC-<web> -m comment --comment "ns/web:p80 -> 10.1.0.2:8080" -j <10.1.0.2:8080>",
        "nat <10.1.0.1:8080> -s 10.1.0.1/32 -m comment --comment "ns/web:p80" -j KUBE-MARK-MASQ",
        "nat <10.1.0.1:8080> -p tcp -m comment --comment "ns/web:p80" -m recent --set --name <10.1.0.1:8080> --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.1.0.1:8080",
        "nat <10.1.0.2:8080> -s 10.1.0.2/32 -m comment --comment "ns/web:p80" -j KUBE-MARK-MASQ",
        "nat <10.1.0.2:8080> -p tcp -m comment --comment "ns/web:p80" -m recent --set --name <10.1.0.2:8080> --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.1.0.2:8080",
      ]
    `)
  })

  it('is masqueraded for everyone, for all but pods, or for nobody', () => {
    const masquerading = (options: object) =>
      linesOf(web({}, ['10.1.0.1']), { options }).filter(line => /SVC-.*KUBE-MARK-MASQ$/.test(line))
    const detectors = [
      { masqueradeAll: true },
      { detector: { IPv4: undefined, IPv6: undefined } },
      { detector: { IPv4: { kind: 'interface', name: 'br0' }, IPv6: undefined } },
      { detector: { IPv4: { kind: 'interface-prefix', prefix: 'veth' }, IPv6: undefined } },
    ]
    expect(short(detectors.flatMap(masquerading))).toMatchInlineSnapshot(`
      [
        "nat KUBE-SVC-<web> -d 10.96.0.1/32 -p tcp -m comment --comment "ns/web:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ",
        "nat KUBE-SVC-<web> -d 10.96.0.1/32 ! -i br0 -p tcp -m comment --comment "ns/web:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ",
        "nat KUBE-SVC-<web> -d 10.96.0.1/32 ! -i veth+ -p tcp -m comment --comment "ns/web:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ",
      ]
    `)
  })

  it('is written in the words of IPv6', () => {
    const [service, slice] = web({ clusterIP: 'fd00:96::1' }, ['fd00::1'])
    expect(short(linesOf([service, { ...Object(slice), addressType: 'IPv6' }]))).toMatchInlineSnapshot(`
      [
        "ip6 nat KUBE-SERVICES -d fd00:96::1/128 -p tcp -m comment --comment "ns/web:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-<web>",
        "ip6 nat KUBE-SVC-<web> ! -s fd00::/16 -d fd00:96::1/128 -p tcp -m comment --comment "ns/web:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ",
        "ip6 nat KUBE-SVC-<web> -m comment --comment "ns/web:p80 -> [fd00::1]:8080" -j <[fd00::1]:8080>",
        "ip6 nat <[fd00::1]:8080> -s fd00::1/128 -m comment --comment "ns/web:p80" -j KUBE-MARK-MASQ",
        "ip6 nat <[fd00::1]:8080> -p tcp -m comment --comment "ns/web:p80" -m tcp -j DNAT --to-destination [fd00::1]:8080",
      ]
    `)
    expect(linesOf([service])).toMatchInlineSnapshot(`
      [
        "ip6 filter KUBE-SERVICES -d fd00:96::1/128 -p tcp -m comment --comment "ns/web:p80 has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp6-port-unreachable",
      ]
    `)
  })

  it.each([
    ['UDP', 'udp'],
    ['SCTP', 'sctp'],
  ])('of %s is named after the protocol, too', (protocol, word) => {
    const [service, slice] = web({ ports: [{ name: 'p80', port: 80, protocol }] }, ['10.1.0.1'])
    const ports = [{ name: 'p80', port: 8080, protocol }]
    const lines = linesOf([service, { ...Object(slice), ports }])
    expect(lines[0]).toMatch(
      new RegExp(`^nat KUBE-SERVICES -d 10.96.0.1/32 -p ${word} .* -m ${word} --dport 80 -j KUBE-SVC-`),
    )
    expect(lines[0]).not.toContain(SVC)
  })
})

describe('a Service that is reached from outside', () => {
  const VIP = { status: { loadBalancer: { ingress: [{ ip: '198.51.100.1' }] } } }
  const balancer = { type: 'LoadBalancer', externalIPs: ['192.0.2.1'] }

  it('leads all its addresses to one chain, which masquerades', () => {
    const lines = short(linesOf(web(balancer, ['10.1.0.1'], VIP)))
    expect(lines.filter(line => !/^nat (?:KUBE-SV|<)/.test(line))).toMatchInlineSnapshot(`
      [
        "nat KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "ns/web:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-<web>",
        "nat KUBE-NODEPORTS -p tcp -m comment --comment "ns/web:p80" -m tcp --dport 30080 -j KUBE-EXT-<web>",
        "nat KUBE-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment "ns/web:p80 external IP" -m tcp --dport 80 -j KUBE-EXT-<web>",
        "nat KUBE-SERVICES -d 198.51.100.1/32 -p tcp -m comment --comment "ns/web:p80 loadbalancer IP" -m tcp --dport 80 -j KUBE-EXT-<web>",
        "nat KUBE-EXT-<web> -m comment --comment "masquerade traffic for ns/web:p80 external destinations" -j KUBE-MARK-MASQ",
        "nat KUBE-EXT-<web> -j KUBE-SVC-<web>",
      ]
    `)
  })

  it('turns clients away at all its addresses without an endpoint', () => {
    expect(short(linesOf(web(balancer, [], VIP)))).toMatchInlineSnapshot(`
      [
        "filter KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "ns/web:p80 has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable",
        "filter KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "ns/web:p80 has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable",
        "filter KUBE-EXTERNAL-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment "ns/web:p80 has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable",
        "filter KUBE-EXTERNAL-SERVICES -d 198.51.100.1/32 -p tcp -m comment --comment "ns/web:p80 has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable",
      ]
    `)
  })

  it('lets pods and this node past policy Local', () => {
    const local = { ...balancer, externalTrafficPolicy: 'Local', healthCheckNodePort: 32_000 }
    const lines = short(linesOf(web(local, ['10.1.0.1', 'here 10.1.0.2'], VIP)))
    expect(lines.filter(line => /^nat KUBE-(?:EXT|SVL)|health/.test(line))).toMatchInlineSnapshot(`
      [
        "filter KUBE-NODEPORTS -p tcp -m comment --comment "ns/web:p80 health check node port" -m tcp --dport 32000 -j ACCEPT",
        "nat KUBE-EXT-<web> -s 10.0.0.0/8 -m comment --comment "pod traffic for ns/web:p80 external destinations" -j KUBE-SVC-<web>",
        "nat KUBE-EXT-<web> -m comment --comment "masquerade LOCAL traffic for ns/web:p80 external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ",
        "nat KUBE-EXT-<web> -m comment --comment "route LOCAL traffic for ns/web:p80 external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-<web>",
        "nat KUBE-EXT-<web> -j KUBE-SVL-<web>",
        "nat KUBE-SVL-<web> -m comment --comment "ns/web:p80 -> 10.1.0.2:8080" -j <10.1.0.2:8080>",
      ]
    `)
  })

  it('drops others where policy Local finds no endpoint here', () => {
    const local = { type: 'NodePort', externalTrafficPolicy: 'Local', externalIPs: ['192.0.2.1'] }
    const lines = short(linesOf(web(local, ['10.1.0.1'])))
    expect(lines.filter(line => /EXTERNAL-SERVICES|EXT-/.test(line))).toMatchInlineSnapshot(`
      [
        "nat KUBE-NODEPORTS -p tcp -m comment --comment "ns/web:p80" -m tcp --dport 30080 -j KUBE-EXT-<web>",
        "filter KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "ns/web:p80 has no local endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j DROP",
        "nat KUBE-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment "ns/web:p80 external IP" -m tcp --dport 80 -j KUBE-EXT-<web>",
        "filter KUBE-EXTERNAL-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment "ns/web:p80 has no local endpoints" -m tcp --dport 80 -j DROP",
        "nat KUBE-EXT-<web> -s 10.0.0.0/8 -m comment --comment "pod traffic for ns/web:p80 external destinations" -j KUBE-SVC-<web>",
        "nat KUBE-EXT-<web> -m comment --comment "masquerade LOCAL traffic for ns/web:p80 external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ",
        "nat KUBE-EXT-<web> -m comment --comment "route LOCAL traffic for ns/web:p80 external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-<web>",
      ]
    `)
  })

  it('asks where clients come from in the order of its ranges, and lets the node in by its own address', () => {
    const ranges = ['203.0.113.0/24', '192.168.1.0/24', '203.0.113.0/25']
    const lines = short(linesOf(web({ ...balancer, loadBalancerSourceRanges: ranges }, ['10.1.0.1'], VIP)))
    expect(lines.filter(line => /FW-|FIREWALL/.test(line))).toMatchInlineSnapshot(`
      [
        "nat KUBE-SERVICES -d 198.51.100.1/32 -p tcp -m comment --comment "ns/web:p80 loadbalancer IP" -m tcp --dport 80 -j KUBE-FW-<web>",
        "filter KUBE-PROXY-FIREWALL -d 198.51.100.1/32 -p tcp -m comment --comment "ns/web:p80 traffic not accepted by KUBE-FW-<web>" -m tcp --dport 80 -j DROP",
        "nat KUBE-FW-<web> -s 203.0.113.0/24 -m comment --comment "ns/web:p80 loadbalancer IP" -j KUBE-EXT-<web>",
        "nat KUBE-FW-<web> -s 192.168.1.0/24 -m comment --comment "ns/web:p80 loadbalancer IP" -j KUBE-EXT-<web>",
        "nat KUBE-FW-<web> -s 203.0.113.0/25 -m comment --comment "ns/web:p80 loadbalancer IP" -j KUBE-EXT-<web>",
        "nat KUBE-FW-<web> -m comment --comment "other traffic to ns/web:p80 will be dropped by KUBE-PROXY-FIREWALL"",
      ]
    `)
  })

  it('counts what comes to NodePorts by loopback, if there is a counter', () => {
    const objects = web({ type: 'NodePort' }, ['10.1.0.1'])
    const counting = (localhostNodePorts: boolean) => {
      const nfacct = { invalidDropped: true, localhostAccepted: true }
      return short(linesOf(objects, { options: { nfacct, localhostNodePorts } })).filter(line =>
        line.includes('KUBE-NODEPORTS'),
      )
    }
    expect(counting(true)).toMatchInlineSnapshot(`
      [
        "nat KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m comment --comment "ns/web:p80" -m tcp --dport 30080 -m nfacct --nfacct-name  localhost_nps_accepted_pkts -j KUBE-EXT-<web>",
        "nat KUBE-NODEPORTS -p tcp -m comment --comment "ns/web:p80" -m tcp --dport 30080 -j KUBE-EXT-<web>",
      ]
    `)
    expect(counting(false)).toHaveLength(1)
  })

  it('says each thing about health checks once', () => {
    const ports = ['TCP', 'UDP'].map(protocol => ({ name: 'p80', port: 80, protocol, nodePort: 30_080 }))
    const local = { ...balancer, ports, externalTrafficPolicy: 'Local', healthCheckNodePort: 32_000 }
    const lines = linesOf(web(local, [], VIP)).filter(line => line.includes('health'))
    expect(lines).toMatchInlineSnapshot(`
      [
        "filter KUBE-NODEPORTS -p tcp -m comment --comment "ns/web:p80 health check node port" -m tcp --dport 32000 -j ACCEPT",
      ]
    `)
  })
})
