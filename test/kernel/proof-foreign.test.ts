import { afterAll, afterEach, beforeAll, expect, it } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import { listAllTables } from '../../src/kernel/nft/list.ts'
import { Connection } from '../../src/netlink/connection.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Proof } from '../../src/proof/prove.ts'
import { tool } from '../support/command.ts'
import { openIptablesPlane } from '../support/iptables-plane.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { change, commitAll, computeIn, IPTABLES, NFTABLES, openClient, planeOn } from '../support/pipeline.ts'
import { NODE, proofOf, webService } from '../support/proof.ts'
import { PROVING } from '../support/proof-iptables.ts'
import { LOCAL_IPS } from '../support/scenario.ts'

/* What the proof says beside one rule of another program. The kernel holds the rule, and the tables are read from it. */

const OBJECTS = { objects: [NODE, ...webService()] }

type Said = 'proved' | 'differs' | 'not known'
type Cases = readonly (readonly [rule: string, says: Said])[]

const said = ({ wrong, unknown }: Proof): Said =>
  wrong > 0 ? 'differs' : unknown > 0 ? 'not known' : 'proved'

const nft = (line: string): string => tool('nft', line)
const iptables = (line: string): string => tool('iptables-nft', ...line.split(' '))

let connection: Connection
beforeAll(() => {
  freshNetns()
  connection = new Connection({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock: systemClock })
})
afterEach(() => void nft('flush ruleset'))
afterAll(() => connection.close())

const tables = async () => (await listAllTables({ connection, clock: systemClock, ipsets: undefined })).value

const CHAINS = `add table inet fw
add chain inet fw early { type filter hook prerouting priority -300; }
add chain inet fw rawout { type filter hook output priority -300; }
add chain inet fw pre { type filter hook prerouting priority -150; }
add chain inet fw forward { type filter hook forward priority 0; }
add chain inet fw input { type filter hook input priority 0; }
add chain inet fw outgoing { type filter hook output priority 0; }
add chain inet fw post { type filter hook postrouting priority 0; }
add chain inet fw natpre { type nat hook prerouting priority -110; }
add chain inet fw natout { type nat hook output priority -110; }
add chain inet fw natpost { type nat hook postrouting priority 90; }
add set inet fw ports { type inet_service; flags interval; elements = { 8000-8100 }; }
add set inet fw odd { type inet_service; flags interval; elements = { 1-9 }; }
add set inet fw nets { type ipv4_addr; flags interval; elements = { 10.180.0.0/16 }; }
add set inet fw far { type ipv4_addr; flags interval; elements = { 203.0.113.0/24 }; }
add set inet fw pairs { type ipv4_addr . inet_service; flags interval; elements = { 10.180.0.0/16 . 8000-8100 }; }
add set inet fw farpairs { type ipv4_addr . inet_service; flags interval; elements = { 203.0.113.0/24 . 8000-8100 }; }
`

