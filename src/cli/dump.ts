import { PersistentMap } from '../base/persistent-map.ts'
import { oneLine } from '../base/text.ts'
import { ADMIN_SOCKET_FLAG } from '../config/daemon-flags.ts'
import { type FlagSpec, readArguments } from '../config/flag.ts'
import { FlagReader, quote } from '../config/flag-reader.ts'
import { HELP_FLAG, outputFlag } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { INSTANCE_FLAG, readInstanceName, whyNotInstance } from '../config/instance-name.ts'
import { type Instance, instanceOf } from '../daemon/instance.ts'
import { printRuleset, rulesetToJson } from '../kernel/nft/print.ts'
import type { ElementGroup, NftFamily, Ruleset, Table } from '../kernel/nft/state.ts'
import { LAYOUTS } from '../modes/common/family.ts'
import { GROUP_NODEPORT_IPS, serviceOfGroup } from '../modes/common/groups.ts'
import { GROUP_DISPATCH } from '../modes/nftables/layout.ts'
import { readIptables, saveIptables, showIptables } from './dump-iptables.ts'
import { type IpvsFilter, showServers, showSets } from './dump-ipvs.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { isOfService, type ReadChain } from './iptables-chains.ts'
import { runNft } from './libnftables.ts'
import { writeDocument } from './output.ts'
import { damageText, type ProgrammedMode, programmedModes, type ReadModes } from './programmed.ts'
import { type AskNames, readModes, readTables } from './read-modes.ts'
import { askServiceNames, namesOfElements, type ServiceNames } from './service-names.ts'
import { type ServiceRow, serviceTable, sortedRows } from './service-rows.ts'
import { failureText, usageErrors } from './usage-errors.ts'
import { userspaceOnlyOf, userspaceRows } from './userspace-rows.ts'

const WHAT = ['services', 'nft', 'ipvs', 'ipset', 'iptables', 'all'] as const
const OUTPUTS = [
  'text',
  'wide',
  'json',
  'yaml',
  'nft',
  'ipvsadm-save',
  'ipset-save',
  'iptables-save',
] as const

/** Formats that belong to one kind of object. */
const OUTPUT_OF: Readonly<Partial<Record<(typeof OUTPUTS)[number], (typeof WHAT)[number]>>> = {
  nft: 'nft',
  'ipvsadm-save': 'ipvs',
  'ipset-save': 'ipset',
  'iptables-save': 'iptables',
}

const FLAGS: readonly FlagSpec[] = [
  {
    name: 'service',
    kind: 'text',
    placeholder: 'NAMESPACE/NAME',
    default: '',
    help: 'only what serves this Service, with all its endpoints',
  },
  {
    name: 'family',
    kind: 'text',
    placeholder: 'FAMILY',
    default: '',
    help: 'only IPv4 or IPv6 (or ip, ip6)',
  },
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
        '  services   each address and port that is served, and its endpoints (default, except with -o nft); in userspace mode',
        '             the listener of the daemon, because only the daemon knows the endpoints. -o wide lists every endpoint.',
        '             For each row, dump follows a packet from outside and one from this node through these rules',
        '  nft        tables, chains, rules, sets and elements; with -o nft as `nft list ruleset` prints them when',
        "             libnftables is on this machine, by kprobe's own printer otherwise",
        '  ipvs       virtual servers with their destinations (IPVS mode); with -o ipvsadm-save as `ipvsadm -S -n`',
        '  ipset      sets and entries (IPVS mode); with -o ipset-save as `ipset save`',
        '  iptables   rules of iptables mode and what leads to them, or of kube-proxy, whose chains are the same; with',
        '             -o iptables-save the whole tables filter, nat and mangle as iptables-save prints them',
        '  all        everything',
        '',
        'IPVS objects have no names: the daemon at --admin-socket knows which Service each belongs to. Without it, only',
        "objects that kprobe's nf_tables elements mention have a name.",
      ],
      flags: [...FLAGS, HELP_FLAG],
    }),
  run,
}

