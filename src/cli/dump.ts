import { failureText } from '../base/errors.ts'
import { FlagReader, type FlagSpec, quote, readArguments } from '../config/flag.ts'
import { ADMIN_SOCKET_FLAG } from '../config/flag-tables.ts'
import { HELP_FLAG, outputFlag } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { INSTANCE_FLAG, readInstanceName, readSocketPath, whyNotInstance } from '../config/own-flags.ts'
import { HERE } from '../daemon/open.ts'
import { printRuleset, rulesetToJson } from '../kernel/nft/print.ts'
import type { NftFamily, Ruleset } from '../kernel/nft/state.ts'
import { isOfService, namesOfElements, type ServiceNames, type ServiceRow } from '../modes/common/show.ts'
import type { DumpFilter, KernelRead, Mode } from '../modes/mode.ts'
import { type ReadModes, readModes, readTables } from '../modes/read.ts'
import { DEFAULT_MODE, MODES } from '../modes/registry.ts'
import { askServiceNames } from './admin-client.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { runNft } from './libnftables.ts'
import { tableText, writeDocument, writeWarnings } from './output.ts'
import { damageText, type ProgrammedMode, programmedModes, remedyText, withRelays } from './programmed.ts'
import { usageErrors } from './request.ts'
import { serviceTable, sortedRows } from './service-rows.ts'

/** Object kinds that modes list, each with its mode. */
const DUMPS = MODES.flatMap(mode => (mode.dumps ?? []).map(dump => ({ mode, ...dump })))
const WHAT: readonly string[] = ['services', 'nft', ...DUMPS.map(({ what }) => what), 'all']
const OUTPUTS: readonly string[] = [
  'text',
  'wide',
  'json',
  'yaml',
  'nft',
  ...DUMPS.map(({ saveFormat }) => saveFormat),
]

/** Formats that fit only one kind of object. */
const OUTPUT_OF: ReadonlyMap<string, string> = new Map([
  ['nft', 'nft'],
  ...DUMPS.map(({ saveFormat, what }): [string, string] => [saveFormat, what]),
])

const FLAGS: readonly FlagSpec[] = [
  {
    name: 'service',
    kind: 'text',
    placeholder: 'NAMESPACE/NAME',
    help: 'only what serves this Service, with all its endpoints',
    namesService: true,
  },
  { name: 'family', kind: 'text', placeholder: 'FAMILY', help: 'only IPv4 or IPv6 (or ip, ip6)' },
  {
    ...ADMIN_SOCKET_FLAG,
    help: 'unix socket of the daemon, which knows which Service an IPVS object belongs to; unset: none',
  },
  INSTANCE_FLAG,
  outputFlag(OUTPUTS),
]

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe dump [services|nft|ipvs|ipset|iptables|all] [flags]',
      description:
        "Prints kprobe's objects in the kernel, read over netlink, and the Service that each object serves. Exits 1 when\n" +
        'packets do not reach a listed frontend, and when the kernel has nothing for the Service of --service.',
      details: [
        'What:',
        '  services   each address and port that is served, and its endpoints (default, except with -o nft); in userspace mode the listener of the daemon, because only the daemon knows the endpoints. -o wide lists every endpoint. For each row, dump follows a packet from outside and one from this node through these rules, and in userspace mode looks whether a process listens',
        "  nft        tables, chains, rules, sets and elements; with -o nft as `nft list ruleset` prints them when libnftables is on this machine, by kprobe's own printer otherwise",
        '  ipvs       virtual servers with their destinations (IPVS mode); with -o ipvsadm-save as `ipvsadm -S -n`',
        '  ipset      sets and entries (IPVS mode); with -o ipset-save as `ipset save`',
        '  iptables   rules of iptables mode and what leads to them, or of kube-proxy, whose chains are the same; with -o iptables-save the whole tables filter, nat and mangle as iptables-save prints them',
        '  all        everything',
        '',
        "IPVS objects have no names: the daemon at --admin-socket knows which Service each belongs to. Without it, only objects that kprobe's nf_tables elements mention have a name.",
      ],
      flags: [...FLAGS, HELP_FLAG],
    }),
  run,
}