/** A chain and a rule for nft, and what the proof says of it. */
const OF_NFT: Cases = [
  ['forward oifname "eth0" drop', 'not known'],
  ['forward oifname != "eth0" drop', 'not known'],
  ['forward oif "lo" drop', 'not known'],
  ['forward oifname { "eth0", "eth1" } drop', 'not known'],
  ['forward oifname "eth*" drop', 'not known'],
  ['forward oifname "eth0" accept', 'proved'],
  ['forward oifname "eth0" tcp dport 22 drop', 'proved'],
  ['pre oifname "eth0" drop', 'proved'],
  ['post oifname "eth0" drop', 'not known'],
  ['forward iifname "eth0" drop', 'differs'],
  ['forward iif "lo" drop', 'not known'],
  ['forward iifgroup 7 drop', 'not known'],
  ['forward tcp dport @ports drop', 'differs'],
  ['forward tcp dport @odd drop', 'proved'],
  ['forward ip daddr @nets drop', 'differs'],
  ['forward ip daddr @far drop', 'proved'],
  ['forward ip saddr @nets drop', 'differs'],
  ['forward ip daddr . tcp dport @pairs drop', 'differs'],
  ['forward ip daddr . tcp dport @farpairs drop', 'proved'],
  ['forward tcp dport { 8080, 9000-9100 } drop', 'differs'],
  ['forward tcp dport { 22, 9000-9100 } drop', 'proved'],
  ['forward tcp dport != { 22, 9000-9100 } drop', 'differs'],
  ['forward tcp dport vmap { 8080 : drop, 9000-9100 : accept }', 'differs'],
  ['forward tcp dport vmap { 22 : drop, 9000-9100 : accept }', 'proved'],
  ['forward ip daddr 10.180.0.0-10.180.0.9 drop', 'differs'],
  ['forward tcp dport 8000-8100 drop', 'differs'],
  ['forward tcp dport 8080 reject', 'differs'],
  ['forward tcp dport 8080 reject with tcp reset', 'differs'],
  ['forward tcp dport 22 reject with tcp reset', 'proved'],
  ['forward tcp dport 8080 reject with icmp type host-unreachable', 'differs'],
  ['forward tcp dport 8080 reject with icmpx type admin-prohibited', 'differs'],
  ['early tcp dport 80 notrack', 'differs'],
  ['early notrack', 'differs'],
  ['early ip daddr 203.0.113.9 notrack', 'proved'],
  ['rawout tcp dport 80 notrack', 'differs'],
  [`early ${Array(3).fill('numgen random mod 2 1 notrack').join('; add rule inet fw early ')}`, 'differs'],
  ['pre tcp dport 80 notrack', 'proved'],
  ['forward ct state untracked drop', 'proved'],
  ['forward ct state new drop', 'differs'],
  ['forward ct state invalid drop', 'proved'],
  ['forward ct state established,related accept', 'proved'],
  ['forward ct status dnat accept', 'proved'],
  ['forward ct status dnat drop', 'differs'],
  ['forward ct status assured drop', 'not known'],
  ['forward ct direction original drop', 'not known'],
  ['forward ct original ip daddr 172.30.0.41 drop', 'not known'],
  ['forward ct zone 1 drop', 'not known'],
  ['forward ct expiration 1s drop', 'not known'],
  ['forward ct count over 20 drop', 'not known'],
  ['pre tcp dport 80 meta mark set 0x4000', 'differs'],
  ['pre meta mark set 7', 'proved'],
  ['pre ct mark set 7', 'proved'],
  ['pre ct zone set 7', 'not known'],
  ['forward meta mark 7 drop', 'proved'],
  ['forward meta priority set 1:7', 'differs'],
  ['forward meta pkttype broadcast drop', 'not known'],
  ['forward meta length > 100 drop', 'not known'],
  ['forward meta skuid 0 drop', 'not known'],
  ['forward meta cpu 1 drop', 'not known'],
  ['forward meta random 5 drop', 'not known'],
  ['natpre meta nfproto ipv4 tcp dport 80 redirect to :9999', 'differs'],
  ['natpre tcp dport 80 redirect', 'differs'],
  ['natpre ip daddr 203.0.113.9 tcp dport 22 redirect to :9999', 'proved'],
  ['natout tcp dport 80 redirect to :9999', 'differs'],
  ['natpre tcp dport 80 dnat ip to 203.0.113.9', 'differs'],
  ['natpre tcp dport 80 dnat ip to 203.0.113.9:81', 'differs'],
  ['natpre tcp dport 80 dnat ip to 203.0.113.9-203.0.113.12', 'not known'],
  ['natpre tcp dport 80 dnat ip to tcp dport map { 80 : 203.0.113.9 }', 'differs'],
  ['natpre ip daddr 203.0.113.8 tcp dport 22 dnat ip to 203.0.113.9', 'proved'],
  ['natpre tcp dport 80 dnat to :81', 'differs'],
  ['natpost tcp dport 8080 snat ip to 203.0.113.9', 'differs'],
  ['natpost tcp dport 22 snat ip to 203.0.113.9', 'proved'],
  ['natpost tcp dport 8080 masquerade', 'differs'],
  ['natpost tcp dport 8080 masquerade to :1024-2048', 'differs'],
  ['natpost oifname "eth0" masquerade', 'not known'],
  ['forward ip ttl 1 drop', 'not known'],
  ['forward ip ttl < 5 tcp dport 22 drop', 'proved'],
  ['forward ip dscp cs1 drop', 'not known'],
  ['forward ip protocol tcp drop', 'differs'],
  ['forward ip protocol { tcp, udp } drop', 'differs'],
  ['forward ip protocol != tcp drop', 'proved'],
  ['forward ip length 40 drop', 'not known'],
  ['forward ip id 7 drop', 'not known'],
  ['forward ip frag-off & 0x1fff != 0 drop', 'not known'],
  ['forward ip ttl set 9', 'not known'],
  ['forward tcp flags syn drop', 'not known'],
  ['forward tcp flags & (syn | ack) == syn tcp dport 8080 drop', 'not known'],
  ['forward tcp option maxseg size set 1400', 'proved'],
  ['forward th dport 8080 drop', 'differs'],
  ['forward @th,16,16 8080 drop', 'differs'],
  ['forward limit rate 5/second drop', 'not known'],
  ['forward limit rate 5/second accept', 'proved'],
  ['forward quota over 10 mbytes drop', 'not known'],
  ['forward fib daddr type unicast drop', 'differs'],
  ['pre fib saddr . iif oif missing drop', 'not known'],
  ['pre fib saddr oif 0 drop', 'not known'],
  ['forward numgen inc mod 2 0 drop', 'not known'],
  ['forward jhash ip saddr mod 2 0 drop', 'not known'],
  ['pre tcp dport 80 tproxy ip to :9999', 'not known'],
  ['forward ip daddr set 203.0.113.9', 'not known'],
  ['forward icmp type echo-request drop', 'proved'],
  ['forward udp dport 8080 drop', 'proved'],
  ['forward counter log', 'proved'],
]

