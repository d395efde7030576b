import { readFile } from 'node:fs/promises'
import { systemClock } from '../base/clock.ts'
import { failureText } from '../base/failure-text.ts'
import { count } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { HELP_FLAG, MODEL_FLAGS, outputFlag, WITHOUT_EFFECT } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { KERNEL, openNetfilter } from '../daemon/open.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import { probe } from '../kernel/nft/probe.ts'
import { surveyChains } from '../kernel/nft/survey.ts'
import type { Finding } from '../modes/common/finding.ts'
import { lookElsewhere } from '../modes/foreign/leftovers.ts'
import { ipvsTexts } from '../modes/foreign/leftovers-text.ts'
import { neighborsOf } from '../modes/foreign/neighbors.ts'
import { DEFAULT_MODE, findMode, MODES } from '../modes/registry.ts'
import { Connection } from '../netlink/connection.ts'
import { anyMode } from './any-mode.ts'
import { conntrackFindings, settingFindings } from './doctor-settings.ts'
import { type Command, EXIT_DIFFERENT, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { writeDocument } from './output.ts'
import { processesNamed } from './processes.ts'
import { damageFindings } from './programmed.ts'
import { readRequest } from './read-request.ts'
import { tableText } from './table.ts'

const OUTPUTS = ['text', 'json', 'yaml'] as const

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe doctor [flags]',
      description:
        'Checks every kernel feature that the mode of --proxy-mode needs, lists what other modes would lack, lists other\n' +
        'programs that change the same packets, and traces packets through the rules in the kernel. Changes nothing. Exits 0\n' +
        'when kprobe can serve here, 1 when it cannot, and 3 when these rules are damaged.',
      details: [WITHOUT_EFFECT],
      flags: [...MODEL_FLAGS, outputFlag(OUTPUTS), HELP_FLAG],
    }),
  run,
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const request = await readRequest(argv, io, { command: 'doctor', extra: [outputFlag(OUTPUTS)] })
  if (typeof request === 'number') return request
  const { config, extra } = request
  const output = extra.oneOf('output', OUTPUTS, 'text')
  const findings = await examine(config)
  if (output === 'text') printText(findings, io)
  else await writeDocument({ kernel: await kernelRelease(), findings }, output, io)
  const has = (kind: Finding['kind']) => findings.some(each => each.kind === kind)
  if (has('missing')) return EXIT_FAILED
  return has('damaged') ? EXIT_DIFFERENT : EXIT_FINE
}

async function examine(config: Config): Promise<readonly Finding[]> {
  const settings = async (wroteIptables: boolean) => [
    ...(await settingFindings({ config, wroteIptables }, readText)),
    ...(await conntrackFindings(config, readText)),
  ]
  try {
    const wroteIptables = await anyMode(mode => mode.isRecorded?.(HERE))
    const ofModes = [...(await featureFindings(config)), ...(await modeFindings(config))]
    const others = [...(await damageFindings(config)), ...(await neighborFindings(config, wroteIptables))]
    // The finding of a mode replaces the general one for the same setting.
    const judged = new Set(ofModes.map(({ subject }) => subject))
    const rest = (await settings(wroteIptables)).filter(({ subject }) => !judged.has(subject))
    return [...ofModes, ...others, ...rest]
  } catch (error) {
    const text = `cannot be queried: ${failureText(error)}`
    return [{ kind: 'missing', subject: 'nf_tables over netlink', text }, ...(await settings(false))]
  }
}

async function featureFindings({ proxyMode }: Config): Promise<readonly Finding[]> {
  const client = createNftClient({ transport: openNetfilter(), clock: systemClock })
  const findings: Finding[] = []
  try {
    for (const { kind, name, meaning, transaction } of MODES.flatMap(mode => mode.features?.() ?? [])) {
      const { works, reason } = await probe(client, transaction)
      findings.push({
        kind: works ? 'ok' : findMode(proxyMode).needsFeature(kind) ? 'missing' : 'note',
        subject: name,
        text: works ? meaning : `${meaning}: ${reason}`,
      })
    }
  } finally {
    await client.close()
  }
  return findings
}

async function modeFindings(config: Config): Promise<readonly Finding[]> {
  const found: Finding[] = []
  for (const mode of MODES) found.push(...((await mode.examine?.(config, { ...HERE, read: readText })) ?? []))
  return found
}

const HERE = { sockets: KERNEL, clock: systemClock } as const

async function neighborFindings(config: Config, wroteIptables: boolean): Promise<readonly Finding[]> {
  const transport = openNetfilter()
  try {
    const connection = new Connection({ transport, clock: systemClock })
    const chains = await surveyChains(connection)
    const elsewhere = await lookElsewhere(connection, readLines)
    const proxy = config.serviceProxyName
    const tableName = findMode(DEFAULT_MODE).tableName(proxy) ?? ''
    const ofOtherModes = MODES.filter(({ name }) => name !== DEFAULT_MODE).map(mode =>
      mode.tableName(undefined),
    )
    const others = chains.filter(({ table }) => !ofOtherModes.includes(table))
    // IPVS objects belong to kprobe where kprobe's own table for IPVS exists.
    const isOurs = await anyMode(mode => mode.ownsElsewhere?.(HERE))
    const isNamed = proxy !== undefined
    const left = isOurs || isNamed ? { ...elsewhere, virtualServers: [] } : elsewhere
    const leftElsewhere = isOurs || isNamed ? [] : ipvsTexts(elsewhere)
    const neighbors = neighborsOf({
      ...left,
      chains: others,
      tableName,
      leftElsewhere,
      writesIptables: findMode(config.proxyMode).exclusive?.(config) !== undefined,
      wroteIptables,
      proxy,
    })
    const told = neighbors.map(
      ({ severity, what, advice }): Finding => ({ kind: severity, subject: what, text: advice }),
    )
    return [...(isNamed ? [] : await kubeProxyFindings()), ...told]
  } finally {
    await transport.close()
  }
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

/** Reads the non-empty lines of a file of /proc; none if it does not exist. */
export async function readLines(path: string): Promise<readonly string[]> {
  return (await readText(path))?.split('\n').filter(line => line !== '') ?? []
}

/** Reads a file; undefined if it does not exist or is not readable. Settings of an absent module are absent. */
async function readText(path: string): Promise<string | undefined> {
  try {
    return (await readFile(path, 'utf8')).trim()
  } catch (error) {
    const isAbsent = error instanceof Error && 'code' in error
    if (!isAbsent) throw error
    return undefined
  }
}

const MARKS: Readonly<Record<Finding['kind'], string>> = {
  ok: 'ok',
  missing: 'MISSING',
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
  const damage = of('damaged') === 0 ? '' : "kprobe's rules in the kernel are damaged; apart from that, "
  io.out(`${damage}${verdict}; ${count(of('warning'), 'warning')}\n`)
}