interface Request {
  readonly what: (typeof WHAT)[number]
  readonly output: (typeof OUTPUTS)[number]
  /** Empty for all. */
  readonly service: string
  readonly families: readonly NftFamily[]
  readonly adminSocket: string
  readonly instance: Instance
  /** Of the proxy asked for; undefined for the one without a name. */
  readonly proxyName: string | undefined
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const given = readArguments(argv, FLAGS, () => undefined)
  const reader = new FlagReader(given)
  const request = readRequest(reader, given.positionals)
  if (reader.errors.length > 0) return usageErrors(io, 'dump', reader.errors)
  try {
    const names = await askServiceNames(request.adminSocket)
    const ask: AskNames = isNeeded => daemonNames(request, names, isNeeded)
    if (request.what === 'ipvs' || request.what === 'ipset') return await dumpOfIpvs(request, io, ask)
    if (request.what === 'iptables') return await dumpIptables(request, io)
    return await dumpTables(request, io, ask)
  } catch (error) {
    io.err(`kprobe dump: ${failureText(error)}\n`)
    return EXIT_FAILED
  }
}

async function dumpTables(request: Request, io: Io, ask: AskNames): Promise<number> {
  const dump = await readKernel(request, ask)
  const missing = whatIsMissing(request, dump)
  if (missing !== undefined) io.err(`${missing}\n`)
  if (request.output === 'json' || request.output === 'yaml')
    await writeDocument(await documentOf(request, dump), request.output, io)
  else await writeText(request, dump, io)
  if (request.what !== 'nft' && dump.filter?.names.isComplete === false) io.err(UNNAMED)
  warnOfModes(dump.modes, io)
  const damage = damageText(dump.modes)
  if (damage !== undefined) io.err(`DAMAGED: ${oneLine(damage)}; \`kprobe verify\` names what differs\n`)
  return damage === undefined ? exitOf(request, missing) : EXIT_FAILED
}

/** A Service that is asked for and not there is a failure; an empty kernel is not. */
function exitOf({ service }: Pick<Request, 'service'>, missing: string | undefined): number {
  return service !== '' && missing !== undefined ? EXIT_FAILED : EXIT_FINE
}

function warnOfModes(modes: readonly ProgrammedMode[], io: Io): void {
  if (modes.length < 2) return
  const names = modes.map(({ mode }) => mode).join(' and ')
  io.err(
    `warning: rules of ${names} mode are both in the kernel: a mode switch is going on, or one is a leftover; ` +
      'remove a leftover with `kprobe cleanup`, and `kprobe cleanup --proxy-mode=iptables` for iptables mode\n',
  )
}

async function dumpOfIpvs(request: Request, io: Io, ask: AskNames): Promise<number> {
  const { what, output } = request
  const names = ask(true) ?? namesOfElements((await readTables(request)).ipvs)
  const filter = filterOf(request, names)
  const shown = await (what === 'ipvs' ? showServers(filter) : showSets(filter))
  const missing = shown.isEmpty ? nothingText(request) : undefined
  if (missing !== undefined) io.err(`${missing}\n`)
  if (output === 'json' || output === 'yaml') await writeDocument(shown.value, output, io)
  else if (output === 'text' || output === 'wide') io.out(shown.text(io))
  else writeLines(shown.save, io)
  const isSave = output === 'ipvsadm-save' || output === 'ipset-save'
  if (!isSave && shown.hasUnnamed && !names.isComplete) io.err(UNNAMED)
  return exitOf(request, missing)
}

async function dumpIptables(request: Request, io: Io): Promise<number> {
  const { output, families, service, instance } = request
  if (output === 'iptables-save') {
    for (const text of await saveIptables(families)) io.out(text)
    if (families.length > 1) io.err(TWO_INPUTS)
    return EXIT_FINE
  }
  const shown = showIptables(await readIptables(families, instance.chains), service)
  const missing = shown.isEmpty ? nothingText(request) : undefined
  if (missing !== undefined) io.err(`${missing}\n`)
  if (output === 'json' || output === 'yaml') await writeDocument(shown.value, output, io)
  else io.out(shown.text(io))
  return exitOf(request, missing)
}