interface Request {
  readonly what: string
  readonly output: string
  /** Empty for all Services. */
  readonly service: string
  readonly families: readonly NftFamily[]
  readonly adminSocket: string
  /** The requested proxy; undefined for the unnamed one. */
  readonly proxyName: string | undefined
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const given = readArguments(argv, FLAGS, () => undefined)
  const reader = new FlagReader(given)
  const request = readRequest(reader, given.positionals)
  if (reader.errors.length > 0) return usageErrors(io, 'dump', reader.errors)
  try {
    const names = await askServiceNames(request.adminSocket)
    const ask: KernelRead['names'] = isNeeded => daemonNames(request, names, isNeeded)
    const dump = DUMPS.find(({ what }) => what === request.what)
    if (dump !== undefined) return await dumpObjects(request, io, { dump, ask })
    return await dumpTables(request, io, ask)
  } catch (error) {
    io.err(`kprobe dump: ${failureText(error)}\n`)
    return EXIT_FAILED
  }
}

async function dumpTables(request: Request, io: Io, ask: KernelRead['names']): Promise<number> {
  const dump = await readKernel(request, ask)
  if (request.output === 'json' || request.output === 'yaml')
    await writeDocument(await documentOf(request, dump), request.output, io)
  else await writeText(request, dump, io)
  const missing = whatIsMissing(request, dump)
  const isUnnamed = request.what !== 'nft' && dump.names?.isComplete === false
  const damage = damageText(dump.modes)
  const warnings = [
    ...(missing === undefined ? [] : [missing]),
    ...(isUnnamed ? [UNNAMED] : []),
    ...(dump.modes.length < 2 ? [] : [modesText(dump.modes)]),
    ...(damage === undefined ? [] : [`DAMAGED: ${damage}; ${remedyText(dump.modes)}`]),
  ]
  await writeWarnings(warnings, io)
  return damage === undefined ? exitOf(request, missing) : EXIT_FAILED
}

/** A requested Service that the kernel does not hold is a failure; an empty kernel is not. */
function exitOf({ service }: Pick<Request, 'service'>, missing: string | undefined): number {
  return service !== '' && missing !== undefined ? EXIT_FAILED : EXIT_FINE
}

function modesText(modes: readonly ProgrammedMode[]): string {
  const names = modes.map(({ mode }) => mode).join(' and ')
  return (
    `warning: rules of ${names} mode are both in the kernel: a mode switch is going on, or one is a leftover; ` +
    'remove a leftover with `kprobe cleanup`, and `kprobe cleanup --proxy-mode=iptables` for iptables mode'
  )
}

interface Asked {
  readonly dump: (typeof DUMPS)[number]
  readonly ask: KernelRead['names']
}

async function dumpObjects(request: Request, io: Io, { dump, ask }: Asked): Promise<number> {
  const { output, families, proxyName: proxy } = request
  const { saveTables } = dump
  if (output === dump.saveFormat && saveTables !== undefined) {
    for (const text of await saveTables.print(HERE, families)) io.out(text)
    await writeWarnings(families.length > 1 ? [saveTables.note] : [], io)
    return EXIT_FINE
  }
  const names = dump.isNamed ? NO_NAMES : (ask(true) ?? (await namesInTables(request, dump.mode)))
  const found = await dump.read(HERE, { ...filterOf(request, names), proxy })
  if (output === 'json' || output === 'yaml') await writeDocument(found.value, output, io)
  else if (output === dump.saveFormat) writeLines(found.save, io)
  else io.out(tableText(found.heading, found.rows, io))
  const missing = found.isEmpty ? nothingText(request) : undefined
  const isUnnamed = output !== dump.saveFormat && found.hasUnnamed && !names.isComplete
  await writeWarnings([...(missing === undefined ? [] : [missing]), ...(isUnnamed ? [UNNAMED] : [])], io)
  return exitOf(request, missing)
}

