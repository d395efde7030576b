import { buildInfo, versionText } from '../base/build-info.ts'
import { type Clock, systemClock } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { failureText } from '../base/errors.ts'
import { FollowedText } from '../base/followed-text.ts'
import { type AdjustableLog, openLog } from '../base/log.ts'
import { bytesText, count, oneLine } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { fieldChanges } from '../config/config-changes.ts'
import { readConfigFile, readFollowed } from '../config/config-document.ts'
import type { ConfigError } from '../config/flag.ts'
import { HELP_FLAG, RUN_FLAGS } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { type LoadOptions, loadConfig, parseRequest, type RunRequest } from '../config/load-config.ts'
import type { Settings } from '../config/settings.ts'
import { publishedConfig, writtenConfig } from '../config/written-config.ts'
import { totalsOf } from '../daemon/banner.ts'
import { runDaemon } from '../daemon/daemon.ts'
import { engine } from '../daemon/engine.ts'
import type { DaemonIo, Sync, Written } from '../daemon/io.ts'
import { systemLock } from '../daemon/network-lock.ts'
import { KERNEL, openClient, openNetfilter, openSockDiag } from '../daemon/open.ts'
import type { OptionalParts } from '../daemon/optional-parts.ts'
import { setOomScoreAdj } from '../daemon/process-room.ts'
import { tuneKernel, tuneMode, writeRecord } from '../daemon/tune.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { Service } from '../model/service.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, type Io, planLines, writeWholeFile } from './io.ts'
import { holderOfPort, processesNamed } from './processes.ts'
import { usageErrors } from './request.ts'
import { nodePortText, serviceRows, serviceTable } from './service-rows.ts'

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe run [flags]',
      description:
        'Programs the Services of the cluster into the kernel of this node, until SIGTERM or Ctrl-C. The rules stay in the\n' +
        'kernel when kprobe ends; `kprobe cleanup` removes them. Takes the flags and the --config file of kube-proxy.',
      flags: [...RUN_FLAGS, HELP_FLAG],
    }),
  run,
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const options: LoadOptions = { hostName: io.hostName, env: process.env, readFile: readConfigFile }
  const parsed = await loadConfig(argv, options)
  if (parsed.kind === 'errors') return usageErrors(io, 'run', parsed.errors)
  const request = parsed.value
  switch (request.action) {
    case 'version':
      io.out(versionText(request.rawVersion))
      return EXIT_FINE
    case 'write-config':
      return await writeConfig(request, io)
    case 'cleanup':
      return await (await import('./cleanup.ts')).command.run(cleanupArguments(request.config), io)
    case 'init':
      return await (await import('./init.ts')).command.run(argv, io)
    case 'run':
      return await serve(request, { argv, options, io })
  }
}

function cleanupArguments({ proxyMode, serviceProxyName: name }: Config): readonly string[] {
  return [`--proxy-mode=${proxyMode}`, ...(name === undefined ? [] : [`--service-proxy-name=${name}`])]
}

async function writeConfig({ settings, writeConfigTo }: RunRequest, io: Io): Promise<number> {
  try {
    await writeWholeFile(writeConfigTo, writtenConfig(settings))
    io.err(`wrote the configuration to ${oneLine(writeConfigTo)}\n`)
    return EXIT_FINE
  } catch (error) {
    io.err(`kprobe run: --write-config-to ${oneLine(writeConfigTo)}: ${failureText(error)}\n`)
    return EXIT_FAILED
  }
}

interface Invocation {
  readonly argv: readonly string[]
  readonly options: LoadOptions
  readonly io: Io
}

async function serve(request: RunRequest, invocation: Invocation): Promise<number> {
  const { io } = invocation
  const { config, warnings } = request
  const dryRun = config.backend === 'dry-run'
  const logging = openLog({ format: config.logFormat, verbosity: config.verbosity })
  const { log } = logging
  for (const warning of warnings) log.warn(warning)
  const { settings, configFile } = request
  if (configFile !== undefined && settings.origin('mode') === undefined)
    log.warn({ config: configFile.path }, EMPTY_MODE)
  // In a pod, the log carries the important facts, and text for people would only repeat them.
  const isForPeople = config.logFormat === 'text' && (io.terminal || config.verbosity > 0 || dryRun)
  const outLost = () =>
    log.warn({ err: io.outLost.reason }, 'cannot write to standard output; the daemon continues without it')
  io.outLost.addEventListener('abort', outLost, { once: true })
  // The daemon handles these signals only while it serves. Before and after, they must not kill it and leave its
  // socket.
  if (!config.once) for (const signal of ['SIGHUP', 'SIGUSR2'] as const) io.on(signal, () => undefined)
  return await runDaemon(config, {
    ...surroundings(logging, systemClock, io.parts),
    origins: originsOf(settings),
    flags: request.extra.effective(RUN_FLAGS),
    ...following(request, { ...invocation, logging }),
    asked: logState => io.on('SIGUSR2', logState),
    signal: io.signal,
    processId: io.processId,
    synced: sync => {
      if (!isForPeople) return
      const text = syncText(sync, { color: io.color, dryRun, serviceProxyName: config.serviceProxyName })
      // A stalled reader of standard output fills 1 MiB; further output is skipped.
      if (text !== '' && io.outBacklogBytes() < 1 << 20) io.out(text)
    },
    planned: plan => {
      for (const text of planLines(plan.describe())) {
        if (config.logFormat === 'text') io.out(text)
        else for (const line of text.trimEnd().split('\n')) log.info({ plan: line }, 'plan')
      }
    },
  })
}

