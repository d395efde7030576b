import { nsToMs, parseGoDuration, TIMER_MS_MAX } from '../base/duration.ts'
import type { IpvsConfig } from './config.ts'
import { whyNotValue } from './field-value.ts'
import { type FlagSpec, grouped } from './flag.ts'
import { type FlagReader, quote } from './flag-reader.ts'

/** Options of IPVS mode that kube-proxy does not have. Only flags set them, also with --config. */
export type IpvsFlags = Pick<IpvsConfig, 'rules' | 'drainTimeoutMs' | 'digestPeriodMs'>

const GROUP = 'IPVS mode'

/** Flags of kube-proxy for the pace of syncs. */
export const IPVS_PACE_FLAGS: readonly FlagSpec[] = grouped(GROUP, [
  {
    name: 'ipvs-sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '30s',
    help: 'maximum interval between full resyncs',
  },
  {
    name: 'ipvs-min-sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '20ms',
    help: 'minimum time between two commits; 0 means the default',
  },
])

/** Flags of kube-proxy, which are checked in every mode, but have no effect in other modes, as in kube-proxy. */
export const IPVS_FLAGS: readonly FlagSpec[] = grouped(GROUP, [
  {
    name: 'ipvs-scheduler',
    kind: 'text',
    placeholder: 'NAME',
    default: '',
    help: 'default IPVS scheduler; the annotation kprobe.io/ipvs-scheduler of a Service overrides it. Any scheduler of the kernel (rr, wrr, lc, wlc, lblc, lblcr, dh, sh, mh, sed, nq, fo, ovf); empty: rr',
  },
  {
    name: 'ipvs-exclude-cidrs',
    kind: 'list',
    placeholder: 'CIDR,...',
    default: '',
    help: 'never change virtual servers in these ranges',
  },
  {
    name: 'ipvs-strict-arp',
    kind: 'bool',
    default: 'false',
    help: 'answer ARP for an address only on the interface that has it (arp_ignore=1, arp_announce=2)',
  },
  {
    name: 'ipvs-tcp-timeout',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '0s',
    help: "IPVS timeout of idle TCP connections; 0 keeps the kernel's value",
  },
  {
    name: 'ipvs-tcpfin-timeout',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '0s',
    help: "IPVS timeout of TCP connections after a FIN; 0 keeps the kernel's value",
  },
  {
    name: 'ipvs-udp-timeout',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '0s',
    help: "IPVS timeout of UDP flows; 0 keeps the kernel's value",
  },
])

export const OWN_IPVS_FLAGS: readonly FlagSpec[] = grouped(GROUP, [
  {
    name: 'ipvs-rules',
    kind: 'text',
    placeholder: 'RULES',
    default: 'nftables',
    help: "what filters and masquerades before IPVS balances: nftables (kprobe's own table), or iptables (kube-proxy's chains of IPVS mode, and a smaller table of kprobe's)",
  },
  {
    name: 'ipvs-drain-timeout',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '15m',
    help: 'how long a removed endpoint keeps its TCP and SCTP connections; 0 ends them at once',
  },
  {
    name: 'ipvs-digest-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '1s',
    help: 'how often IPVS and ipsets are checked for changes by others',
  },
])

const DEFAULT_IPVS_FLAGS: IpvsFlags = {
  rules: 'nftables',
  drainTimeoutMs: 900_000,
  digestPeriodMs: 1_000,
}

export function readIpvsFlags(reader: FlagReader): IpvsFlags {
  const drainTimeoutMs = durationMs(reader, 'ipvs-drain-timeout') ?? DEFAULT_IPVS_FLAGS.drainTimeoutMs
  const digestPeriodMs = durationMs(reader, 'ipvs-digest-period') ?? DEFAULT_IPVS_FLAGS.digestPeriodMs
  if (drainTimeoutMs < 0) reader.fail('--ipvs-drain-timeout', 'cannot be negative')
  if (digestPeriodMs <= 0) reader.fail('--ipvs-digest-period', 'must be longer than 0')
  return { rules: readRules(reader), drainTimeoutMs, digestPeriodMs }
}

function readRules(reader: FlagReader): IpvsFlags['rules'] {
  const text = reader.text('ipvs-rules') ?? 'nftables'
  if (text === 'iptables') return text
  if (text !== 'nftables') reader.fail('--ipvs-rules', `${quote(text)} is not one of nftables, iptables`)
  return 'nftables'
}

/** Reads a duration; undefined if it is unset or invalid. */
function durationMs(reader: FlagReader, flag: string): number | undefined {
  const text = reader.text(flag)
  if (text === undefined) return undefined
  const ns = parseGoDuration(text)
  if (ns === undefined) reader.fail(`--${flag}`, whyNotValue('duration', text))
  return ns === undefined ? undefined : Math.min(nsToMs(ns), TIMER_MS_MAX)
}
