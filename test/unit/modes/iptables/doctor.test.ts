import { describe, expect, it } from 'vitest'
import { XT_EXTENSIONS } from '../../../../src/kernel/xt/probe.ts'
import { extensionFindings, iptablesSettingFindings } from '../../../../src/modes/iptables/doctor.ts'
import { configFrom } from '../../../support/parse-flags.ts'

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
      'ok xtables for SCTP ports: sctp',
      'ok xtables for two metrics of kube-proxy: nfacct',
    ])
  })

  it('are named with their kernel options, and only affect what needs them', () => {
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
  async function findings(files: Readonly<Record<string, string>>, ...argv: readonly string[]) {
    const config = configFrom(['--proxy-mode=iptables', ...argv])
    const found = await iptablesSettingFindings(config, path => Promise.resolve(files[path]))
    return found.map(({ kind, text }) => `${kind}: ${text}`)
  }
  const LOCALNET = '/proc/sys/net/ipv4/conf/all/route_localnet'

  it('say which command sets route_localnet', async () => {
    expect((await findings({ [LOCALNET]: '0' }))[0]).toMatch(
      /^note: 0: `kprobe init` or the daemon sets it to 1/,
    )
    expect((await findings({ [LOCALNET]: '1' }))[0]).toBe('ok: 1: node ports answer at 127.0.0.1')
    expect((await findings({ [LOCALNET]: '0' }, '--iptables-localhost-nodeports=false'))[0]).toBe(
      'ok: 0: node ports do not answer at 127.0.0.1',
    )
    expect((await findings({ [LOCALNET]: '1' }, '--iptables-localhost-nodeports=false'))[0]).toBe(
      'warning: 1: hosts of the network can reach sockets bound to 127.0.0.1; node ports do not answer there',
    )
  })

  it('say how many clients an endpoint remembers', async () => {
    expect((await findings({}))[1]).toMatch(/^note: an endpoint remembers the latest 100 \(default\) at most/)
    const many = await findings({ '/sys/module/xt_recent/parameters/ip_list_tot': '5000' })
    expect(many[1]).toMatch(/remembers the latest 5000 at most/)
  })
})
