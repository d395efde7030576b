import { stat } from 'node:fs/promises'
import { failureText } from '../../base/errors.ts'
import { count, rfc3339 } from '../../base/text.ts'
import { OUTPUTS, outputFlag, writeDocument } from '../../cli/document.ts'
import { EXIT_DIFFERENT, EXIT_FAILED, EXIT_FINE, type Io, readText, tableText } from '../../cli/io.ts'
import { processesNamed, processesOf, readLines } from '../../cli/processes.ts'
import { flaggedCommand } from '../../cli/request.ts'
import type { Config } from '../../config/config.ts'
import { flag } from '../../config/flag.ts'
import { MODEL_FLAGS, WITHOUT_EFFECT } from '../../config/flags.ts'
import { DEFAULT_MODE } from '../../config/modes.ts'
import { defaultAdminSocket } from '../../config/own-flags.ts'
import { instanceOf } from '../../daemon/instance-lock.ts'
import { isLockHeld } from '../../daemon/network-lock.ts'
import { HERE, withNetfilter } from '../../daemon/open.ts'
import { conntrackSysctls } from '../../daemon/tune.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import { surveyChains } from '../../kernel/nft/survey.ts'
import { planSysctls, SYSCTLS } from '../../kernel/sysctl/sysctls.ts'
import { LAYOUTS, NFT_FAMILIES } from '../../modes/common/tables.ts'
import { isTraceTable } from '../../modes/common/trace-table.ts'
import { ipvsTexts, lookElsewhere } from '../../modes/foreign/leftovers.ts'
import { neighborsOf } from '../../modes/foreign/neighbors.ts'
import { PROCESSES } from '../../modes/foreign/programs.ts'
import type { Finding, ReadText } from '../../modes/mode.ts'
import { anyMode, findMode, MODES } from '../../modes/registry.ts'
import { damageFindings, type RuleFindings } from '../programmed.ts'
import { surveyTables } from '../why/outcome.ts'
import { migrationText, readMigration } from './migration.ts'
import { lackingFamily, requirements } from './requirements.ts'

const FLAGS = [
  flag(
    '--migrate',
    "read the Services, with kube-proxy's own flags or --config, and list what changes for which of them when kprobe takes over; exits 3 when one may depend on a difference",
  ),
  outputFlag(OUTPUTS),
] as const

export const command = flaggedCommand({
  name: 'doctor',
  description:
    'Checks every kernel feature that the mode of --proxy-mode needs, lists what other modes would lack, lists other\n' +
    'programs that change the same packets, and traces packets through the rules in the kernel. Changes nothing. Exits 0\n' +
    'when kprobe can serve here, 1 when it cannot, and 3 when these rules are damaged, or no daemon follows changes.',
  details: [WITHOUT_EFFECT],
  listed: [...MODEL_FLAGS, ...FLAGS],
  flags: FLAGS,
  read: reader => ({
    output: reader.oneOf('output', OUTPUTS, 'text'),
    isMigration: reader.bool('migrate'),
  }),
  async run({ output, isMigration }, request, io) {
    const findings = await examine(request.config)
    const migration = isMigration ? await readMigration(request, io) : undefined
    if (output !== 'text')
      await writeDocument({ kernel: await kernelRelease(), findings, migration }, output, io)
    else {
      printText(findings, io)
      if (migration !== undefined) io.out(migrationText(migration, io))
    }
    const has = (kind: Finding['kind']) => findings.some(each => each.kind === kind)
    if (has('missing')) return EXIT_FAILED
    const differs = has('damaged') || has('stopped') || migration?.services.length
    return differs ? EXIT_DIFFERENT : EXIT_FINE
  },
})

async function examine(config: Config): Promise<readonly Finding[]> {
  const settings = async (wroteIptables: boolean) => [
    ...(await settingFindings({ config, wroteIptables }, readText)),
    ...(await conntrackFindings(config, readText)),
  ]
  try {
    const wroteIptables = await anyMode(mode => mode.isRecorded?.(HERE))
    const found = await requirements(config)
    const lacking = lackingFamily(found)
    const ofModes = found.map(each => warned(each, lacking))
    const families = NFT_FAMILIES.filter(family => family !== lacking)
    const others = [
      ...(await ruleFindings(config, { families, wroteIptables })),
      ...(await neighborFindings(config, wroteIptables)),
    ]
    // The finding of a mode replaces the general one for the same setting.
    const judged = new Set(ofModes.map(({ subject }) => subject))
    const rest = (await settings(wroteIptables)).filter(({ subject }) => !judged.has(subject))
    return [...ofModes, ...others, ...rest]
  } catch (error) {
    const text = `cannot be queried: ${failureText(error)}`
    return [{ kind: 'missing', subject: 'nf_tables over netlink', text }, ...(await settings(false))]
  }
}

