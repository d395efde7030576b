import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import type { SurveyedChain } from '../../../../src/kernel/nft/survey.ts'
import { neighborsOf } from '../../../../src/modes/foreign/neighbors.ts'
import { PROCESSES, programsOf, type Surroundings } from '../../../../src/modes/foreign/programs.ts'

const read = (path: string) =>
  readFileSync(fileURLToPath(new URL(`../../../../${path}`, import.meta.url)), 'utf8')

const NOTHING: Surroundings = { chains: [], legacyTables: [] }

function chain(family: string, table: string, name: string): SurveyedChain {
  return { family, table, chain: { name, hook: undefined, rules: [] } }
}

/** `Docker (table ip docker-bridges)`: the program, and by what it was recognized. */
const found = (around: Partial<Surroundings>) =>
  programsOf({ ...NOTHING, ...around }).map(({ name, by }) => `${name} (${by})`)

describe('programs are recognized', () => {
  it.each([
    [chain('ip', 'calico', 'filter-FORWARD'), 'Calico (table ip calico)'],
    [chain('ip6', 'nat', 'cali-PREROUTING'), 'Calico (rules in ip6 nat)'],
    [chain('ip', 'mangle', 'OLD_CILIUM_PRE_mangle'), 'Cilium (rules in ip mangle)'],
    [chain('ip', 'nat', 'FLANNEL-POSTRTG'), 'flannel (rules in ip nat)'],
    [chain('ip', 'nat', 'AWS-SNAT-CHAIN-0'), 'Amazon VPC CNI (rules in ip nat)'],
    [chain('ip', 'filter', 'ANTREA-FORWARD'), 'Antrea (rules in ip filter)'],
    [chain('ip', 'filter', 'KUBE-NWPLCY-DEFAULT'), 'kube-router (rules in ip filter)'],
    [chain('inet', 'cni_hostport', 'hostports'), 'CNI portmap (table inet cni_hostport)'],
    [chain('ip', 'nat', 'ISTIO_POSTRT'), 'Istio (rules in ip nat)'],
    [chain('inet', 'firewalld', 'filter_INPUT'), 'firewalld (table inet firewalld)'],
    [chain('ip6', 'filter', 'ufw6-user-input'), 'ufw (rules in ip6 filter)'],
    [chain('inet', 'filter', 'input'), 'nftables.service or a firewall like it (table inet filter)'],
    [chain('ip', 'filter', 'DOCKER-USER'), 'Docker (rules in ip filter)'],
    [chain('inet', 'netavark', 'FORWARD'), 'Podman (table inet netavark)'],
    [chain('ip', 'libvirt_network', 'forward'), 'libvirt (table ip libvirt_network)'],
  ])('by their chains and tables: %#', (one, expected) => {
    expect(found({ chains: [one] })).toEqual([expected])
  })

  it.each(['KUBE-FIREWALL', 'KUBE-KUBELET-CANARY', 'KUBE-SERVICES', 'DOCKERS', 'FORWARD', 'PREROUTING'])(
    'and none by the chain %s',
    name => expect(found({ chains: [chain('ip', 'filter', name)] })).toEqual([]),
  )

  it('by devices, of which the first is named, and by processes', () => {
    const devices = ['lo', 'eth0', 'veth1a2b', 'cali0123456789a', 'cali0123456789b', 'nodelocaldns']
    expect(found({ devices, processes: new Set(['speaker', 'multus-daemon']) })).toEqual([
      'Calico (device cali0123456789a)',
      'Multus (process multus-daemon)',
      'MetalLB (process speaker)',
      'NodeLocal DNSCache (device nodelocaldns)',
    ])
    expect([...PROCESSES].filter(name => name.length > 15)).toEqual([])
  })

  it('by comments of rules, and by chains of legacy iptables', () => {
    const rule = { handle: 1n, targets: [], sets: [], comments: ['AWS, primary ENI'] }
    const mangle = {
      family: 'ip',
      name: 'mangle',
      chains: [{ name: 'PREROUTING', isBase: true, rules: [rule] }],
    }
    const legacy = { family: 'ip', name: 'nat', chains: [{ name: 'LIBVIRT_PRT', rules: 3 }] }
    expect(
      programsOf({
        ...NOTHING,
        tables: [{ ...mangle, family: 'ip' }],
        legacyTables: [
          { ...legacy, family: 'ip' },
          { family: 'ip6', name: 'nat', chains: 'unreadable' },
        ],
      }).map(({ name, by }) => `${name} (${by})`),
    ).toEqual(['Amazon VPC CNI (rules in ip mangle)', 'libvirt (rules in legacy ip nat)'])
  })
})

describe('a bit of the packet mark', () => {
  const chains = [chain('ip', 'nat', 'cali-PREROUTING'), chain('ip', 'nat', 'AWS-CONNMARK-CHAIN-0')]
  const severities = (masqueradeBit: number) =>
    neighborsOf({
      ...NOTHING,
      chains,
      masqueradeBit,
      tableName: 'x',
      writesIptables: false,
      virtualServers: [],
    })
      .filter(({ what }) => what.includes('is on this node'))
      .map(({ severity, what, advice }) => `${severity} ${what.split(' ')[0]}: ${advice.split(';')[0]}`)

  it('that no program uses is no conflict: 14 is the default', () => {
    expect(severities(14).map(text => text.split(' ')[0])).toEqual(['note', 'note'])
  })

  it.each([
    [
      7,
      ['Amazon'],
      'warning Amazon: it uses bits 0x80 of the packet mark, and kprobe 0x80: choose another masqueradeBit',
    ],
    [
      31,
      ['Calico'],
      'warning Calico: it uses bits 0xffff0000 of the packet mark, and kprobe 0x80000000: choose another masqueradeBit',
    ],
  ])('%d that a program uses, too, is a warning', (bit, _, text) => {
    expect(severities(bit).filter(line => line.startsWith('warning'))).toEqual([text])
  })
})

describe('docs/neighbors.md', () => {
  const names = [...read('src/modes/foreign/programs.ts').matchAll(/^ {4}name: '([^']+)',$/gm)].map(
    ([, name = '']) => name,
  )
  const page = read('docs/neighbors.md')

  it('has a row for each program', () => {
    expect(names.length).toBeGreaterThanOrEqual(17)
    expect(names.filter(name => !page.includes(`\n| ${name} `))).toEqual([])
  })

  it('describes the security modules', () => {
    expect(page).toContain('\n| SELinux ')
    expect(page).toContain('\n| AppArmor ')
  })
})
