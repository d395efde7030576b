import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { KUBE_PROXY_TABLE } from '../faults/foreign-rules.ts'
import { type Ended, runInProcess } from '../support/command.ts'
import { EXAMPLE_FLAGS } from '../support/daemon.ts'
import { freshNetns } from '../support/lab/netns.ts'

const REMOVES = 'kprobe cleanup --leftovers-of=kube-proxy'

const kprobe = (...args: readonly string[]): Promise<Ended> => runInProcess(args)
const cleanLeftovers = (): Promise<Ended> => kprobe('cleanup', '--leftovers-of=kube-proxy')
const nft = (script: string): string => execFileSync('nft', ['-f', '-'], { input: script, encoding: 'utf8' })
const ruleset = (): string => execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })
const hasProgram = (name: string): boolean => existsSync(`/usr/sbin/${name}`)

const HAS_IPTABLES = hasProgram('iptables-nft-restore') && hasProgram('ip6tables-nft-restore')
if (!HAS_IPTABLES) console.log('skipped: chains of iptables-nft, which is not installed here')

beforeEach(() => freshNetns())

/** Only what a test of its own network namespace can leave behind outside it: nothing. */
afterEach(() => nft('flush ruleset'))

/** What others have in the same tables: a firewall, a container runtime, kubelet, and network policies. */
const OTHERS = `
*filter
:INPUT DROP [12:3456]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER-USER - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
[7:420] -A INPUT -i lo -j ACCEPT
-A INPUT -j KUBE-FIREWALL
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "kubernetes is fine" -j ACCEPT
-A FORWARD -j DOCKER-USER
-A FORWARD -m comment --comment "kube-router netpol" -j KUBE-ROUTER-FORWARD
-A OUTPUT -j KUBE-FIREWALL
-A DOCKER-USER -j RETURN
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [1:60]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:KUBE-SVC-NOT-A-HASH - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
[3:180] -A POSTROUTING -s 10.88.0.0/16 ! -o cni0 -j MASQUERADE
-A CNI-HOSTPORT-DNAT -p tcp -m tcp --dport 8080 -j DNAT --to-destination DNAT_TO
COMMIT
*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
COMMIT
`

/** kube-proxy's iptables mode with one Service of two endpoints and a NodePort, and one without endpoints. */
const KUBE_PROXY = `
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-I INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-I INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-I INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-SERVICES -d VIP2 -p tcp -m comment --comment "ns/none:http has no endpoints" -m tcp --dport 80 -j REJECT
COMMIT
*nat
:KUBE-EXT-XPGD46QRK7WJZT7O - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SEP-SXIVWICOYRO3J4NJ - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "masquerade traffic for ns1/svc1:p80 external destinations" -j KUBE-MARK-MASQ
-A KUBE-EXT-XPGD46QRK7WJZT7O -j KUBE-SVC-XPGD46QRK7WJZT7O
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-NODEPORTS -p tcp -m comment --comment "ns1/svc1:p80" -m tcp --dport 30080 -j KUBE-EXT-XPGD46QRK7WJZT7O
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SEP-SXIVWICOYRO3J4NJ -s ENDPOINT -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
-A KUBE-SEP-SXIVWICOYRO3J4NJ -p tcp -m comment --comment "ns1/svc1:p80" -m tcp -j DNAT --to-destination DNAT_TO
-A KUBE-SERVICES -d VIP1 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-XPGD46QRK7WJZT7O -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-SXIVWICOYRO3J4NJ
-A KUBE-SVC-XPGD46QRK7WJZT7O -j KUBE-SEP-SXIVWICOYRO3J4NJ
COMMIT
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
`
const FILTER_CHAINS = 6
const FILTER_JUMPS = 6
const NAT_CHAINS = 8
const NAT_JUMPS = 3

const FAMILIES = [
  {
    tools: 'iptables-nft',
    words: { VIP1: '172.30.0.41', VIP2: '172.30.0.42', ENDPOINT: '10.180.0.1/32', DNAT_TO: '10.180.0.1:80' },
  },
  {
    tools: 'ip6tables-nft',
    words: {
      VIP1: 'fd00:172:30::41',
      VIP2: 'fd00:172:30::42',
      ENDPOINT: 'fd00:10:180::1/128',
      DNAT_TO: '[fd00:10:180::1]:80',
      '10.88.0.0/16': 'fd00:10:88::/64',
    },
  },
] as const

/** Adds rules to what is there, with the counters that they name. */
function restore(rules: string): void {
  for (const { tools, words } of FAMILIES) {
    let input = rules
    for (const [word, value] of Object.entries(words)) input = input.replaceAll(word, value)
    execFileSync(`${tools}-restore`, ['--noflush', '--counters'], { input, stdio: ['pipe', 'pipe', 'pipe'] })
  }
}