const EMPTY_MODE =
  "mode is empty: kprobe uses nftables where kube-proxy uses iptables; node ports answer on the Node's primary addresses alone, and not on 127.0.0.1; set mode: iptables to keep kube-proxy's"

function originsOf(settings: Settings): DaemonIo['origins'] {
  return {
    mode: settings.origin('mode') ?? 'default',
    nodeName: settings.origin('hostnameOverride') ?? 'hostname',
  }
}

type Surroundings = Omit<
  DaemonIo,
  'asked' | 'origins' | 'signal' | 'processId' | 'synced' | 'planned' | 'configz' | 'flags' | 'followConfig'
>

function surroundings({ log, set }: AdjustableLog, clock: Clock, parts: OptionalParts): Surroundings {
  return {
    log,
    clock,
    wallMs: Date.now,
    random: Math.random,
    build: buildInfo(),
    openTransport: openNetfilter,
    openConntrack: openNetfilter,
    openSockDiag,
    readSetting: KERNEL.setting,
    room: KERNEL.room,
    openClient: (config, dials) =>
      openClient(config, { clock, env: process.env, warn: text => log.warn(text), dials, parts }),
    takeLock: systemLock(clock, Math.random),
    processesNamed,
    holderOf: holderOfPort,
    parts,
    listens: true,
    engine: engine({ clock, log }),
    setOomScoreAdj: value => setOomScoreAdj(value, log),
    setLogging: ({ logFormat, verbosity }) => set({ format: logFormat, verbosity }),
    tune: async config => {
      const { written, failed } = await (config.once ? tuneMode(config) : tuneKernel(config))
      for (const { name, value, before } of written)
        log.info({ name, from: before, to: value }, 'changed sysctl')
      for (const { name, value, error } of failed)
        log.warn({ name, value, err: error }, 'cannot change sysctl; run `kprobe init` with more privileges')
      await writeRecord(config, written, { clock, sockets: KERNEL }).catch((err: unknown) =>
        log.warn(
          { err },
          `cannot record that ${config.proxyMode} mode runs here; \`kprobe cleanup\` needs --proxy-mode`,
        ),
      )
    },
  }
}

/** Gives the configuration in use, and the file that may change it. */
function following(
  request: RunRequest,
  { argv, options, io, logging }: Invocation & { readonly logging: AdjustableLog },
): Pick<DaemonIo, 'configz' | 'followConfig'> {
  const { log } = logging
  let { settings } = request
  const configz = () => publishedConfig(settings)
  const { configFile } = request
  if (request.config.once) return { configz }
  if (configFile === undefined)
    return {
      configz,
      followConfig() {
        const off = io.on('SIGHUP', () => log.info('SIGHUP ignored: there is no --config file to read again'))
        return () => Promise.resolve(off())
      },
    }
  return {
    configz,
    followConfig({ changed, refused }) {
      const { path, text } = configFile
      const watch = new FollowedText<readonly ConfigError[]>({
        clock: systemClock,
        // The file is small: reading it costs less than watching all links that lead to it.
        pollMs: 500,
        text,
        read: () => readFollowed(path),
        async use(now) {
          const parsed = parseRequest(argv, options, { path, text: now })
          if (parsed.kind === 'errors') return parsed.errors
          const next = parsed.value
          for (const warning of next.warnings) log.warn(warning)
          const fields = fieldChanges(settings, next.settings)
          settings = next.settings
          await changed(next.config, fields)
          return undefined
        },
        failed: errors => {
          for (const { path, message } of errors)
            log.error(
              { path },
              `invalid configuration file: ${message}; the last valid configuration stays in use`,
            )
          refused()
        },
        recovered: () => log.info('configuration file is valid again'),
        unchanged: () => log.info('configuration unchanged'),
      })
      const off = io.on('SIGHUP', () => {
        log.info({ config: path }, 'SIGHUP: reading the configuration file again')
        watch.hurry()
      })
      return async () => {
        off()
        await watch.stop()
      }
    },
  }
}

