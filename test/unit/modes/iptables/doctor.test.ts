import { describe, expect, it } from 'vitest'
import { parseRequest } from '../../../../src/config/load-config.ts'
import { XT_EXTENSIONS } from '../../../../src/kernel/xt/probe.ts'
import { extensionFindings, iptablesSettingFindings } from '../../../../src/modes/iptables/doctor.ts'

function lacking(...names: readonly string[]) {
  const of = XT_EXTENSIONS.filter(({ name }) => names.includes(name))
  expect(of).toHaveLength(names.length)
  return of.map(each => ({ ...each, family: 'ip6' as const }))
}

const lines = (missing: Parameters<typeof extensionFindings>[0]) =>
  extensionFindings(missing).map(({ kind, subject, text }) => `${kind} ${subject}: ${text}`)

describe('matches and targets of xtables', () => {
  it('are ok where the kernel has them', () => {
    expect(lines([])).toEqual([
      expect.stringMatching(/^ok xtables for every Service: comment, conntrack, statistic, .*DNAT$/),
      'ok xtables for session affinity: recent',
      'ok xtables for ports of SCTP: sctp',
      'ok xtables for two metrics of kube-proxy: nfacct',
    ])
  })

  it('are named with what gives them, and hinder only what needs them', () => {
    const [services, affinity, sctp, counters] = lines(lacking('statistic', 'recent', 'nfacct'))
    expect(services).toMatch(
      /^missing xtables for every Service: match statistic \(revision 0\) for ip6: CONFIG_NFT_COMPAT, CONFIG_NETFILTER_XT_MATCH_STATISTIC$/,
    )
    expect(affinity).toMatch(/^warning .*CONFIG_NETFILTER_XT_MATCH_RECENT$/)
    expect(sctp).toMatch(/^ok /)
    expect(counters).toMatch(/^note .*CONFIG_NETFILTER_XT_MATCH_NFACCT$/)
  })
})

describe('settings', () => {
  async function told(files: Readonly<Record<string, string>>, ...argv: readonly string[]) {
    const parsed = parseRequest(['--proxy-mode=iptables', ...argv], { hostName: 'node' }, undefined)
    if (parsed.kind === 'errors') throw new Error(JSON.stringify(parsed.errors))
    const found = await iptablesSettingFindings(parsed.value.config, path => Promise.resolve(files[path]))
    return found.map(({ kind, text }) => `${kind}: ${text}`)
  }
  const LOCALNET = '/proc/sys/net/ipv4/conf/all/route_localnet'

  it('say who sets route_localnet, if anybody', async () => {
    expect((await told({ [LOCALNET]: '0' }))[0]).toMatch(/^note: 0: `kprobe init` or the daemon sets it to 1/)
    expect((await told({ [LOCALNET]: '1' }))[0]).toBe('ok: 1: NodePorts answer at 127.0.0.1')
    expect((await told({ [LOCALNET]: '0' }, '--iptables-localhost-nodeports=false'))[0]).toBe(
      'ok: 0: NodePorts do not answer at 127.0.0.1',
    )
    expect((await told({ [LOCALNET]: '1' }, '--iptables-localhost-nodeports=false'))[0]).toBe(
      'warning: 1: others on the network may reach services bound to 127.0.0.1; NodePorts do not answer there',
    )
  })

  it('say how many clients an endpoint remembers', async () => {
    expect((await told({}))[1]).toMatch(/^note: an endpoint remembers 100, the default, of them at most/)
    const many = await told({ '/sys/module/xt_recent/parameters/ip_list_tot': '5000' })
    expect(many[1]).toMatch(/remembers 5000 of them/)
  })
})
