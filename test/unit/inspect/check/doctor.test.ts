import { describe, expect, it } from 'vitest'
import type { Config } from '../../../../src/config/config.ts'
import { conntrackFindings, settingFindings } from '../../../../src/inspect/check/doctor.ts'
import { lackingFamily } from '../../../../src/inspect/check/requirements.ts'
import type { NftFamily } from '../../../../src/kernel/nft/state.ts'
import { ipvsSettingFindings } from '../../../../src/modes/ipvs/doctor.ts'
import { configFrom } from '../../../support/parse-flags.ts'

function config(...flags: readonly string[]): Config {
  return configFrom(['--source=file:unused', ...flags])
}

async function found(files: Readonly<Record<string, string>>, wroteIptables = false): Promise<string[]> {
  const findings = await settingFindings({ config: config(), wroteIptables }, async path => files[path])
  return findings.map(({ kind, subject, text }) => `${kind} ${subject}: ${text}`)
}

describe('requirements that are missing', () => {
  it.each<[readonly (NftFamily | undefined)[], NftFamily | undefined]>([
    [[], undefined],
    [['ip6', 'ip6'], 'ip6'],
    [['ip'], 'ip'],
    [['ip', 'ip6'], undefined],
    [['ip6', undefined], undefined],
  ])('in the families %j leave only %s unserved', (families, lacking) => {
    const findings = families.map(family => ({ kind: 'missing', subject: 'fib', text: '', family }) as const)
    expect(lackingFamily(findings)).toBe(lacking)
  })
})

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

  it('names the security module that confines the process', async () => {
    const label = '/proc/self/attr/current'
    expect(
      await found({ '/sys/fs/selinux/enforce': '1', [label]: 'system_u:system_r:spc_t:s0\0' }),
    ).toContain(
      'note SELinux: enforced; this process has the label system_u:system_r:spc_t:s0: the audit log names what the policy denies to it',
    )
    expect(await found({ [label]: 'cri-containerd.apparmor.d (enforce)' })).toContain(
      'note AppArmor: cri-containerd.apparmor.d is enforced; profiles of runtimes deny writes to /proc/sys: run `kprobe init` in a privileged init container',
    )
    const unconfined = await found({ '/sys/fs/selinux/enforce': '0', [label]: 'unconfined' })
    expect(unconfined.filter(text => /SELinux|AppArmor/.test(text))).toEqual([])
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
      'note net/ipv6/conf/all/forwarding: absent: this kernel has no IPv6',
      'warning net/bridge/bridge-nf-call-iptables: 0: replies between pods of one bridge are not translated back',
      'warning net/ipv4/conf/all/route_localnet: 1: other machines of the network may reach programs bound to 127.0.0.1; kprobe does not need it',
      'warning net/netfilter/nf_conntrack_max: 99 of 100 connections tracked',
      'note oom_score_adj: 0 now; the daemon sets -999, which needs CAP_SYS_RESOURCE',
    ])
  })

  it('says of settings that IPVS needs what is still to be done, and what cannot be (I-23)', async () => {
    const files: Readonly<Record<string, string>> = {
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
      'note net/netfilter/nf_conntrack_max: absent: nf_conntrack is not loaded',
    )
  })
})

describe('conntrackFindings', () => {
  const NETFILTER = '/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_'

  it('names each timeout that kprobe changes, and each larger one that stays', async () => {
    const files: Readonly<Record<string, string>> = {
      [`${NETFILTER}established`]: '86400',
      [`${NETFILTER}close_wait`]: '7200',
      [`${NETFILTER}fin_wait`]: '120',
      [`${NETFILTER}time_wait`]: '120',
    }
    const flags = ['--conntrack-tcp-timeout-fin-wait=30s', '--conntrack-tcp-timeout-time-wait=0']
    const findings = await conntrackFindings(config(...flags), async path => files[path])
    expect(findings).toEqual([
      {
        kind: 'note',
        subject: 'nf_conntrack_tcp_timeout_fin_wait',
        text: '120 now; kprobe changes it to 30 when it starts',
      },
      {
        kind: 'note',
        subject: 'nf_conntrack_tcp_timeout_close_wait',
        text: '7200 stays, although 3600 is configured; --conntrack-lower lowers it',
      },
    ])
  })

  it('says nothing where connections are not tracked', async () => {
    expect(await conntrackFindings(config(), async () => undefined)).toEqual([])
  })
})