/** Finds what concerns the traffic of Services alone: damage, other programs, and forwarding. */
export async function trafficFindings(config: Config): Promise<RuleFindings> {
  const wroteIptables = await anyMode(mode => mode.isRecorded?.(HERE))
  const { findings, modes } = await damageFindings(config, NFT_FAMILIES)
  const others = await neighborFindings(config, wroteIptables)
  return { findings: [...findings, ...others, ...(await forwardingFindings())], modes }
}

/** Finds settings of the kernel that keep packets from Services: a few files. */
export async function forwardingFindings(): Promise<readonly Finding[]> {
  const settings = await Promise.all([
    forwarding(readText, 'net/ipv4/ip_forward', 'IPv4'),
    forwarding(readText, 'net/ipv6/conf/all/forwarding', 'IPv6'),
    bridged(readText),
  ])
  return settings.filter(each => each !== undefined)
}

function warned(finding: Finding, lacking: NftFamily | undefined): Finding {
  if (finding.kind !== 'missing' || lacking === undefined) return finding
  const text = `${LAYOUTS[lacking].model} Services are not served: ${finding.text}`
  return { ...finding, kind: 'warning', text }
}

/** Judges kprobe's rules in the kernel: damage, and whether a daemon keeps them. */
async function ruleFindings(
  config: Config,
  { families, wroteIptables }: { readonly families: readonly NftFamily[]; readonly wroteIptables: boolean },
): Promise<readonly Finding[]> {
  const { findings, modes } = await damageFindings(config, families)
  const { serviceProxyName: proxy, adminSocket } = config
  // kube-proxy writes the same chains in iptables mode.
  const own = modes.filter(mode => findMode(mode).isRecorded === undefined || wroteIptables)
  if (own.length === 0 || (await isLockHeld(instanceOf(proxy).lock)) !== false) return findings
  const since = await stoppedSince(adminSocket || defaultAdminSocket(proxy))
  const text = `${since}; rules of ${own.join(' and ')} mode stay and no longer follow changes: start kprobe, or remove them with \`kprobe cleanup\``
  return [{ kind: 'stopped', subject: 'no kprobe daemon runs', text }, ...findings]
}

/** Says since when no daemon runs: one that is killed leaves its socket, and one that exits removes it from its folder. */
export async function stoppedSince(socket: string): Promise<string> {
  const timeOf = async (path: string) => (await stat(path).catch(() => undefined))?.mtimeMs
  const started = await timeOf(socket)
  if (started !== undefined) return `the last one started at ${rfc3339(started)} and was killed later`
  const folder = socket.slice(0, socket.lastIndexOf('/'))
  const ended = await timeOf(folder)
  return ended === undefined
    ? `since when is not known (${folder} does not exist)`
    : `since ${rfc3339(ended)}`
}

