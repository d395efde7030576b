import { type Cidr, parseCidr, whyNotCidr } from '../base/cidr.ts'
import { familyOf } from '../base/ip.ts'
import type { Config, DetectLocal, NodePortSelection, ProxyMode, SourceConfig } from './config.ts'
import { type ConfigError, type FlagSpec, readArguments } from './flag.ts'
import { FlagReader, quote } from './flag-reader.ts'
import { RUN_FLAGS } from './flags.ts'
import { explainKubeProxyFlag } from './kube-proxy-flags.ts'

export type Parsed<T> =
  | { readonly kind: 'ok'; readonly value: T }
  | { readonly kind: 'errors'; readonly errors: readonly ConfigError[] }

export interface ParseOptions {
  /** What os.hostname() says. */
  readonly hostName: string
  /** Flags of the command besides those of a Config. */
  readonly extra?: readonly FlagSpec[]
}

/** A Config and the values of the command's own flags. */
export interface ParsedFlags {
  readonly config: Config
  readonly extra: FlagReader
}

/** Turns arguments into a frozen Config, or tells everything that is wrong with them. */
export function parseFlags(argv: readonly string[], options: ParseOptions): Parsed<ParsedFlags> {
  const given = readArguments(argv, [...RUN_FLAGS, ...(options.extra ?? [])], explainKubeProxyFlag)
  const reader = new FlagReader(given)
  for (const argument of given.positionals)
    reader.fail(quote(argument), 'no such argument; flags begin with --')
  const config = readConfig(reader, options.hostName)
  if (reader.errors.length > 0) return { kind: 'errors', errors: reader.errors }
  return { kind: 'ok', value: { config, extra: reader } }
}

/** kube-proxy's own. */
const DEFAULTS = {
  client: {
    kubeconfig: '',
    master: '',
    contentType: 'application/vnd.kubernetes.protobuf',
    acceptContentTypes: '',
    qps: 5,
    burst: 10,
  },
  bindAddress: undefined,
  healthzBindAddress: { ip: '\0\0\0\0', port: 10_256 },
  metricsBindAddress: { ip: '\x7f\0\0\x01', port: 10_249 },
  bindAddressHardFail: false,
  enableProfiling: false,
  oomScoreAdj: -999,
  conntrack: {
    maxPerCore: 32_768,
    min: 131_072,
    tcpEstablishedTimeoutMs: 86_400_000,
    tcpCloseWaitTimeoutMs: 3_600_000,
    tcpBeLiberal: false,
    udpTimeoutMs: undefined,
    udpStreamTimeoutMs: undefined,
    lower: false,
  },
  allowServiceExternalIps: true,
  adminSocket: '',
  connectionMetricsMax: 0,
} as const

function readConfig(reader: FlagReader, hostName: string): Config {
  const { minSyncPeriodMs, syncPeriodMs } = readPeriods(reader)
  return Object.freeze({
    proxyMode: readMode(reader),
    backend: reader.oneOf('backend', ['netlink', 'dry-run'], 'netlink'),
    source: readSource(reader),
    once: reader.bool('once'),
    nodeName: readNodeName(reader, hostName),
    serviceProxyName: reader.text('service-proxy-name') || undefined,
    detectLocal: readDetectLocal(reader),
    masqueradeAll: reader.bool('masquerade-all'),
    masqueradeBit: reader.integer('masquerade-bit', { min: 0, max: 31, fallback: 14 }),
    nodePortAddresses: readNodePortAddresses(reader),
    minSyncPeriodMs,
    syncPeriodMs,
    logFormat: reader.oneOf('logging-format', ['text', 'json'], 'text'),
    verbosity: reader.integer('v', { min: 0, max: 9, fallback: 0 }),
    allowedExternalCidrs: readCidrs(reader, 'allowed-external-cidrs'),
    allowedLoadBalancerCidrs: readCidrs(reader, 'allowed-load-balancer-cidrs'),
    ...DEFAULTS,
  })
}

function readMode(reader: FlagReader): ProxyMode {
  const text = reader.text('proxy-mode') ?? ''
  if (text === '' || text === 'nftables') return 'nftables'
  const known = ['iptables', 'ipvs', 'userspace'].includes(text)
  if (known) reader.fail('--proxy-mode', `the mode ${text} is not in this build; it has nftables`)
  else if (text === 'kernelspace')
    reader.fail('--proxy-mode', 'kernelspace is for Windows nodes; this build has nftables')
  else reader.fail('--proxy-mode', `${quote(text)} is not one of nftables`)
  return 'nftables'
}