/** A table, a chain and a rule for iptables, and what the proof says of it. */
const OF_IPTABLES: Cases = [
  ['filter FORWARD -o eth0 -j DROP', 'not known'],
  ['filter FORWARD ! -o eth0 -j DROP', 'not known'],
  ['filter FORWARD -o eth+ -j REJECT', 'not known'],
  ['filter FORWARD -o eth0 -p tcp --dport 22 -j DROP', 'proved'],
  ['filter FORWARD -o eth0 -j ACCEPT', 'proved'],
  ['filter FORWARD -i eth0 -j DROP', 'differs'],
  ['filter FORWARD -i eth+ -j DROP', 'differs'],
  ['filter FORWARD -p tcp --dport 8080 -j REJECT --reject-with tcp-reset', 'differs'],
  ['filter FORWARD -p tcp --dport 22 -j REJECT --reject-with tcp-reset', 'proved'],
  ['filter FORWARD -p tcp --dport 8080 -j REJECT --reject-with icmp-host-prohibited', 'differs'],
  ['raw PREROUTING -p tcp --dport 80 -j NOTRACK', 'differs'],
  ['raw PREROUTING -p tcp --dport 80 -j CT --notrack', 'differs'],
  ['raw PREROUTING -p tcp --dport 22 -j CT --notrack', 'proved'],
  ['raw OUTPUT -j CT --notrack', 'differs'],
  ['raw PREROUTING -p tcp --dport 80 -j CT --zone 7', 'not known'],
  ['raw PREROUTING -p tcp --dport 80 -j DROP', 'differs'],
  ['mangle PREROUTING -p tcp --dport 80 -j MARK --set-mark 0x4000', 'differs'],
  ['mangle PREROUTING -p tcp --dport 80 -j MARK --set-xmark 0x7/0x7', 'proved'],
  ['mangle PREROUTING -p tcp --dport 80 -j TPROXY --on-port 9999 --tproxy-mark 1', 'not known'],
  ['mangle FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu', 'proved'],
  ['mangle FORWARD -p tcp --dport 8080 -j DSCP --set-dscp 8', 'proved'],
  ['mangle FORWARD -p tcp --dport 8080 -j TTL --ttl-set 9', 'proved'],
  ['mangle FORWARD -p tcp --dport 8080 -j CLASSIFY --set-class 1:7', 'proved'],
  ['nat PREROUTING -p tcp --dport 80 -j REDIRECT --to-ports 9999', 'differs'],
  ['nat PREROUTING -p tcp --dport 80 -j REDIRECT', 'differs'],
  ['nat OUTPUT -p tcp --dport 80 -j REDIRECT --to-ports 9999', 'differs'],
  ['nat PREROUTING -p tcp --dport 22 -j REDIRECT --to-ports 9999', 'proved'],
  ['nat PREROUTING -p tcp --dport 80 -j DNAT --to-destination 203.0.113.9', 'differs'],
  ['nat PREROUTING -p tcp --dport 80 -j DNAT --to-destination 203.0.113.9:81', 'differs'],
  ['nat PREROUTING -p tcp --dport 80 -j DNAT --to-destination 203.0.113.9-203.0.113.12:81', 'not known'],
  ['nat PREROUTING -p tcp --dport 80 -j NETMAP --to 203.0.113.0/24', 'not known'],
  ['nat POSTROUTING -p tcp --dport 8080 -j SNAT --to-source 203.0.113.9', 'differs'],
  ['nat POSTROUTING -p tcp --dport 8080 -j SNAT --to-source 203.0.113.9-203.0.113.12', 'not known'],
  ['nat POSTROUTING -p tcp --dport 8080 -j SNAT --to-source 203.0.113.9:1024-2048', 'differs'],
  ['nat POSTROUTING -p tcp --dport 22 -j SNAT --to-source 203.0.113.9', 'proved'],
  ['nat POSTROUTING -p tcp --dport 8080 -j MASQUERADE', 'differs'],
  ['nat POSTROUTING -p tcp --dport 8080 -j MASQUERADE --to-ports 1024-2048', 'differs'],
  ['nat POSTROUTING -o eth0 -j MASQUERADE', 'not known'],
  ['filter FORWARD -m ttl --ttl-eq 1 -j DROP', 'not known'],
  ['filter FORWARD -m ttl --ttl-lt 5 -p tcp --dport 22 -j DROP', 'proved'],
  ['filter FORWARD -m dscp --dscp 8 -j DROP', 'not known'],
  ['filter FORWARD -m tos --tos 8 -j DROP', 'not known'],
  ['filter FORWARD -p tcp -j DROP', 'differs'],
  ['filter FORWARD ! -p tcp -j DROP', 'proved'],
  ['filter FORWARD -p tcp --syn -j DROP', 'not known'],
  ['filter FORWARD -p tcp --dport 22 --syn -j DROP', 'proved'],
  ['filter FORWARD -p tcp --tcp-option 8 -j DROP', 'not known'],
  ['filter FORWARD -f -j DROP', 'not known'],
  ['filter FORWARD -m length --length 40 -j DROP', 'not known'],
  ['filter FORWARD -m limit --limit 3/min -j DROP', 'not known'],
  ['filter FORWARD -m limit --limit 3/min -j LOG', 'proved'],
  ['filter FORWARD -m hashlimit --hashlimit-upto 3/min --hashlimit-name h -j DROP', 'not known'],
  ['filter FORWARD -m connlimit --connlimit-above 3 -j DROP', 'not known'],
  [
    'filter FORWARD -m connbytes --connbytes 9: --connbytes-dir both --connbytes-mode bytes -j DROP',
    'not known',
  ],
  ['filter FORWARD -m iprange --dst-range 10.180.0.0-10.180.0.9 -j DROP', 'not known'],
  ['filter FORWARD -m iprange --src-range 10.180.0.0-10.180.0.9 -p tcp --dport 22 -j DROP', 'proved'],
  ['filter FORWARD -m recent --name x --rcheck -j DROP', 'not known'],
  ['filter FORWARD -m recent --name x --set', 'proved'],
  ['filter FORWARD -m mac --mac-source 02:00:00:00:00:01 -j DROP', 'not known'],
  ['filter FORWARD -m pkttype --pkt-type broadcast -j DROP', 'not known'],
  ['filter FORWARD -m string --string x --algo bm -j DROP', 'not known'],
  ['filter FORWARD -m u32 --u32 0=1 -j DROP', 'not known'],
  ['filter FORWARD -m quota --quota 100 -j DROP', 'not known'],
  ['filter FORWARD -m time --timestart 01:00 -j DROP', 'not known'],
  ['filter FORWARD -m statistic --mode random --probability 0.5 -j DROP', 'differs'],
  ['filter FORWARD -m cpu --cpu 0 -j DROP', 'not known'],
  ['filter FORWARD -m helper --helper ftp -j DROP', 'not known'],
  ['filter FORWARD -m physdev --physdev-in eth0 -j DROP', 'not known'],
  ['filter FORWARD -m realm --realm 7 -j DROP', 'not known'],
  ['raw PREROUTING -m rpfilter --invert -j DROP', 'not known'],
  ['filter FORWARD -m mark --mark 7 -j DROP', 'proved'],
  ['filter FORWARD -m connmark --mark 0 -j DROP', 'differs'],
  ['filter FORWARD -p tcp -m multiport --dports 22,8000:8100 -j DROP', 'differs'],
  ['filter FORWARD -p tcp -m multiport --dports 22,9000:9100 -j DROP', 'proved'],
  ['filter FORWARD -m conntrack --ctstate NEW -j DROP', 'differs'],
  ['filter FORWARD -m conntrack --ctstate UNTRACKED -j DROP', 'proved'],
  ['filter FORWARD -m conntrack --ctstate INVALID -j DROP', 'proved'],
  ['filter FORWARD -m conntrack --ctstate ESTABLISHED -j DROP', 'proved'],
  ['filter FORWARD -m conntrack --ctorigdst 172.30.0.41 -j DROP', 'not known'],
  ['filter FORWARD -m conntrack --ctstatus ASSURED -j DROP', 'not known'],
  ['filter FORWARD -m conntrack --ctstate DNAT -j DROP', 'differs'],
  ['filter FORWARD -m addrtype --dst-type UNICAST -j DROP', 'differs'],
  ['filter FORWARD -m addrtype --dst-type LOCAL -j DROP', 'proved'],
  ['filter FORWARD -d 10.180.0.0/16 -j DROP', 'differs'],
  ['filter FORWARD -d 203.0.113.0/24 -j DROP', 'proved'],
  ['filter FORWARD -p tcp --dport 8080 -j NFQUEUE', 'not known'],
  ['filter FORWARD -p tcp --dport 22 -j NFQUEUE', 'proved'],
  ['filter FORWARD -p tcp --dport 8080 -j LOG', 'proved'],
  ['filter FORWARD -p udp --dport 8080 -j DROP', 'proved'],
]