async function neighborFindings(config: Config, wroteIptables: boolean): Promise<readonly Finding[]> {
  return await withNetfilter(async connection => {
    const chains = await surveyChains(connection)
    const elsewhere = await lookElsewhere(connection, readLines)
    const proxy = config.serviceProxyName
    const tableName = findMode(DEFAULT_MODE).tableName(proxy) ?? ''
    const ofOtherModes = MODES.filter(({ name }) => name !== DEFAULT_MODE).map(mode =>
      mode.tableName(undefined),
    )
    const others = chains.filter(({ table }) => !ofOtherModes.includes(table) && !isTraceTable(table))
    // IPVS objects belong to kprobe where kprobe's own table for IPVS exists.
    const isOurs = await anyMode(mode => mode.ownsElsewhere?.(HERE))
    const isNamed = proxy !== undefined
    const left = isOurs || isNamed ? { ...elsewhere, virtualServers: [] } : elsewhere
    const leftElsewhere = isOurs || isNamed ? [] : ipvsTexts(elsewhere)
    const foreign = others.filter(({ table }) => table !== tableName)
    const neighbors = neighborsOf({
      ...left,
      chains: others,
      tables: await surveyTables(connection, foreign),
      tableName,
      leftElsewhere,
      writesIptables: findMode(config.proxyMode).exclusive?.(config) !== undefined,
      usesIpvs: findMode(config.proxyMode).device !== undefined,
      wroteIptables,
      proxy,
      devices: deviceNames(await readLines('/proc/net/dev')),
      processes: new Set((await processesOf(PROCESSES)).map(({ name }) => name)),
      masqueradeBit: config.masqueradeBit,
    })
    const told = neighbors.map(
      ({ severity, what, advice }): Finding => ({ kind: severity, subject: what, text: advice }),
    )
    return [...(isNamed ? [] : await kubeProxyFindings()), ...told]
  })
}

/** Gives the names of network devices from the lines of /proc/net/dev, whose first two are a heading. */
function deviceNames(lines: readonly string[]): readonly string[] {
  return lines.flatMap(line => /^\s*([^\s:]+):/.exec(line)?.[1] ?? [])
}

/** Warns of a running kube-proxy, which restores its rules when another program removes them. */
async function kubeProxyFindings(): Promise<readonly Finding[]> {
  const pids = await processesNamed('kube-proxy')
  if (pids.length === 0) return []
  return [
    {
      kind: 'warning',
      subject: `kube-proxy runs in this network namespace (pid ${pids.join(', ')})`,
      text: 'both proxies write rules for the same Services: stop kube-proxy before kprobe runs',
    },
  ]
}

async function kernelRelease(): Promise<string> {
  return (await readText('/proc/sys/kernel/osrelease')) ?? 'unknown'
}

const MARKS: Readonly<Record<Finding['kind'], string>> = {
  ok: 'ok',
  missing: 'MISSING',
  stopped: 'STOPPED',
  damaged: 'DAMAGED',
  warning: 'warning',
  note: 'note',
}

/** Names of settings fit into this width; descriptions of other programs' rules are longer. */
const WIDEST_SUBJECT = 48

function printText(findings: readonly Finding[], io: Io): void {
  const rows = findings.map(({ kind, subject, text }) => [MARKS[kind], subject, text])
  io.out(tableText(['', 'SUBJECT', 'MEANING'], rows, { color: io.color, widest: WIDEST_SUBJECT }))
  const of = (kind: Finding['kind']) => findings.filter(each => each.kind === kind).length
  const missing = of('missing')
  const verdict =
    missing === 0
      ? 'kprobe can serve here'
      : `kprobe cannot serve here: ${count(missing, 'requirement')} missing`
  const troubles = [
    ...(of('stopped') === 0 ? [] : ['no kprobe daemon runs, and its rules no longer follow changes']),
    ...(of('damaged') === 0 ? [] : ["kprobe's rules in the kernel are damaged"]),
  ]
  const rest = troubles.length === 0 ? verdict : `${troubles.join('; ')}; apart from that, ${verdict}`
  io.out(`${rest}; ${count(of('warning'), 'warning')}\n`)
}

interface Facts {
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
    selinux(read),
    apparmor(read),
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

/** The value 0 lets packets between pods of one bridge bypass netfilter. */
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

const LABEL = '/proc/self/attr/current'

async function selinux(read: ReadText): Looked {
  if ((await read('/sys/fs/selinux/enforce')) !== '1') return undefined
  const label = (await read(LABEL))?.replaceAll('\0', '') ?? 'unknown'
  const text = `enforced; this process has the label ${label}: the audit log names what the policy denies to it`
  return { kind: 'note', subject: 'SELinux', text }
}

/** Runtimes confine containers by a profile of their own, unless they are privileged. */
async function apparmor(read: ReadText): Looked {
  const profile = /^(.+) \(enforce\)/.exec((await read(LABEL)) ?? '')?.[1]
  if (profile === undefined) return undefined
  const text = `${profile} is enforced; profiles of runtimes deny writes to /proc/sys: run \`kprobe init\` in a privileged init container`
  return { kind: 'note', subject: 'AppArmor', text }
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