const TWO_INPUTS =
  'this is the input of two commands: `--family=IPv4` prints that of iptables-restore, `--family=IPv6` that of ip6tables-restore\n'

const UNNAMED =
  'some IPVS objects have no Service name here; --admin-socket reads the names from the daemon\n'

/** Throws when a Service is asked for and nobody says what is of it, unless the rest can be shown without. */
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

function filterOf({ families, service }: Request, names: ServiceNames): IpvsFilter {
  return { families: families.map(family => LAYOUTS[family].model), service, names }
}

function readRequest(reader: FlagReader, positionals: readonly string[]): Request {
  const output = reader.oneOf('output', OUTPUTS, 'text')
  const only = OUTPUT_OF[output]
  const [first = only ?? 'services', ...rest] = positionals
  const what = WHAT.find(word => word === first)
  if (what === undefined) reader.fail(quote(first), `is not one of ${WHAT.join(', ')}`)
  for (const argument of rest) reader.fail(quote(argument), 'no such argument')
  if (only !== undefined && what !== undefined && what !== only)
    reader.fail('--output', `${output} is for \`kprobe dump ${only}\``)
  const service = reader.text('service') ?? ''
  if (service !== '' && output === 'iptables-save')
    reader.fail('--service', 'iptables-save prints whole tables; -o text and -o json show one Service')
  if (service !== '' && !/^[^/]+\/[^/]+$/.test(service))
    reader.fail('--service', 'is not written NAMESPACE/NAME')
  const adminSocket = reader.text('admin-socket') ?? ''
  const proxyName = readInstanceName(reader)
  const misfit = proxyName === undefined ? undefined : whyNotInstance(proxyName, 'nftables')
  if (misfit !== undefined) reader.fail('--service-proxy-name', misfit)
  else if (proxyName !== undefined && (what === 'ipvs' || what === 'ipset'))
    reader.fail('--service-proxy-name', 'a named proxy cannot use IPVS')
  return {
    what: what ?? 'services',
    output,
    service,
    families: readFamilies(reader),
    adminSocket,
    instance: instanceOf(proxyName),
    proxyName,
  }
}

function readFamilies(reader: FlagReader): readonly NftFamily[] {
  if ((reader.text('family') ?? '') === '') return ['ip', 'ip6']
  const family = reader.oneOf('family', ['IPv4', 'IPv6', 'ip', 'ip6', 'ipv4', 'ipv6'], 'ip')
  return [family.endsWith('6') ? 'ip6' : 'ip']
}

/** What the kernel holds of the modes that have something in it. */
interface Dump {
  readonly read: ReadModes
  /** Undefined without a table of IPVS mode. */
  readonly filter: IpvsFilter | undefined
  /** Of IPVS mode. */
  readonly ipvs: readonly Table[]
  /** Empty where no iptables mode has a chain. */
  readonly iptables: readonly ReadChain[]
  /** Of what: not asked for where no rows are. */
  readonly modes: readonly ProgrammedMode[]
}

async function readKernel(request: Request, ask: AskNames): Promise<Dump> {
  const read = await readModes(request, ask)
  const { iptables: chains, ipvs } = read
  const iptables = request.what !== 'nft' && chains.some(({ ours }) => ours) ? chains : []
  const modes = request.what === 'nft' ? [] : programmedModes(read, request.service)
  const tables = ipvs?.state.ruleset.tables ?? []
  const filter = ipvs === undefined ? undefined : filterOf(request, ipvs.names)
  return {
    read,
    filter,
    iptables,
    modes,
    ipvs: tables.filter(({ family }) => request.families.includes(family)),
  }
}

function whatIsMissing(request: Request, { read, ipvs, iptables, modes }: Dump): string | undefined {
  const { nftables, userspace } = read
  const { service } = request
  if (nftables.length + ipvs.length + userspace.length + iptables.length === 0)
    return nothingText({ ...request, service: '' })
  const held =
    service === '' ||
    modes.some(({ rows }) => rows.length > 0) ||
    (request.what === 'nft' && ipvs.length > 0) ||
    userspaceRows(userspace, service).length > 0 ||
    nftables.some(table => ownGroups(onlyOf(table, service).elements) > 0) ||
    iptables.some(({ rules }) => rules.some(({ services }) => isOfService(services, service)))
  return held ? undefined : nothingText(request)
}