it('nftables mode beside one rule of nft', async () => {
  const { resolved } = change(computeIn(NFTABLES, {}, LOCAL_IPS), OBJECTS)
  const client = openClient()
  const plane = planeOn(client, {})
  const { state } = await plane.observe()
  await commitAll(plane, state, finish(plane.render(resolved.table, { base: state, without: new Set() })))
  const found: [string, Said][] = []
  for (const [rule] of OF_NFT) {
    nft(`${CHAINS}add rule inet fw ${rule}`)
    const its = proofOf({}, resolved.snapshot, await tables())
    found.push([rule, said(its)])
    nft('delete table inet fw')
  }
  expect(found).toEqual(OF_NFT)
  await client.close()
})

it('iptables mode beside one rule of iptables', async () => {
  const { resolved } = change(computeIn(IPTABLES, {}, LOCAL_IPS), OBJECTS)
  const { client, plane } = openIptablesPlane({})
  const { state } = await plane.observe()
  await commitAll(plane, state, finish(plane.render(resolved.table, { base: state, without: new Set() })))
  const found: [string, Said][] = []
  for (const [rule] of OF_IPTABLES) {
    const [table = '', ...rest] = rule.split(' ')
    iptables(`-t ${table} -I ${rest.join(' ')}`)
    const its = proofOf({}, resolved.snapshot, await tables(), PROVING)
    found.push([rule, said(its)])
    iptables(`-t ${table} -D ${rest.join(' ')}`)
  }
  expect(found).toEqual(OF_IPTABLES)
  await client.close()
})
