/*
 * Rules of programs that often run beside a service proxy, as they write them, with the devices of the laboratory (ext0
 * to the outside, pod0 to the pods). Sources: docs/neighbors.md.
 */

export interface NeighborRules {
  /** The name by which doctor knows the program. */
  readonly name: string
  /** What distinguishes several sets of rules of one program. */
  readonly variant?: string
  /** Input of `nft -f`. */
  readonly nft?: string
  /** Input of `iptables-nft-restore --noflush`. */
  readonly iptables?: string
  /** The device by which doctor knows a program whose rules do not name it. */
  readonly device?: string
  /** Further packets and what becomes of them, beside those that concern every program. */
  readonly packets?: string
  /** What becomes of the packets of Services where the program keeps some from their endpoint, by proxy mode. */
  readonly kept?: { readonly nftables: string; readonly iptables: string }
}

/** Its pods answer at 172.30.0.2, and a policy of the program forbids to connect to them. */
const DENIED = 'pod TCP 172.30.0.2:80 -> drop'

const CALICO_IPTABLES = `*mangle
:cali-PREROUTING - [0:0]
-A PREROUTING -m comment --comment "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING
-A cali-PREROUTING -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*filter
:cali-FORWARD - [0:0]
:cali-to-wl-dispatch - [0:0]
-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000
-A cali-FORWARD -o pod0 -j cali-to-wl-dispatch
-A cali-FORWARD -j MARK --set-xmark 0x10000/0x10000
-A cali-to-wl-dispatch -d 10.21.0.2/32 -j DROP
COMMIT
*nat
:cali-POSTROUTING - [0:0]
:cali-nat-outgoing - [0:0]
-A POSTROUTING -m comment --comment "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING
-A cali-POSTROUTING -j cali-nat-outgoing
-A cali-nat-outgoing -s 10.0.0.0/8 ! -d 10.0.0.0/8 -j MASQUERADE --random-fully
COMMIT
`

const CALICO_NFTABLES = `table ip calico {
  chain cali-to-wl-dispatch { ip daddr 10.21.0.2 drop; }
  chain filter-FORWARD {
    type filter hook forward priority 0;
    meta mark set meta mark & 0xfff1ffff;
    oifname pod0 jump cali-to-wl-dispatch;
    meta mark set meta mark | 0x10000;
    meta mark & 0x10000 == 0x10000 accept;
  }
  chain nat-PREROUTING { type nat hook prerouting priority dstnat; }
  chain nat-POSTROUTING {
    type nat hook postrouting priority srcnat;
    ip saddr 10.0.0.0/8 ip daddr != 10.0.0.0/8 masquerade fully-random;
  }
  chain mangle-PREROUTING { type filter hook prerouting priority mangle; ct state established,related accept; }
}
`

const CILIUM = `*mangle
:CILIUM_PRE_mangle - [0:0]
-A PREROUTING -m comment --comment "cilium-feeder: CILIUM_PRE_mangle" -j CILIUM_PRE_mangle
-A CILIUM_PRE_mangle ! -o lo -m socket --transparent -j MARK --set-xmark 0x200/0xffffffff
COMMIT
*filter
:CILIUM_FORWARD - [0:0]
:CILIUM_OUTPUT - [0:0]
-A FORWARD -m comment --comment "cilium-feeder: CILIUM_FORWARD" -j CILIUM_FORWARD
-A OUTPUT -m comment --comment "cilium-feeder: CILIUM_OUTPUT" -j CILIUM_OUTPUT
-A CILIUM_FORWARD -o pod0 -j ACCEPT
-A CILIUM_FORWARD -i pod0 -j ACCEPT
-A CILIUM_OUTPUT -m mark ! --mark 0xe00/0xf00 -m mark ! --mark 0xd00/0xf00 -j MARK --set-xmark 0xc00/0xf00
COMMIT
*nat
:CILIUM_POST_nat - [0:0]
-A POSTROUTING -m comment --comment "cilium-feeder: CILIUM_POST_nat" -j CILIUM_POST_nat
-A CILIUM_POST_nat -s 10.0.0.0/8 ! -d 10.0.0.0/8 ! -o cilium_+ -j MASQUERADE
COMMIT
`