function nothingText({ service, families, proxyName }: Request): string {
  const whose = proxyName === undefined ? '' : ` from the proxy ${quote(proxyName)}`
  const where = `${whose}${families.length > 1 ? '' : ` in the family ${families.join()}`}`
  return service === ''
    ? `the kernel holds no objects of kprobe${where}`
    : `the kernel holds nothing for the Service ${quote(service)}${where}`
}

function ownGroups(elements: Table['elements']): number {
  return [...elements.keys()].filter(group => !SHARED.has(group)).length
}

/** The elements of one Service, and what says where they lead. */
function onlyOf(table: Table, service: string): Table {
  return withGroups(table, group => serviceOfGroup(group) === service || SHARED.has(group))
}

/** Groups that rows are made from besides the Service's own. */
const SHARED: ReadonlySet<string> = new Set([GROUP_DISPATCH, GROUP_NODEPORT_IPS])

function withGroups(table: Table, wanted: (group: string) => boolean): Table {
  const kept: [string, ElementGroup][] = []
  for (const [group, elements] of table.elements.entries()) if (wanted(group)) kept.push([group, elements])
  return { ...table, elements: PersistentMap.from(kept) }
}

/** What nft would list of one Service: its elements, and the sets that they are in. */
function listingOf({ service }: Request, { read, ipvs }: Dump): Ruleset {
  const { nftables, userspace } = read
  if (service === '') return { tables: [...nftables, ...ipvs, ...userspace] }
  const tables = nftables.map(table => {
    const own = withGroups(onlyOf(table, service), group => !SHARED.has(group))
    const inUse = new Set([...own.elements.values()].flat().map(({ set }) => set))
    const sets = new Map([...table.sets].filter(([name]) => inUse.has(name)))
    return { ...own, sets, chains: new Map() }
  })
  const relayed = userspace.map(table => userspaceOnlyOf(table, service))
  return { tables: [...tables, ...relayed].filter(({ elements }) => elements.size > 0) }
}

async function documentOf(request: Request, dump: Dump): Promise<unknown> {
  const { what } = request
  const services = rowsOf(dump)
  if (what === 'services') return { services }
  const nft = rulesetToJson(listingOf(request, dump))
  if (what === 'nft') return nft
  const { filter, iptables } = dump
  const chains = iptables.length === 0 ? {} : { iptables: showIptables(iptables, request.service).value }
  if (filter === undefined) return { services, nft, ...chains }
  const [ipvs, ipset] = [await showServers(filter), await showSets(filter)]
  return { services, nft, ipvs: ipvs.value, ipset: ipset.value, ...chains }
}

function rowsOf({ modes }: Dump): readonly ServiceRow[] {
  return sortedRows(modes.flatMap(({ rows }) => rows))
}

async function writeText(request: Request, dump: Dump, io: Io): Promise<void> {
  const { what, output, service } = request
  const wide = output === 'wide' || service !== ''
  if (what !== 'nft') io.out(serviceTable(rowsOf(dump), { colour: io.colour, wide }))
  if (what === 'services') return
  if (what === 'all') io.out('\n')
  const asTool = output === 'nft' && service === '' ? await listByNft(dump) : undefined
  if (asTool !== undefined) io.out(asTool)
  else writeLines(printRuleset(listingOf(request, dump)), io)
  if (what === 'nft') return
  if (dump.iptables.length > 0) io.out(`\n${showIptables(dump.iptables, service).text(io)}`)
  if (dump.filter === undefined) return
  for (const show of [showServers, showSets]) io.out(`\n${(await show(dump.filter)).text(io)}`)
}

async function listByNft({ read, ipvs }: Dump): Promise<string | undefined> {
  return await runNft(
    [...read.nftables, ...ipvs, ...read.userspace].map(({ family, name }) => `list table ${family} ${name}`),
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
