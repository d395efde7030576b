import type { Config } from '../config/config.ts'
import { conntrackSysctls, SYSCTLS } from '../kernel/conntrack/sysctls.ts'
import { planSysctls } from '../kernel/sysctl/switches.ts'
import type { Finding, ReadText } from '../modes/common/finding.ts'

export interface Facts {
  readonly config: Config
  /** kprobe's iptables mode wrote rules on this node. */
  readonly wroteIptables: boolean
}

/** Reads and judges kernel settings that Services depend on. Changes nothing. */
export async function settingFindings(
  { config, wroteIptables }: Facts,
  read: ReadText,
): Promise<readonly Finding[]> {
  const found = await Promise.all([
    forwarding(read, 'net/ipv4/ip_forward', 'IPv4'),
    forwarding(read, 'net/ipv6/conf/all/forwarding', 'IPv6'),
    bridged(read),
    localnet(wroteIptables, read),
    tableRoom(read),
    memoryScore(config, read),
  ])
  return found.filter(finding => finding !== undefined)
}

type Looked = Promise<Finding | undefined>

async function forwarding(read: ReadText, name: string, family: string): Looked {
  const value = await read(`/proc/sys/${name}`)
  if (value === undefined)
    return { kind: 'note', subject: name, text: `absent: this kernel has no ${family}` }
  if (value === '1') return { kind: 'ok', subject: name, text: `${family} packets are forwarded` }
  return { kind: 'warning', subject: name, text: `${value}: ${family} packets of pods are not forwarded` }
}

/** With value 0, packets between pods of one bridge bypass netfilter. */
async function bridged(read: ReadText): Looked {
  const name = 'net/bridge/bridge-nf-call-iptables'
  const value = await read(`/proc/sys/${name}`)
  if (value === undefined) return undefined
  if (value === '1') return { kind: 'ok', subject: name, text: 'bridged packets pass netfilter' }
  const text = `${value}: replies between pods of one bridge are not translated back`
  return { kind: 'warning', subject: name, text }
}

/** Checks for CVE-2020-8558. */
async function localnet(wroteIptables: boolean, read: ReadText): Looked {
  const name = 'net/ipv4/conf/all/route_localnet'
  if ((await read(`/proc/sys/${name}`)) !== '1') return undefined
  if (wroteIptables)
    return { kind: 'note', subject: name, text: "1: for node ports at 127.0.0.1 in kprobe's iptables mode" }
  const text =
    '1: other machines of the network may reach programs bound to 127.0.0.1; kprobe does not need it'
  return { kind: 'warning', subject: name, text }
}

const ALMOST_FULL = 0.8

async function tableRoom(read: ReadText): Looked {
  const name = 'net/netfilter/nf_conntrack_max'
  const max = Number(await read(`/proc/sys/${name}`))
  const now = Number(await read('/proc/sys/net/netfilter/nf_conntrack_count'))
  if (Number.isNaN(max) || Number.isNaN(now))
    return { kind: 'note', subject: name, text: 'absent: nf_conntrack is not loaded' }
  const text = `${now} of ${max} connections tracked`
  return { kind: now > max * ALMOST_FULL ? 'warning' : 'ok', subject: name, text }
}

async function memoryScore({ oomScoreAdj }: Config, read: ReadText): Looked {
  const value = await read('/proc/self/oom_score_adj')
  if (value === undefined || Number(value) <= oomScoreAdj) return undefined
  const text = `${value} now; the daemon sets ${oomScoreAdj}, which needs CAP_SYS_RESOURCE`
  return { kind: 'note', subject: 'oom_score_adj', text }
}

/** Compares the configured conntrack timeouts with those of the kernel. */
export async function conntrackFindings(
  { conntrack }: Config,
  read: (path: string) => Promise<string | undefined>,
): Promise<readonly Finding[]> {
  const wanted = conntrackSysctls({ ...conntrack, maxPerCore: 0 }, 1)
  const values = new Map<string, number | undefined>()
  for (const { name, path } of [SYSCTLS.tcpEstablished, ...wanted.map(({ sysctl }) => sysctl)]) {
    const text = await read(`/${path}`)
    values.set(name, text === undefined ? undefined : Number(text))
  }
  if (values.get(SYSCTLS.tcpEstablished.name) === undefined) return []
  const { writes, left } = planSysctls(wanted, values)
  return [
    ...writes.map(({ name, value, before }): Finding => {
      const text = `${before} now; kprobe changes it to ${value} when it starts`
      return { kind: 'note', subject: name, text }
    }),
    ...left
      .filter(({ reason }) => reason === 'larger')
      .map(({ name, value, wanted }): Finding => {
        const text = `${value} stays, although ${wanted} is configured; --conntrack-lower lowers it`
        return { kind: 'note', subject: name, text }
      }),
  ]
}