const FLANNEL_IPTABLES = `*filter
:FLANNEL-FWD - [0:0]
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.0.0.0/8 -j ACCEPT
-A FLANNEL-FWD -d 10.0.0.0/8 -j ACCEPT
COMMIT
*nat
:FLANNEL-POSTRTG - [0:0]
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN
-A FLANNEL-POSTRTG -s 10.21.0.0/24 -d 10.0.0.0/8 -j RETURN
-A FLANNEL-POSTRTG -s 10.0.0.0/8 -d 10.21.0.0/24 -j RETURN
-A FLANNEL-POSTRTG ! -s 10.0.0.0/8 -d 10.21.0.0/24 -j RETURN
-A FLANNEL-POSTRTG -s 10.0.0.0/8 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.0.0.0/8 -d 10.0.0.0/8 -j MASQUERADE --random-fully
COMMIT
`

const FLANNEL_NFTABLES = `table ip flannel-ipv4 {
  chain forward {
    type filter hook forward priority filter;
    ip saddr 10.0.0.0/8 accept;
    ip daddr 10.0.0.0/8 accept;
  }
  chain postrtg {
    type nat hook postrouting priority srcnat;
    meta mark 0x4000 return;
    ip saddr 10.21.0.0/24 ip daddr 10.0.0.0/8 return;
    ip saddr 10.0.0.0/8 ip daddr 10.21.0.0/24 return;
    ip saddr != 10.21.0.0/24 ip daddr 10.0.0.0/8 return;
    ip saddr 10.0.0.0/8 ip daddr != 224.0.0.0/4 masquerade fully-random;
  }
}
`

/** The chain counts what the rules exist for: packets of node ports whose replies leave by the primary interface. */
const AWS = `*mangle
:WATCH - [0:0]
-A PREROUTING -i ext0 -m comment --comment "AWS, primary ENI" -m addrtype --dst-type LOCAL --limit-iface-in -j CONNMARK --set-mark 0x80/0x80
-A PREROUTING -i pod0 -m comment --comment "AWS, primary ENI" -j CONNMARK --restore-mark --mask 0x80
-A POSTROUTING -o pod0 -p tcp --dport 8080 -m connmark --mark 0x80/0x80 -j WATCH
-A WATCH -m mark ! --mark 0x0/0x4000 -j RETURN
-A WATCH
COMMIT
*nat
:AWS-SNAT-CHAIN-0 - [0:0]
:AWS-CONNMARK-CHAIN-0 - [0:0]
-A POSTROUTING -m comment --comment "AWS SNAT CHAIN" -j AWS-SNAT-CHAIN-0
-A AWS-SNAT-CHAIN-0 -d 10.0.0.0/8 -m comment --comment "AWS SNAT CHAIN" -j RETURN
-A AWS-SNAT-CHAIN-0 ! -o vlan+ -m comment --comment "AWS, SNAT" -m addrtype ! --dst-type LOCAL -j SNAT --to-source 192.168.0.2 --random-fully
-A PREROUTING -i pod0 -m comment --comment "AWS, outbound connections" -j AWS-CONNMARK-CHAIN-0
-A PREROUTING -m comment --comment "AWS, CONNMARK" -j CONNMARK --restore-mark --mask 0x80
-A AWS-CONNMARK-CHAIN-0 -d 10.0.0.0/8 -m comment --comment "AWS CONNMARK CHAIN, VPC CIDR" -j RETURN
-A AWS-CONNMARK-CHAIN-0 -m comment --comment "AWS, CONNMARK" -j CONNMARK --set-xmark 0x80/0x80
COMMIT
`