/** Services that the table at the start lists; `kprobe dump` prints all. */
const SERVICES_SHOWN = 200
const NAMES_SHOWN = 10

interface SyncTextOptions {
  readonly color: boolean
  readonly dryRun: boolean
  readonly serviceProxyName?: string | undefined
}

/**
 * Formats the output of `run` after a sync: a table after the first, a line after a change, nothing without a change.
 */
export function syncText(sync: Sync, options: SyncTextOptions): string {
  const { table, quarantined, previous, written } = sync
  if (previous !== undefined) return changeText(previous, table, written)
  const shown = firstKeys(table)
  const hidden = table.services.size - shown.length
  return [
    serviceTable(serviceRows(table, shown), options),
    hidden > 0 ? `... and ${count(hidden, 'more Service')}; \`kprobe dump\` prints them all\n` : '',
    idleText(sync, options.serviceProxyName),
    nodePortLine(table),
    `${options.dryRun ? 'would program' : 'programmed'} ${totalsText(sync)}: ${writtenText(written)}\n`,
    quarantined.length === 0
      ? ''
      : `rejected by the kernel: ${namesText(quarantined)}; the log has the error\n`,
  ].join('')
}

/** Selects Services to print: sorted by name if all are printed, else any. */
function firstKeys(table: FrontendTable): string[] {
  const keys: string[] = []
  for (const key of table.services.keys()) {
    if (keys.length === SERVICES_SHOWN) break
    keys.push(key)
  }
  return keys.sort()
}

function changeText(previous: FrontendTable, table: FrontendTable, written: Written): string {
  const keys = [...PersistentMap.changes(previous.services, table.services)]
  if (keys.length === 0 && written.commits === 0) return ''
  if (keys.length === 0) return `updated: ${writtenText(written)}\n`
  return `changed ${namesText(keys)}: ${writtenText(written)}\n`
}

function namesText(keys: readonly string[]): string {
  const names = keys.toSorted().slice(0, NAMES_SHOWN).map(oneLine).join(', ')
  return keys.length > NAMES_SHOWN ? `${names} and ${keys.length - NAMES_SHOWN} more` : names
}

function writtenText({ commits, changes, bytes, durationMs }: Written): string {
  if (commits === 0) return 'the kernel already holds everything'
  const size =
    bytes === 0 ? '' : `, ${bytesText(bytes)} in ${count(commits, 'commit')}, ${durationMs.toFixed(1)} ms`
  return `${count(changes, 'kernel object')}${size}`
}

function totalsText({ table, quarantined }: Sync): string {
  const { services, frontends, endpoints } = totalsOf(table, quarantined)
  return [count(services, 'Service'), count(frontends, 'frontend'), count(endpoints, 'endpoint')].join(', ')
}

/** Lists Services that need nothing on this node, with the reason, because the table does not contain them. */
function idleText({ snapshot, table }: Sync, proxyName: string | undefined): string {
  const idle: string[] = []
  let more = 0
  for (const service of snapshot.services.values()) {
    if ((table.services.get(service.key)?.ports.length ?? 0) > 0) continue
    if (idle.length < NAMES_SHOWN) idle.push(`${service.key} (${whyIdle(service, proxyName)})`)
    else more++
  }
  if (idle.length === 0) return ''
  return `nothing to program for ${idle.sort().map(oneLine).join(', ')}${more > 0 ? ` and ${more} more` : ''}\n`
}

function whyIdle(
  { type, proxyName, clusterIps, headless, refusals }: Service,
  own: string | undefined,
): string {
  if (type === 'ExternalName') return 'ExternalName'
  if (proxyName !== own)
    return proxyName === undefined
      ? 'left to the unnamed proxy'
      : `left to the proxy ${JSON.stringify(proxyName)}`
  if (headless === 'whole') return 'headless without ports, and this proxy translates ports'
  const refused = refusals.find(({ field }) => /^spec\.(clusterIP|ports)/.test(field))
  if (refused !== undefined)
    return `${refused.field} ${refused.value} is ${refused.reason.replace(/;.*/s, '')}`
  return clusterIps.length === 0 ? 'headless' : 'no usable port or address'
}

function nodePortLine(table: FrontendTable): string {
  const text = nodePortText(table)
  return `NodePorts answer on: ${text === '' ? 'no address of this node' : text}\n`
}
