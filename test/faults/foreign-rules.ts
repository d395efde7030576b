import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { patientMs, within } from '../support/patience.ts'

/** What kube-proxy 1.36 writes for one Service with two endpoints, one without, and one with session affinity. */
export const KUBE_PROXY_TABLE = `
table ip kube-proxy {
  comment "rules for kube-proxy"
  set cluster-ips { type ipv4_addr; comment "Active ClusterIPs"; elements = { 172.30.0.0, 172.30.0.1, 10.96.0.1 }; }
  set nodeport-ips { type ipv4_addr; comment "IPs that accept NodePort traffic"; elements = { 192.168.0.2 }; }
  set hairpin-connections { type ipv4_addr . ipv4_addr . inet_proto . inet_service; }
  set affinity-5OJB2KTY-ns/s0/tcp/http__10.1.0.1/8080 { type ipv4_addr; flags dynamic,timeout; timeout 3h; }
  map service-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 172.30.0.0 . tcp . 80 : goto service-ULMVA6XW-ns/s0/tcp/http }
  }
  map service-nodeports { type inet_proto . inet_service : verdict; }
  map no-endpoint-services {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 172.30.0.1 . tcp . 80 comment "ns/s1:http" : goto reject-chain }
  }
  map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
  map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
  chain filter-prerouting-pre-dnat {
    type filter hook prerouting priority dstnat - 10; policy accept;
    ct state new jump firewall-check
  }
  chain filter-output-pre-dnat {
    type filter hook output priority -110; policy accept;
    ct state new jump firewall-check
  }
  chain filter-input {
    type filter hook input priority filter; policy accept;
    ct state new jump nodeport-endpoints-check
    ct state new jump service-endpoints-check
  }
  chain filter-forward {
    type filter hook forward priority filter; policy accept;
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
  chain filter-output {
    type filter hook output priority filter; policy accept;
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
  chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
  chain nat-output { type nat hook output priority -100; policy accept; jump services; }
  chain nat-postrouting { type nat hook postrouting priority srcnat; policy accept; jump masquerading; }
  chain services {
    ip daddr @cluster-ips ip saddr != 10.0.0.0/8 jump mark-for-masquerade
    ip daddr . meta l4proto . th dport vmap @service-ips
    ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
  }
  chain mark-for-masquerade { meta mark set meta mark | 0x4000; }
  chain masquerading {
    meta mark & 0x4000 == 0 return
    meta mark set meta mark ^ 0x4000
    masquerade fully-random
  }
  chain cluster-ips-check { ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"; }
  chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
  chain nodeport-endpoints-check {
    ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
  }
  chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
  chain reject-chain { reject; }
  chain service-ULMVA6XW-ns/s0/tcp/http {
    ip saddr @affinity-5OJB2KTY-ns/s0/tcp/http__10.1.0.1/8080 goto endpoint-5OJB2KTY-ns/s0/tcp/http__10.1.0.1/8080
    numgen random mod 1 vmap { 0 : goto endpoint-5OJB2KTY-ns/s0/tcp/http__10.1.0.1/8080 }
  }
  chain endpoint-5OJB2KTY-ns/s0/tcp/http__10.1.0.1/8080 {
    update @affinity-5OJB2KTY-ns/s0/tcp/http__10.1.0.1/8080 { ip saddr }
    meta l4proto tcp dnat to 10.1.0.1:8080
  }
}
`

/** Objects with our own names that are something else. */
export const OUR_NAMES_TAKEN = `
table ip kube-proxy {
  set frontends { type ipv4_addr; elements = { 172.30.0.1 }; }
  map dispatch { type inet_service : ipv4_addr; elements = { 80 : 10.0.0.1 }; }
  set endpoints-tcp { type ipv4_addr; flags interval; }
  chain services { type filter hook forward priority 5; policy drop; }
  chain early-prerouting { ip daddr 172.30.0.1 drop; }
  chain not-ours { jump early-prerouting; }
}
table ip6 kube-proxy {
  chain early-output { type nat hook output priority 7; policy accept; }
}
`

/** A firewall as iptables-nft leaves it, and one that firewalld makes. */
export const OTHER_FIREWALLS = `
table ip nat {
  chain PREROUTING { type nat hook prerouting priority dstnat; policy accept; jump DOCKER; }
  chain POSTROUTING {
    type nat hook postrouting priority srcnat; policy accept
    oifname != "docker0" ip saddr 172.17.0.0/16 masquerade
  }
  chain DOCKER { iifname "docker0" return; tcp dport 8081 dnat to 172.17.0.2:80; }
}
table ip filter {
  chain INPUT { type filter hook input priority filter; policy accept; }
  chain FORWARD { type filter hook forward priority filter; policy accept; ct state established accept; }
}
table inet firewalld {
  set trusted { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 }; }
  chain filter_INPUT {
    type filter hook input priority filter + 10; policy accept
    ip saddr @trusted accept
  }
}
`

/** Reloads everything but our tables, each in one transaction. */
export const RELOAD_OTHERS = `
flush table ip nat
flush table ip filter
delete table inet firewalld
${OTHER_FIREWALLS}
`

/** A process of nft that commits whatever it is given. */
export class Committer {
  commits = 0
  readonly #child: ChildProcess
  readonly #timer: NodeJS.Timeout

  /** Runs the lines one after the other and over again, at this rate of an idle machine: a busy one would fall behind. */
  constructor(lines: readonly string[], ratePerSecond: number) {
    this.#child = spawn('nft', ['-i'], { stdio: ['pipe', 'ignore', 'ignore'] })
    let lastMs = performance.now()
    let due = 0
    // Timers of 5 ms may come late: what they missed is made up for.
    this.#timer = setInterval(() => {
      const nowMs = performance.now()
      due += ((nowMs - lastMs) * ratePerSecond) / patientMs(1000)
      lastMs = nowMs
      while (this.commits < due) this.#child.stdin?.write(`${lines[this.commits++ % lines.length]}\n`)
    }, 5)
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer)
    const ended = once(this.#child, 'close')
    this.#child.stdin?.end()
    await within(ended, { limitMs: 120_000, describe: () => 'nft has made its commits' })
  }
}