const ANTREA = `*filter
:ANTREA-FORWARD - [0:0]
-A FORWARD -m comment --comment "Antrea: jump to Antrea forwarding rules" -j ANTREA-FORWARD
-A ANTREA-FORWARD -i pod0 -m comment --comment "Antrea: accept packets from local Pods" -j ACCEPT
-A ANTREA-FORWARD -o pod0 -m comment --comment "Antrea: accept packets to local Pods" -j ACCEPT
COMMIT
*nat
:ANTREA-POSTROUTING - [0:0]
-A POSTROUTING -m comment --comment "Antrea: jump to Antrea postrouting rules" -j ANTREA-POSTROUTING
-A ANTREA-POSTROUTING -s 10.0.0.0/8 ! -d 10.0.0.0/8 ! -o pod0 -j MASQUERADE
COMMIT
`

const KUBE_ROUTER = `*filter
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-POD-FW-4BDGZEWEU32YM75H - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
-I FORWARD -m comment --comment "kube-router netpol" -j KUBE-ROUTER-FORWARD
-A KUBE-ROUTER-FORWARD -d 10.21.0.2/32 -j KUBE-POD-FW-4BDGZEWEU32YM75H
-A KUBE-NWPLCY-DEFAULT -m comment --comment "rule to mark traffic matching a network policy" -j MARK --set-xmark 0x10000/0x10000
-A KUBE-POD-FW-4BDGZEWEU32YM75H -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-POD-FW-4BDGZEWEU32YM75H -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with icmp-port-unreachable
COMMIT
`

/** Another host port than the node port: with one number for both, nat-neighbors.test.ts. */
const HOST_PORT = 'outside TCP 192.168.0.2:8080 -> 10.99.0.9:9999 kept'

const PORTMAP = `table ip cni_hostport {
  chain hostports { tcp dport 8080 dnat to 10.99.0.9:9999; }
  chain prerouting { type nat hook prerouting priority -100; jump hostports; }
  chain output { type nat hook output priority -100; fib daddr type local jump hostports; }
  chain masquerading { type nat hook postrouting priority 100; meta mark & 0x2000 != 0 masquerade; }
}
`

const ISTIO_AMBIENT = `*nat
:ISTIO_POSTRT - [0:0]
-A POSTROUTING -j ISTIO_POSTRT
-A ISTIO_POSTRT -d 10.30.0.9/32 -p tcp -m owner --socket-exists -j SNAT --to-source 169.254.7.127
COMMIT
`

/** It listens at the ClusterIP of the cluster's DNS, an address of the node. */
const NODE_LOCAL_DNS = `*raw
-A PREROUTING -p tcp -d 172.30.0.53 --dport 53 -j NOTRACK
-A OUTPUT -p tcp -s 172.30.0.53 --sport 53 -j NOTRACK
-A OUTPUT -p tcp -d 172.30.0.53 --dport 53 -j NOTRACK
COMMIT
*filter
-A INPUT -p tcp -d 172.30.0.53 --dport 53 -j ACCEPT
-A OUTPUT -p tcp -s 172.30.0.53 --sport 53 -j ACCEPT
COMMIT
`

const FIREWALLD = `table inet firewalld {
  chain nat_PREROUTING { type nat hook prerouting priority dstnat + 10; }
  chain nat_OUTPUT { type nat hook output priority -90; }
  chain nat_POSTROUTING { type nat hook postrouting priority srcnat + 10; }
  chain filter_INPUT {
    type filter hook input priority filter + 10;
    ct state established,related accept;
    ct status dnat accept;
    iifname lo accept;
    ct state invalid drop;
    reject with icmpx type admin-prohibited;
  }
  chain filter_FORWARD {
    type filter hook forward priority filter + 10;
    ct state established,related accept;
    ct status dnat accept;
    iifname lo accept;
    ct state invalid drop;
    iifname pod0 accept comment "zone trusted";
    udp dport 9 accept comment "the laboratory needs it";
    reject with icmpx type admin-prohibited;
  }
}
`

const UFW = `*filter
:FORWARD DROP [0:0]
:ufw-before-forward - [0:0]
:ufw-user-forward - [0:0]
-A FORWARD -j ufw-before-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-user-forward -d 10.0.0.0/8 -j ACCEPT
-A ufw-user-forward -s 10.0.0.0/8 -j ACCEPT
COMMIT
`

const NFTABLES_SERVICE = `flush ruleset
table inet filter {
  chain input { type filter hook input priority filter; }
  chain forward { type filter hook forward priority filter; }
  chain output { type filter hook output priority filter; }
}
`