function readSource(reader: FlagReader): SourceConfig {
  const text = reader.text('source')
  const path = text?.startsWith('file:') === true ? text.slice('file:'.length) : ''
  if (path !== '') return { kind: 'file', path }
  if (text === undefined || text === 'kube')
    reader.fail(
      '--source',
      'this build reads files only, and the default is kube (the API server): give --source=file:PATH, ' +
        'a YAML or JSON file or a folder of them',
    )
  else if (text === 'file:') reader.fail('--source', 'file: needs a path')
  else reader.fail('--source', `${quote(text)} is not file:PATH`)
  return { kind: 'kube' }
}

function readNodeName(reader: FlagReader, hostName: string): string {
  const name = (reader.text('hostname-override') || hostName).trim().toLowerCase()
  if (name === '')
    reader.fail('--hostname-override', 'this machine has no host name: give the name of its Node')
  return name
}

function readDetectLocal(reader: FlagReader): DetectLocal {
  const modes = ['ClusterCIDR', 'NodeCIDR', 'BridgeInterface', 'InterfaceNamePrefix'] as const
  const given = reader.text('detect-local-mode')
  const mode = given === '' ? 'ClusterCIDR' : reader.oneOf('detect-local-mode', modes, 'ClusterCIDR')
  if (mode === 'NodeCIDR') return { kind: mode }
  if (mode === 'BridgeInterface')
    return { kind: mode, name: readInterface(reader, 'pod-bridge-interface', mode) }
  if (mode === 'InterfaceNamePrefix')
    return { kind: mode, prefix: readInterface(reader, 'pod-interface-name-prefix', mode) }
  const cidrs = readCidrs(reader, 'cluster-cidr')
  const families = new Set(cidrs.map(({ ip }) => familyOf(ip)))
  if (cidrs.length > 2 || families.size < cidrs.length)
    reader.fail('--cluster-cidr', 'takes one range, or two of different families')
  return { kind: mode, cidrs }
}

/** IFNAMSIZ less the closing zero. */
const INTERFACE_NAME_MAX = 15

function readInterface(reader: FlagReader, flag: string, mode: string): string {
  const name = reader.text(flag) ?? ''
  if (name === '') reader.fail(`--${flag}`, `is needed by --detect-local-mode=${mode}`)
  else if (Buffer.byteLength(name) > INTERFACE_NAME_MAX || /[\s/]/.test(name))
    reader.fail(
      `--${flag}`,
      `${quote(name)} cannot be the name of an interface (at most 15 bytes, no blank, no slash)`,
    )
  return name
}

function readNodePortAddresses(reader: FlagReader): NodePortSelection {
  const items = reader.list('nodeport-addresses')
  if (items.length === 0) return { primary: true, cidrs: [] }
  const primary = items.includes('primary')
  if (primary && items.length > 1)
    reader.fail('--nodeport-addresses', 'the word primary cannot be combined with anything else')
  const ranges = items.filter(item => item !== 'primary')
  return { primary, cidrs: parseCidrs(reader, 'nodeport-addresses', ranges) }
}

function readPeriods(reader: FlagReader): { minSyncPeriodMs: number; syncPeriodMs: number } {
  const minSyncPeriodMs = readEither(reader, ['min-sync-period', 'iptables-min-sync-period'], 20)
  const syncPeriodMs = readEither(reader, ['sync-period', 'iptables-sync-period'], 600_000)
  if (minSyncPeriodMs < 0) reader.fail('--min-sync-period', 'cannot be negative')
  if (syncPeriodMs <= 0) reader.fail('--sync-period', 'must be longer than 0')
  else if (minSyncPeriodMs > syncPeriodMs)
    reader.fail('--min-sync-period', 'cannot be longer than --sync-period')
  return { minSyncPeriodMs, syncPeriodMs }
}

/** One setting that has two names: both may be given if they agree. */
function readEither(reader: FlagReader, names: readonly [string, string], fallbackMs: number): number {
  const [ours, theirs] = names
  if (!reader.given(theirs)) return reader.duration(ours, fallbackMs)
  const value = reader.duration(theirs, fallbackMs)
  if (reader.given(ours) && reader.duration(ours, value) !== value)
    reader.fail(`--${ours}`, `means the same as --${theirs} and differs from it`)
  return value
}

function readCidrs(reader: FlagReader, flag: string): Cidr[] {
  return parseCidrs(reader, flag, reader.list(flag))
}

function parseCidrs(reader: FlagReader, flag: string, texts: readonly string[]): Cidr[] {
  const cidrs: Cidr[] = []
  for (const [index, text] of texts.entries()) {
    const cidr = parseCidr(text)
    if (cidr !== undefined) cidrs.push(cidr)
    else reader.fail(`--${flag}[${index}]`, `${quote(text)} is ${whyNotCidr(text)}`)
  }
  return cidrs
}