const NO_NAMES = namesOfElements([])

async function namesInTables(request: Request, { tableName }: Mode): Promise<ServiceNames> {
  const tables = await readTables({ ...HERE, ...request })
  return namesOfElements(tables.filter(({ name }) => name === tableName(request.proxyName)))
}

const UNNAMED = 'some IPVS objects have no Service name here; --admin-socket reads the names from the daemon'

/** Gives the Service names. Throws if --service needs them and there is no daemon to read them from. */
function daemonNames(
  { service }: Request,
  names: ServiceNames | undefined,
  isNeeded: boolean,
): ServiceNames | undefined {
  if (names === undefined && service !== '' && isNeeded)
    throw new Error(
      '--service needs --admin-socket: only the daemon knows which Service an IPVS object belongs to',
    )
  return names
}

function filterOf({ families, service }: Request, names: ServiceNames): DumpFilter {
  return { families, service, names }
}

function readRequest(reader: FlagReader, positionals: readonly string[]): Request {
  const output = reader.oneOf('output', OUTPUTS, 'text')
  const only = OUTPUT_OF.get(output)
  const [first = only ?? 'services', ...rest] = positionals
  const what = WHAT.find(word => word === first)
  if (what === undefined) reader.fail(quote(first), `no such argument; there are ${WHAT.join(', ')}`)
  for (const argument of rest) reader.fail(quote(argument), 'no such argument')
  if (only !== undefined && what !== undefined && what !== only)
    reader.fail('--output', `${output} is for \`kprobe dump ${only}\``)
  const service = reader.text('service') ?? ''
  if (service !== '' && DUMPS.some(dump => dump.saveFormat === output && dump.saveTables !== undefined))
    reader.fail('--service', `${output} prints whole tables; -o text and -o json show one Service`)
  if (service !== '' && !/^[^/]+\/[^/]+$/.test(service))
    reader.fail('--service', `${quote(service)} is not written NAMESPACE/NAME`)
  const adminSocket = readSocketPath(reader)
  const proxyName = readInstanceName(reader)
  const unsupported = proxyName === undefined ? undefined : whyNotInstance(proxyName, DEFAULT_MODE)
  if (unsupported !== undefined) reader.fail('--service-proxy-name', unsupported)
  const mode = DUMPS.find(dump => dump.what === what)?.mode
  if (unsupported === undefined && proxyName !== undefined && mode?.notNamed !== undefined)
    reader.fail('--service-proxy-name', `a named proxy cannot use ${mode.title}`)
  return {
    what: what ?? 'services',
    output,
    service,
    families: readFamilies(reader),
    adminSocket,
    proxyName,
  }
}

function readFamilies(reader: FlagReader): readonly NftFamily[] {
  if ((reader.text('family') ?? '') === '') return ['ip', 'ip6']
  const family = reader.oneOf('family', ['IPv4', 'IPv6', 'ip', 'ip6', 'ipv4', 'ipv6'], 'ip')
  return [family.endsWith('6') ? 'ip6' : 'ip']
}

/** Kernel state of all modes that hold objects. */
interface Dump extends ReadModes {
  /** Names of objects that carry none; undefined if no mode holds such objects. */
  readonly names: ServiceNames | undefined
  /** Modes with their rows; empty for `dump nft`, which prints none. */
  readonly modes: readonly ProgrammedMode[]
}

async function readKernel(request: Request, ask: KernelRead['names']): Promise<Dump> {
  const read = await readModes({ ...HERE, ...request }, ask)
  const modes = request.what === 'nft' ? [] : programmedModes(withRelays(read.held), request.service)
  return { ...read, names: read.held.find(mode => mode.names !== undefined)?.names, modes }
}