/** All rules and counters of iptables-nft, but for the times of the dump. */
function saved(): string {
  return FAMILIES.map(({ tools }) => execFileSync(`${tools}-save`, ['--counters'], { encoding: 'utf8' }))
    .join('')
    .replace(/^#.*$/gm, '')
}

describe.skipIf(!HAS_IPTABLES)('kprobe cleanup --leftovers-of=kube-proxy, with iptables-nft', () => {
  it('F88: takes the chains of kube-proxy out, and leaves every other byte of the same tables', async () => {
    restore(OTHERS)
    const before = saved()
    restore(KUBE_PROXY)
    expect(saved()).toContain('-j KUBE-SVC-XPGD46QRK7WJZT7O')
    const removed = ['ip', 'ip6'].flatMap(family => [
      `removed ${FILTER_CHAINS} chains and ${FILTER_JUMPS} rules that led to them in table ${family} filter\n`,
      `removed ${NAT_CHAINS} chains and ${NAT_JUMPS} rules that led to them in table ${family} nat\n`,
      `removed 1 chain in table ${family} mangle\n`,
    ])
    expect(await cleanLeftovers()).toEqual({ code: 0, out: removed.join(''), err: '' })
    expect(saved()).toBe(before)
    expect(await cleanLeftovers()).toEqual({
      code: 0,
      out: 'kube-proxy left nothing here that can be removed\n',
      err: '',
    })
    expect(saved()).toBe(before)
  })

  it('leaves a chain that others lead to, with what it needs, and says so', async () => {
    restore(OTHERS)
    restore(KUBE_PROXY)
    restore(`
*nat
:CNI-MINE - [0:0]
-A PREROUTING -m comment --comment "somebody's own" -j KUBE-SERVICES
-A CNI-MINE -j KUBE-EXT-XPGD46QRK7WJZT7O
COMMIT
`)
    const { code, out } = await cleanLeftovers()
    expect(code).toBe(0)
    expect(out).toContain('left chain KUBE-EXT-XPGD46QRK7WJZT7O in table ip nat, which CNI-MINE leads to\n')
    expect(out).toContain('left chain KUBE-SERVICES in table ip6 nat, which PREROUTING leads to\n')
    const rules = saved()
    expect(rules).toContain('-A CNI-MINE -j KUBE-EXT-XPGD46QRK7WJZT7O')
    expect(rules).toContain('-A KUBE-EXT-XPGD46QRK7WJZT7O -j KUBE-SVC-XPGD46QRK7WJZT7O')
    expect(rules).not.toContain('-j KUBE-POSTROUTING')
    expect(rules).not.toContain('-j KUBE-FORWARD')
  })

  it('touches nothing of ours, and the cleanup of ours touches nothing of it', async () => {
    restore(OTHERS)
    restore(KUBE_PROXY)
    expect((await kprobe('run', '--once', ...EXAMPLE_FLAGS)).code).toBe(0)
    const kubeProxys = saved()
    const ours = execFileSync('nft', ['list', 'table', 'ip', 'kube-proxy'], { encoding: 'utf8' })
    const { out } = await kprobe('cleanup')
    expect(out).toContain('removed table ip kube-proxy\nremoved table ip6 kube-proxy\n')
    expect(out).toContain(
      `left by kube-proxy: ${NAT_CHAINS} chains and ${NAT_JUMPS} rules that led to them in table ip nat of its iptables mode, or of kprobe's, whose chains have the same names (remove with \`${REMOVES}\`)\n`,
    )
    expect(saved()).toBe(kubeProxys)
    expect((await kprobe('run', '--once', ...EXAMPLE_FLAGS)).code).toBe(0)
    expect((await cleanLeftovers()).out).not.toContain('table ip kube-proxy')
    expect(execFileSync('nft', ['list', 'table', 'ip', 'kube-proxy'], { encoding: 'utf8' })).toBe(ours)
  })
})

/** What kube-proxy does to a table that it finds, in short: base chains made anew, `services` replaced. */
const KUBE_PROXY_OVER_OURS = `
flush chain ip kube-proxy services
flush chain ip kube-proxy nat-postrouting
flush chain ip kube-proxy firewall-check
add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
add chain ip kube-proxy service-endpoints-check
add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
`
const SHARED_SET = 'add set ip kube-proxy cluster-ips { type ipv4_addr; }'

describe("kube-proxy's nftables mode", () => {
  it('goes when told, and only then', async () => {
    nft(KUBE_PROXY_TABLE)
    nft('table ip somebody { chain c { counter; }; }')
    const before = ruleset()
    expect(await kprobe('cleanup')).toEqual({
      code: 0,
      out: `the kernel holds no objects of kprobe\nleft by kube-proxy: table ip kube-proxy of its nftables mode (remove with \`${REMOVES}\`)\n`,
      err: '',
    })
    expect(ruleset()).toBe(before)
    expect(await cleanLeftovers()).toEqual({ code: 0, out: 'removed table ip kube-proxy\n', err: '' })
    expect(ruleset()).toMatch(/^table ip somebody \{[^}]*\}\n\}\n$/)
  })

  it('that has written over our table keeps it, and what was ours goes from it', async () => {
    expect((await kprobe('run', '--once', ...EXAMPLE_FLAGS)).code).toBe(0)
    nft(`${KUBE_PROXY_OVER_OURS}\n${SHARED_SET}`)
    const { code, out, err } = await kprobe('cleanup')
    expect({ code, err }).toEqual({ code: 0, err: '' })
    expect(out).toMatch(
      /^removed table ip6 kube-proxy\nremoved kprobe's objects in table ip kube-proxy, which is kube-proxy's now: \d+ chains, 10 sets\nleft by kube-proxy: table ip kube-proxy of its nftables mode /,
    )
    expect(ruleset()).toMatch(/ip daddr . meta l4proto . th dport vmap @service-ips/)
    expect(ruleset()).not.toMatch(/frontends|dispatch|mod-|chain refuse \{/)
    expect(ruleset()).toMatch(/set cluster-ips \{\s+typeof ip daddr\s+size 1048576/)
    expect((await kprobe('cleanup')).out).toMatch(
      /^the kernel holds no objects of kprobe\nleft by kube-proxy: /,
    )
    expect((await cleanLeftovers()).out).toBe('removed table ip kube-proxy\n')
    expect(ruleset()).toBe('')
  })

  it('is told from a table of others with the same name', async () => {
    nft('table ip kube-proxy { chain c { counter; }; }')
    expect((await kprobe('cleanup')).out).toBe(
      'the kernel holds no objects of kprobe\nleft table ip kube-proxy: it does not belong to kprobe\n',
    )
    expect((await cleanLeftovers()).out).toBe('kube-proxy left nothing here that can be removed\n')
  })
})

describe('what its IPVS mode left', () => {
  it.skipIf(!hasProgram('ipset'))('is named, and removed when told; other sets stay', async () => {
    const create =
      'create KUBE-CLUSTER-IP hash:ip,port\ncreate KUBE-6-LOOP-BACK hash:ip,port,ip family inet6\n'
    execFileSync('ipset', ['restore'], {
      input: `${create}create KUBE-ROUTER-X hash:ip\ncreate other hash:ip\n`,
    })
    const command = 'kprobe cleanup --leftovers-of=kube-proxy'
    const named = `left by kube-proxy: 2 ipsets of its IPVS mode (KUBE-6-LOOP-BACK, KUBE-CLUSTER-IP) (remove with \`${command}\`)\n`
    expect((await kprobe('cleanup')).out).toBe(`the kernel holds no objects of kprobe\n${named}`)
    expect((await kprobe('doctor')).out).toContain('2 ipsets')
    expect(await cleanLeftovers()).toEqual({ code: 0, out: 'removed 2 ipsets\n', err: '' })
    expect(execFileSync('ipset', ['list', '-n'], { encoding: 'utf8' }).trim().split('\n').sort()).toEqual([
      'KUBE-ROUTER-X',
      'other',
    ])
    execFileSync('ipset', ['destroy'])
  })

  it.skipIf(!hasProgram('ipset'))("stays where its device is somebody else's", async () => {
    execFileSync('ipset', ['create', 'KUBE-CLUSTER-IP', 'hash:ip,port'])
    execFileSync('ip', ['link', 'add', 'kube-ipvs0', 'type', 'veth', 'peer', 'name', 'other'])
    expect((await kprobe('cleanup')).out).toContain('left by kube-proxy: the network device kube-ipvs0')
    expect(await cleanLeftovers()).toMatchObject({ code: 1, err: expect.stringContaining('kube-ipvs0') })
    expect(execFileSync('ipset', ['list', '-n'], { encoding: 'utf8' })).toBe('KUBE-CLUSTER-IP\n')
    execFileSync('ipset', ['destroy'])
    execFileSync('ip', ['link', 'del', 'kube-ipvs0'])
  })
})

describe('what only kube-proxy itself removes', () => {
  it.skipIf(!hasProgram('iptables-legacy'))('names legacy iptables', async () => {
    const legacy = spawnSync('iptables-legacy', ['-t', 'nat', '-N', 'KUBE-SERVICES'])
    if (legacy.status !== 0) return console.log('skipped: this kernel has no legacy iptables')
    expect((await kprobe('cleanup')).out).toContain(
      'left by kube-proxy: 1 chain of its iptables mode in legacy iptables, table ip nat (remove with `kube-proxy --cleanup`)\n',
    )
  })
})

it('refuses the name of a proxy that it does not know', async () => {
  expect(await kprobe('cleanup', '--leftovers-of=cilium')).toMatchObject({
    code: 2,
    err: expect.stringContaining('"cilium" is not kube-proxy'),
  })
  expect((await kprobe('cleanup', '--help')).out).toContain('--leftovers-of PROXY')
})
