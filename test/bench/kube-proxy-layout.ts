import type { ClusterSize } from './cluster.ts'

/**
 * The same cluster as a file for `nft -f`, in the layout that kube-proxy 1.36 writes: a chain per Service port with an
 * anonymous map of its endpoints (pkg/proxy/nftables, base chains and sets included).
 */
export function* kubeProxyLayout(size: ClusterSize): IterableIterator<string> {
  yield HEADER
  const ips: string[] = []
  const verdicts: string[] = []
  for (let service = 0; service < size.services; service++) {
    const ip = `10.${96 + (service >> 16)}.${(service >> 8) & 255}.${service & 255}`
    const chain = `service-${hash(service)}-ns-${service % 50}/service-${service}/tcp/http`
    const slots = Array.from(
      { length: size.endpoints },
      (_, slot) => `${slot} : ${pod(service * size.endpoints + slot)} . 8080`,
    )
    yield `add chain ip kube-proxy ${chain}`
    yield `add rule ip kube-proxy ${chain} meta l4proto tcp dnat ip addr . port to numgen random mod ${size.endpoints} map { ${slots.join(', ')} }`
    ips.push(ip)
    verdicts.push(`${ip} . tcp . 80 comment "ns-${service % 50}/service-${service}:http" : goto ${chain}`)
  }
  for (let at = 0; at < ips.length; at += 1000) {
    yield `add element ip kube-proxy cluster-ips { ${ips.slice(at, at + 1000).join(', ')} }`
    yield `add element ip kube-proxy service-ips { ${verdicts.slice(at, at + 1000).join(', ')} }`
  }
}

const HEADER = `add table ip kube-proxy { comment "rules for kube-proxy"; }
add set ip kube-proxy cluster-ips { type ipv4_addr; comment "Active ClusterIPs"; }
add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
add map ip kube-proxy no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
add map ip kube-proxy firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
add chain ip kube-proxy filter-prerouting-pre-dnat { type filter hook prerouting priority -110; }
add chain ip kube-proxy filter-output-pre-dnat { type filter hook output priority -110; }
add chain ip kube-proxy filter-forward { type filter hook forward priority 0; }
add chain ip kube-proxy filter-output { type filter hook output priority 0; }
add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -100; }
add chain ip kube-proxy nat-output { type nat hook output priority -100; }
add chain ip kube-proxy nat-postrouting { type nat hook postrouting priority 100; }
add chain ip kube-proxy services
add chain ip kube-proxy firewall-check
add chain ip kube-proxy service-endpoints-check
add rule ip kube-proxy filter-prerouting-pre-dnat ct state new jump firewall-check
add rule ip kube-proxy filter-output-pre-dnat ct state new jump firewall-check
add rule ip kube-proxy filter-forward ct state new jump service-endpoints-check
add rule ip kube-proxy filter-output ct state new jump service-endpoints-check
add rule ip kube-proxy firewall-check ip daddr . meta l4proto . th dport vmap @firewall-ips
add rule ip kube-proxy service-endpoints-check ip daddr . meta l4proto . th dport vmap @no-endpoint-services
add rule ip kube-proxy nat-prerouting jump services
add rule ip kube-proxy nat-output jump services
add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
add rule ip kube-proxy nat-postrouting mark and 0x4000 != 0 mark set mark xor 0x4000 masquerade fully-random`

function pod(index: number): string {
  return `10.${128 + ((index >> 16) & 127)}.${(index >> 8) & 255}.${index & 255}`
}

/** Stands for the eight characters of kube-proxy's hash: the length of a name is part of its cost. */
function hash(service: number): string {
  return (Math.imul(service, 2654435761) >>> 0).toString(32).toUpperCase().padStart(8, 'A')
}