function whatIsMissing(request: Request, { held, chains, modes }: Dump): string | undefined {
  const { service } = request
  const withTables = held.filter(({ tables }) => tables.length > 0)
  const iptables = request.what !== 'nft' && chains.some(({ ours }) => ours) ? chains : []
  if (withTables.length + iptables.length === 0) return nothingText({ ...request, service: '' })
  if (service === '' && modes.length > 0 && modes.every(({ rows }) => rows.length === 0))
    return noFrontend(modes)
  const isHeld =
    service === '' ||
    modes.some(({ rows }) => rows.length > 0) ||
    // The tables of a mode whose objects carry no names serve every Service.
    (request.what === 'nft' && withTables.some(({ names }) => names !== undefined)) ||
    held.some(({ tablesOf }) => tablesOf(service).length > 0) ||
    iptables.some(({ rules }) => rules.some(({ services }) => isOfService(services, service)))
  return isHeld ? undefined : nothingText(request)
}

/** A mode that can serve no Service on this node leaves the same rules as one without Services. */
function noFrontend(modes: readonly ProgrammedMode[]): string {
  const names = modes.map(({ mode }) => mode).join(' and ')
  return `the rules of ${names} mode serve no frontend: there are no Services, or the daemon skips them, and logs why`
}

function nothingText({ service, families, proxyName }: Request): string {
  const whose = proxyName === undefined ? '' : ` from the proxy ${quote(proxyName)}`
  const where = `${whose}${families.length > 1 ? '' : ` in the family ${families.join()}`}`
  return service === ''
    ? `the kernel holds no objects of kprobe${where}`
    : `the kernel holds nothing for the Service ${quote(service)}${where}`
}

function listingOf({ service }: Request, { held }: Dump): Ruleset {
  return { tables: held.flatMap(({ tables, tablesOf }) => (service === '' ? tables : tablesOf(service))) }
}

async function documentOf(request: Request, dump: Dump): Promise<unknown> {
  const { what } = request
  const services = rowsOf(dump)
  if (what === 'services') return { services }
  const nft = rulesetToJson(listingOf(request, dump))
  if (what === 'nft') return nft
  const objects: [string, unknown][] = []
  for (const { what, found } of await objectsOf(request, dump)) objects.push([what, found.value])
  return { services, nft, ...Object.fromEntries(objects) }
}

/** Reads the objects that modes list, of the modes that hold some. */
async function objectsOf(request: Request, { names, chains }: Dump) {
  const objects: { what: string; found: Awaited<ReturnType<(typeof DUMPS)[number]['read']>> }[] = []
  for (const { what, isNamed, read } of DUMPS) {
    if (isNamed ? !chains.some(({ ours }) => ours) : names === undefined) continue
    const filter = { ...filterOf(request, names ?? NO_NAMES), proxy: request.proxyName, chains }
    objects.push({ what, found: await read(HERE, filter) })
  }
  return objects
}

function rowsOf({ modes }: Dump): readonly ServiceRow[] {
  return sortedRows(modes.flatMap(({ rows }) => rows))
}

async function writeText(request: Request, dump: Dump, io: Io): Promise<void> {
  const { what, output, service } = request
  const wide = output === 'wide' || service !== ''
  if (what !== 'nft') io.out(serviceTable(rowsOf(dump), { color: io.color, wide }))
  if (what === 'services') return
  if (what === 'all') io.out('\n')
  const asTool = output === 'nft' && service === '' ? await listByNft(dump) : undefined
  if (asTool !== undefined) io.out(asTool)
  else writeLines(printRuleset(listingOf(request, dump)), io)
  if (what === 'nft') return
  for (const { found } of await objectsOf(request, dump))
    io.out(`\n${tableText(found.heading, found.rows, io)}`)
}

async function listByNft({ held }: Dump): Promise<string | undefined> {
  return await runNft(
    held.flatMap(({ tables }) => tables.map(({ family, name }) => `list table ${family} ${name}`)),
  )
}

const LINES_PER_WRITE = 1_000

function writeLines(lines: Iterable<string>, io: Io): void {
  let text: string[] = []
  for (const line of lines) {
    text.push(`${line}\n`)
    if (text.length < LINES_PER_WRITE) continue
    io.out(text.join(''))
    text = []
  }
  io.out(text.join(''))
}
