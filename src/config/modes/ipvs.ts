import { nsToMs } from '../../base/duration.ts'
import { formatCidr } from '../../base/ip.ts'
import type { IpvsConfig } from '../config.ts'
import type { FieldPath, PathOf } from '../fields.ts'
import { type FlagReader, flagGroup, quote, readCidrs } from '../flag.ts'
import type { Settings } from '../settings.ts'
import type { ModeRow, ModeSettings } from './mode-row.ts'

const GROUP = 'IPVS mode'

const PACE_FLAGS = flagGroup(GROUP, {
  '--ipvs-sync-period DURATION = 30s': 'maximum interval between full resyncs',
  '--ipvs-min-sync-period DURATION = 20ms': 'minimum time between two commits; 0 means the default',
})

/** Flags of kube-proxy, which are checked in every mode, but have no effect in other modes, as in kube-proxy. */
const FLAGS = flagGroup(GROUP, {
  '--ipvs-scheduler NAME':
    'default IPVS scheduler; the annotation kprobe.io/ipvs-scheduler of a Service overrides it. Any scheduler of the kernel (rr, wrr, lc, wlc, lblc, lblcr, dh, sh, mh, sed, nq, fo, ovf); empty: rr',
  '--ipvs-exclude-cidrs CIDR,...': 'never change virtual servers in these ranges',
  '--ipvs-strict-arp':
    'answer ARP for an address only on the interface that has it (arp_ignore=1, arp_announce=2)',
  '--ipvs-tcp-timeout DURATION = 0s': "IPVS timeout of idle TCP connections; 0 keeps the kernel's value",
  '--ipvs-tcpfin-timeout DURATION = 0s':
    "IPVS timeout of TCP connections after a FIN; 0 keeps the kernel's value",
  '--ipvs-udp-timeout DURATION = 0s': "IPVS timeout of UDP flows; 0 keeps the kernel's value",
})

const OWN_FLAGS = flagGroup(GROUP, {
  '--ipvs-rules RULES = nftables':
    "rules that filter and masquerade before IPVS balances: nftables (kprobe's own table), or iptables (kube-proxy's chains of IPVS mode, and a smaller table of kprobe's)",
  '--ipvs-drain-timeout DURATION = 15m':
    'how long a removed endpoint keeps its TCP and SCTP connections; 0 ends them at once',
  '--ipvs-digest-period DURATION = 1s': 'how often IPVS and ipsets are checked for changes by others',
})

const SETTINGS: ModeSettings = {
  // As in kube-proxy's conversion from v1alpha1, this mode reads the settings of masquerading from the section `iptables`.
  masqueradeAll: 'iptables.masqueradeAll',
  masqueradeBit: 'iptables.masqueradeBit',
  minSyncPeriod: 'ipvs.minSyncPeriod',
  syncPeriod: 'ipvs.syncPeriod',
  // IPVS reports no changes: besides the digests, only a full resync finds them.
  defaultSyncPeriod: 30_000_000_000n,
  countsConnections: true,
  balances: true,
  flags: FLAGS,
  paceFlags: PACE_FLAGS,
  ownFlags: OWN_FLAGS,
  flagTexts: ({ ipvs }) => ({
    'ipvs-scheduler': ipvs.scheduler,
    'ipvs-exclude-cidrs': ipvs.excludeCidrs.map(formatCidr).join(),
    'ipvs-strict-arp': `${ipvs.strictArp}`,
    'ipvs-tcp-timeout': `${ipvs.tcpTimeoutS}s`,
    'ipvs-tcpfin-timeout': `${ipvs.tcpFinTimeoutS}s`,
    'ipvs-udp-timeout': `${ipvs.udpTimeoutS}s`,
    'ipvs-rules': ipvs.rules,
    'ipvs-drain-timeout': `${ipvs.drainTimeoutMs}ms`,
    'ipvs-digest-period': `${ipvs.digestPeriodMs}ms`,
  }),
}

/**
 * Reads the options of IPVS mode in every mode, because the removal of its leftovers needs them. As in kube-proxy, they
 * cause no error in another mode.
 */
export function readIpvsOptions(settings: Settings, reader: FlagReader): IpvsConfig {
  const fail: Fail = (path, message, index) => {
    if (settings.text('mode') === 'ipvs') settings.fail(path, message, index)
  }
  return {
    scheduler: readScheduler(settings, fail),
    excludeCidrs: readCidrs(settings.texts('ipvs.excludeCIDRs'), (index, message) =>
      fail('ipvs.excludeCIDRs', message, index),
    ),
    strictArp: settings.bool('ipvs.strictARP'),
    tcpTimeoutS: timeoutS(settings, 'ipvs.tcpTimeout'),
    tcpFinTimeoutS: timeoutS(settings, 'ipvs.tcpFinTimeout'),
    udpTimeoutS: timeoutS(settings, 'ipvs.udpTimeout'),
    rules: reader.oneOf('ipvs-rules', ['nftables', 'iptables'], 'nftables'),
    drainTimeoutMs: reader.durationMs('ipvs-drain-timeout', { fallbackMs: 900_000 }),
    digestPeriodMs: reader.durationMs('ipvs-digest-period', { minMs: 1, fallbackMs: 1_000 }),
  }
}

type Fail = (path: FieldPath, message: string, index?: number) => void

/** The scheduler that IPVS's own tools and kube-proxy default to. */
const DEFAULT_SCHEDULER = 'rr'
/** The kernel keeps at most 15 letters (IP_VS_SCHEDNAME_MAXLEN). */
const SCHEDULER = /^[a-z0-9_-]{1,15}$/

/** Reads the scheduler. The list of valid ones is known only to the kernel: modules may add some. */
function readScheduler(settings: Settings, fail: Fail): string {
  const name = settings.text('ipvs.scheduler')
  if (name === '') return DEFAULT_SCHEDULER
  if (!SCHEDULER.test(name))
    fail(
      'ipvs.scheduler',
      `${quote(name)} cannot be the name of a scheduler (at most 15 lower-case letters and digits)`,
    )
  return name
}

/**
 * Reads a timeout. A value below a second becomes one second, because zero would keep the kernel's value. The kernel
 * accepts INT_MAX / HZ seconds (ip_vs_set_timeout() with HZ 1000).
 */
function timeoutS(settings: Settings, path: PathOf<'duration'>): number {
  const ms = nsToMs(settings.duration(path))
  return ms <= 0 ? 0 : Math.min(2_147_483, Math.max(1, Math.floor(ms / 1_000)))
}

export const IPVS_TABLE = 'kube-proxy-ipvs'

export const IPVS: ModeRow = {
  name: 'ipvs',
  title: 'IPVS',
  settings: SETTINGS,
  fields: ['ipvs'],
  notNamed:
    'a network namespace has one list of virtual servers, and the unnamed proxy removes those that it does not know',
  tableName: proxy => (proxy === undefined ? IPVS_TABLE : undefined),
  isProvable: true,
}