const DOCKER_IPTABLES = `*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -j DOCKER
-A DOCKER-USER -d 10.0.0.0/8 -j ACCEPT
-A DOCKER-USER -s 10.0.0.0/8 -j ACCEPT
COMMIT
*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.99.0.9:9999
COMMIT
`

const DOCKER_NFTABLES = `table ip docker-bridges {
  chain nat-prerouting-and-output { tcp dport 8080 dnat to 10.99.0.9:9999; }
  chain nat-PREROUTING { type nat hook prerouting priority dstnat; fib daddr type local counter jump nat-prerouting-and-output; }
  chain nat-OUTPUT { type nat hook output priority -100; ip daddr != 127.0.0.0/8 fib daddr type local counter jump nat-prerouting-and-output; }
  chain nat-POSTROUTING { type nat hook postrouting priority srcnat; oifname != docker0 ip saddr 172.17.0.0/16 masquerade; }
  chain filter-FORWARD { type filter hook forward priority filter; }
}
`

const PODMAN = `table inet netavark {
  chain NETAVARK-HOSTPORT-DNAT { meta nfproto ipv4 tcp dport 8080 dnat ip to 10.99.0.9:9999; }
  chain NETAVARK-ISOLATION-1 { }
  chain PREROUTING { type nat hook prerouting priority -100; fib daddr type local jump NETAVARK-HOSTPORT-DNAT; }
  chain OUTPUT { type nat hook output priority -100; fib daddr type local jump NETAVARK-HOSTPORT-DNAT; }
  chain POSTROUTING { type nat hook postrouting priority 100; meta mark & 0x2000 == 0x2000 masquerade; }
  chain FORWARD { type filter hook forward priority 0; ct state invalid drop; jump NETAVARK-ISOLATION-1; }
  chain INPUT { type filter hook input priority 0; }
}
`

const LIBVIRT = `table ip libvirt_network {
  chain guest_output { ip saddr 192.168.122.0/24 iifname virbr0 counter accept; iifname virbr0 counter reject; }
  chain guest_input { oifname virbr0 ip daddr 192.168.122.0/24 ct state related,established counter accept; oifname virbr0 counter reject; }
  chain forward { type filter hook forward priority 0; counter jump guest_input; counter jump guest_output; }
  chain guest_nat { type nat hook postrouting priority 100; ip saddr 192.168.122.0/24 ip daddr != 192.168.122.0/24 masquerade; }
}
`

const ALL_DROPPED = `
  pod     TCP 172.30.0.1:80 -> drop
  outside TCP 192.168.0.2:30080 -> drop
`
/** kube-proxy's chain KUBE-FORWARD accepts packets with the mark, and so does kprobe's in iptables mode. */
const UNMARKED_DROPPED = `
  pod     TCP 172.30.0.1:80 -> drop
  outside TCP 192.168.0.2:30080 -> 10.21.0.1:8080 masqueraded
`

/** The program as it is installed, which accepts of forwarded packets only those that the laboratory itself needs. */
function asInstalled(rules: string): string {
  return rules.replace(/-[ds] 10\.0\.0\.0\/8 -j ACCEPT/g, '-p udp --dport 9 -j ACCEPT')
}

const DROPS = { nftables: ALL_DROPPED, iptables: UNMARKED_DROPPED }
/** The laboratory has this word for every error but an unreachable port. */
const PROHIBITED = ALL_DROPPED.replaceAll('drop', 'pass')

