import { execFileSync } from 'node:child_process'
import type { XtTableName } from '../../src/kernel/xt/scope.ts'
import { isOurChain, KUBE_CHAINS } from '../../src/modes/xt-common/layout.ts'

/* What other agents of a node keep in the tables of iptables: none of it is ours to touch. */

const FAMILIES = ['iptables', 'ip6tables'] as const
type Program = (typeof FAMILIES)[number]

/** kubelet, two kinds of CNI, and something like Docker. Nothing of it concerns the addresses of the scenarios. */
function textFor(program: Program): string {
  const v4 = program === 'iptables'
  const pods = v4 ? '10.180.0.0/24' : 'fd00:10::/96'
  const far = v4 ? '172.17.0.0/16' : 'fd00:17::/64'
  const one = v4 ? '172.17.0.2' : 'fd00:17::2'
  const many = v4 ? '224.0.0.0/4' : 'ff00::/8'
  const loopback = v4 ? '127.0.0.0/8' : '::1/128'
  const to = v4 ? `${one}:80` : `[${one}]:80`
  const martians = v4
    ? '-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP'
    : ''
  return `*mangle
:KUBE-KUBELET-CANARY - [0:0]
:cali-PREROUTING - [0:0]
-A PREROUTING -m comment --comment "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING
-A cali-PREROUTING -i cali+ -m comment --comment "cali:6BJqBjBC7crtA-7-" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*filter
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-FIREWALL - [0:0]
:FLANNEL-FWD - [0:0]
:cali-FORWARD - [0:0]
:DOCKER-USER - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -p tcp -m tcp --dport 65000:65009 -m comment --comment "an administrator's own" -j DROP
-A OUTPUT -j KUBE-FIREWALL
${martians}
-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FORWARD -j DOCKER-USER
-A cali-FORWARD -m comment --comment "cali:vjrMJCRpqwy5oRoX" -j MARK --set-xmark 0x0/0xe0000
-A cali-FORWARD -i cali+ -m comment --comment "cali:A_sPAO0mcxbT9mOV" -j RETURN
-A FLANNEL-FWD -s ${pods} -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d ${pods} -m comment --comment "flanneld forward" -j ACCEPT
-A DOCKER-USER -j RETURN
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
:CNI-0123456789abcdef01234567 - [0:0]
:FLANNEL-POSTRTG - [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d ${loopback} -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s ${far} ! -o docker0 -j MASQUERADE
-A POSTROUTING -s ${one} -m comment --comment "name: \\"pods\\" id: \\"0123\\"" -j CNI-0123456789abcdef01234567
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A CNI-0123456789abcdef01234567 -d ${far} -m comment --comment "name: \\"pods\\" id: \\"0123\\"" -j ACCEPT
-A CNI-0123456789abcdef01234567 ! -d ${many} -m comment --comment "name: \\"pods\\" id: \\"0123\\"" -j MASQUERADE
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A DOCKER -i docker0 -j RETURN
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 32768 -j DNAT --to-destination ${to}
COMMIT
`
}

/** Into the network namespace this process is in now. */
export function writeForeignRules(): void {
  for (const program of FAMILIES)
    execFileSync(`${program}-nft-restore`, ['--noflush'], { input: textFor(program), stdio: ['pipe', 2, 2] })
}

/** Lines of `iptables-nft-save` for both families without its comments, `ip nat -A CHAIN ...`. */
export function savedLines(): readonly string[] {
  return FAMILIES.flatMap(program => {
    const text = execFileSync(`${program}-nft-save`, { encoding: 'utf8', maxBuffer: 2 ** 28 })
    let table = ''
    return text.split('\n').flatMap(line => {
      if (line.startsWith('*')) table = line.slice(1)
      if (!/^(?::|-A )/.test(line)) return []
      // Packets and bytes that met a policy.
      const stable = line.replace(/ \[\d+:\d+\]$/, '')
      return [`${program === 'iptables' ? 'ip' : 'ip6'} ${table} ${stable}`]
    })
  })
}

const LINE = /^\S+ (\S+) (?::|-A )(\S+)/

/** Those of them that are nobody's business of ours: neither our chains, nor rules that lead to them. */
export function foreignLines(): readonly string[] {
  return savedLines().filter(line => {
    const [, name = '', chain = ''] = LINE.exec(line) ?? []
    const table = TABLES.find(one => one === name)
    if (table === undefined) return true
    const to = / -j (\S+)$/.exec(line)?.[1]
    return !isOurChain(KUBE_CHAINS, table, chain) && (to === undefined || !isOurChain(KUBE_CHAINS, table, to))
  })
}

const TABLES: readonly XtTableName[] = ['filter', 'nat', 'mangle']
