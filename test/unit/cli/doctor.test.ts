import { describe, expect, it } from 'vitest'
import { ipvsSettingFindings } from '../../../src/cli/doctor-ipvs.ts'
import { settingFindings } from '../../../src/cli/doctor-settings.ts'
import type { Config } from '../../../src/config/config.ts'
import { parseFlags } from '../../../src/config/parse-flags.ts'

function config(): Config {
  const parsed = parseFlags(['--source=file:unused'], { hostName: 'node' })
  if (parsed.kind === 'errors') throw new Error(JSON.stringify(parsed.errors))
  return parsed.value.config
}

async function found(files: Readonly<Record<string, string>>): Promise<string[]> {
  const findings = await settingFindings(config(), async path => files[path])
  return findings.map(({ kind, subject, text }) => `${kind} ${subject}: ${text}`)
}

describe('settingFindings', () => {
  it('is content with a node that is set up for Services', async () => {
    const findings = await found({
      '/proc/sys/net/ipv4/ip_forward': '1',
      '/proc/sys/net/ipv6/conf/all/forwarding': '1',
      '/proc/sys/net/bridge/bridge-nf-call-iptables': '1',
      '/proc/sys/net/ipv4/conf/all/route_localnet': '0',
      '/proc/sys/net/netfilter/nf_conntrack_max': '262144',
      '/proc/sys/net/netfilter/nf_conntrack_count': '17',
      '/proc/self/oom_score_adj': '-999',
    })
    expect(findings.every(text => text.startsWith('ok '))).toBe(true)
    expect(findings).toContain('ok net/netfilter/nf_conntrack_max: 17 of 262144 connections tracked')
  })

  it('warns of what keeps Services from working, and of a table that is almost full', async () => {
    const findings = await found({
      '/proc/sys/net/ipv4/ip_forward': '0',
      '/proc/sys/net/bridge/bridge-nf-call-iptables': '0',
      '/proc/sys/net/ipv4/conf/all/route_localnet': '1',
      '/proc/sys/net/netfilter/nf_conntrack_max': '100',
      '/proc/sys/net/netfilter/nf_conntrack_count': '99',
      '/proc/self/oom_score_adj': '0',
    })
    expect(findings).toEqual([
      'warning net/ipv4/ip_forward: 0: IPv4 packets of pods are not forwarded',
      'note net/ipv6/conf/all/forwarding: absent: IPv6 is not there',
      'warning net/bridge/bridge-nf-call-iptables: 0: answers between pods of one bridge are not translated back',
      'warning net/ipv4/conf/all/route_localnet: 1: others on the network may reach services bound to 127.0.0.1; kprobe does not need it',
      'warning net/netfilter/nf_conntrack_max: 99 of 100 connections tracked',
      'note oom_score_adj: 0 now; the daemon asks for -999, which needs CAP_SYS_RESOURCE',
    ])
  })

  it('says of settings that IPVS needs what is still to be done, and what cannot be (I-23)', async () => {
    const files: Readonly<Record<string, string>> = {
      '/proc/sys/kernel/osrelease': '6.1.0-56-amd64',
      '/proc/sys/net/ipv4/vs/expire_nodest_conn': '0',
      '/proc/sys/net/ipv4/ip_forward': '1',
    }
    const findings = await ipvsSettingFindings(config(), async path => files[path])
    expect(findings.map(({ kind, subject }) => `${kind} ${subject}`)).toEqual([
      'warning net/ipv4/vs/conntrack',
      'note net/ipv4/vs/expire_nodest_conn',
      'warning net/ipv4/vs/expire_quiescent_template',
      'ok net/ipv4/ip_forward',
    ])
  })

  it('names what is absent instead of failing (I-23)', async () => {
    expect(await found({})).toContain(
      'note net/netfilter/nf_conntrack_max: absent: connections are not tracked yet',
    )
  })
})