export const NEIGHBOR_RULES: readonly NeighborRules[] = [
  { name: 'Calico', variant: 'iptables', iptables: CALICO_IPTABLES, packets: DENIED },
  { name: 'Calico', variant: 'nftables', nft: CALICO_NFTABLES, packets: DENIED },
  { name: 'Cilium', iptables: CILIUM },
  { name: 'flannel', variant: 'iptables', iptables: FLANNEL_IPTABLES },
  { name: 'flannel', variant: 'nftables', nft: FLANNEL_NFTABLES },
  { name: 'Amazon VPC CNI', iptables: AWS },
  { name: 'Antrea', iptables: ANTREA },
  { name: 'kube-router', iptables: KUBE_ROUTER, packets: DENIED.replace('drop', 'reject') },
  { name: 'CNI portmap', nft: PORTMAP, packets: HOST_PORT },
  { name: 'Istio', variant: 'ambient', iptables: ISTIO_AMBIENT },
  {
    name: 'NodeLocal DNSCache',
    device: 'nodelocaldns',
    iptables: NODE_LOCAL_DNS,
    packets: 'pod TCP 172.30.0.53:53 -> pass',
  },
  { name: 'firewalld', nft: FIREWALLD },
  {
    name: 'firewalld',
    variant: 'StrictForwardPorts=yes',
    nft: FIREWALLD.replaceAll(
      'ct status dnat accept',
      'ct status dnat reject with icmpx type admin-prohibited',
    ),
    kept: { nftables: PROHIBITED, iptables: PROHIBITED },
  },
  { name: 'ufw', variant: 'as installed', iptables: asInstalled(UFW), kept: DROPS },
  { name: 'ufw', variant: 'with an accept for pods', iptables: UFW },
  { name: 'nftables.service or a firewall like it', nft: NFTABLES_SERVICE },
  {
    name: 'Docker',
    variant: 'iptables, with an accept for pods',
    iptables: DOCKER_IPTABLES,
    packets: HOST_PORT,
  },
  { name: 'Docker', variant: 'iptables, as installed', iptables: asInstalled(DOCKER_IPTABLES), kept: DROPS },
  { name: 'Docker', variant: 'nftables', nft: DOCKER_NFTABLES, packets: HOST_PORT },
  { name: 'Podman', nft: PODMAN, packets: HOST_PORT },
  { name: 'libvirt', nft: LIBVIRT },
]

/** Addresses and words of IPv4 with what takes their place in IPv6. */
const IN_IPV6: readonly (readonly [string, string])[] = [
  ['10.99.0.9:9999', '[fd00:10::99:9]:9999'],
  ['10.21.0.1:8080', '[fd00:10::21:1]:8080'],
  ['10.21.0.2:8080', '[fd00:10::21:2]:8080'],
  ['10.21.0.3:53', '[fd00:10::21:3]:53'],
  ['172.30.0.1:80', '[fd00:172::1]:80'],
  ['172.30.0.2:80', '[fd00:172::2]:80'],
  ['172.30.0.53:53', '[fd00:172::53]:53'],
  ['198.51.100.4:80', '[2001:db8:4::4]:80'],
  ['192.168.0.2:30080', '[2001:db8::2]:30080'],
  ['192.168.0.2:8080', '[2001:db8::2]:8080'],
  ['10.21.0.2/32', 'fd00:10::21:2/128'],
  ['10.21.0.2', 'fd00:10::21:2'],
  ['10.21.0.0/24', 'fd00:10::21:0/112'],
  ['10.30.0.9/32', 'fd00:10::30:9/128'],
  ['10.0.0.0/8', 'fd00:10::/64'],
  ['224.0.0.0/4', 'ff00::/8'],
  ['127.0.0.0/8', '::1/128'],
  ['169.254.7.127', 'fd16:9254:7127:1337:ffff:ffff:ffff:ffff'],
  ['172.17.0.0/16', 'fd00:17::/64'],
  ['192.168.122.0/24', 'fd00:122::/64'],
  ['172.30.0.53', 'fd00:172::53'],
  ['192.168.0.2', '2001:db8::2'],
  ['icmp-port-unreachable', 'icmp6-port-unreachable'],
  ['table ip ', 'table ip6 '],
  ['flannel-ipv4', 'flannel-ipv6'],
  ['ip saddr', 'ip6 saddr'],
  ['ip daddr', 'ip6 daddr'],
  ['meta nfproto ipv4', 'meta nfproto ipv6'],
  ['dnat ip to', 'dnat ip6 to'],
]

/** The rules or packets of one family in the other: the programs write them alike. */
export function inIpv6(text: string): string {
  return IN_IPV6.reduce((now, [four, six]) => now.replaceAll(four, six), text)
}
