import { systemClock } from '../base/clock.ts'
import { PersistentMap } from '../base/persistent-map.ts'
import { finishInSlices, slicingOf } from '../base/steps.ts'
import { ADMIN_SOCKET_FLAG } from '../config/daemon-flags.ts'
import { type FlagSpec, readArguments } from '../config/flag.ts'
import { FlagReader, quote } from '../config/flag-reader.ts'
import { HELP_FLAG, outputFlag } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { INSTANCE_FLAG, readInstanceName, whyNotInstance } from '../config/instance-name.ts'
import { type Instance, instanceOf } from '../daemon/instance.ts'
import { openNetfilter } from '../daemon/open.ts'
import { LAYOUTS } from '../dataplane/common/family.ts'
import { GROUP_NODEPORT_IPS, serviceOfGroup } from '../dataplane/common/groups.ts'
import { adoptRuleset } from '../dataplane/nftables/adopt.ts'
import { GROUP_DISPATCH } from '../dataplane/nftables/layout.ts'
import { createIpsetClient } from '../kernel/ipset/client.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import { printRuleset, rulesetToJson } from '../kernel/nft/print.ts'
import type { ElementGroup, NftFamily, Ruleset, Table } from '../kernel/nft/state.ts'
import { readIptables, saveIptables, showIptables } from './dump-iptables.ts'
import { type IpvsFilter, readState, showServers, showSets } from './dump-ipvs.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { isOfService, type ReadChain } from './iptables-chains.ts'
import { iptablesServiceRows } from './iptables-service-rows.ts'
import { ipvsServiceRows } from './ipvs-rows.ts'
import { kernelRows } from './kernel-rows.ts'
import { runNft } from './libnftables.ts'
import { writeDocument } from './output.ts'
import { askServiceNames, namesOfElements, type ServiceNames } from './service-names.ts'
import { type ServiceRow, serviceTable } from './service-rows.ts'
import { failureText, usageErrors } from './usage-errors.ts'
import { userspaceOnlyOf, userspaceRows } from './userspace-rows.ts'

const WHAT = ['services', 'nft', 'ipvs', 'ipset', 'iptables', 'all'] as const
const OUTPUTS = ['text', 'json', 'yaml', 'nft', 'ipvsadm-save', 'ipset-save', 'iptables-save'] as const

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
    help: 'only what serves this Service',
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
    help: 'unix socket of the daemon, which knows whom objects of IPVS serve; unset: none',
  },
  INSTANCE_FLAG,
  outputFlag(OUTPUTS),
]

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe dump [services|nft|ipvs|ipset|iptables|all] [flags]',
      description:
        'Prints what the kernel holds of ours, read over netlink, and the Service that each object serves.',
      details: [
        'What:',
        '  services   each address and port that is served, and where it leads (default, but for -o nft); in the mode',
        '             userspace to a listener of the daemon, which alone knows the endpoints',
        '  nft        tables, chains, rules, sets and elements; with -o nft in the words of nft itself when',
        '             libnftables is on this machine, of the own printer otherwise',
        '  ipvs       virtual servers with their destinations, of the mode ipvs; with -o ipvsadm-save as `ipvsadm -S -n`',
        '  ipset      sets and entries of the mode ipvs; with -o ipset-save as `ipset save`',
        '  iptables   rules of the mode iptables and what leads to them, or of kube-proxy, whose chains are the same; with',
        '             -o iptables-save the whole tables filter, nat and mangle as iptables-save prints them',
        '  all        everything that is there',
        '',
        'Objects of IPVS bear no names: the daemon at --admin-socket says which Service each of them serves. Without it,',
        'those have a name here that our own rules are about, whose elements bear one.',
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
    if (request.what === 'ipvs' || request.what === 'ipset') await dumpOfIpvs(request, io, ask)
    else if (request.what === 'iptables') await dumpIptables(request, io)
    else await dumpTables(request, io, ask)
    return EXIT_FINE
  } catch (error) {
    io.err(`kprobe dump: ${failureText(error)}\n`)
    return EXIT_FAILED
  }
}

async function dumpTables(request: Request, io: Io, ask: AskNames): Promise<void> {
  const dump = await readKernel(request, ask)
  const missing = whatIsMissing(request, dump)
  if (missing !== undefined) io.err(`${missing}\n`)
  if (request.output === 'json' || request.output === 'yaml')
    await writeDocument(await documentOf(request, dump), request.output, io)
  else await writeText(request, dump, io)
  if (request.what !== 'nft' && dump.filter?.names.isComplete === false) io.err(UNNAMED)
}

async function dumpOfIpvs(request: Request, io: Io, ask: AskNames): Promise<void> {
  const { what, output } = request
  const names = ask(true) ?? namesOfElements((await readTables(request)).ipvs)
  const filter = filterOf(request, names)
  const shown = await (what === 'ipvs' ? showServers(filter) : showSets(filter))
  if (shown.isEmpty) io.err(`${nothingText(request)}\n`)
  if (output === 'json' || output === 'yaml') await writeDocument(shown.value, output, io)
  else if (output === 'text') io.out(shown.text(io))
  else return writeLines(shown.save, io)
  if (shown.hasUnnamed && !names.isComplete) io.err(UNNAMED)
}

async function dumpIptables(request: Request, io: Io): Promise<void> {
  const { output, families, service, instance } = request
  if (output === 'iptables-save') {
    for (const text of await saveIptables(families)) io.out(text)
    return
  }
  const shown = showIptables(await readIptables(families, instance.chains), service)
  if (shown.isEmpty) io.err(`${nothingText(request)}\n`)
  if (output === 'json' || output === 'yaml') await writeDocument(shown.value, output, io)
  else io.out(shown.text(io))
}

const UNNAMED =
  'not every object of IPVS has a name here: the daemon at its --admin-socket knows whom each serves\n'

/** Undefined where no daemon says. */
type AskNames = (isNeeded: boolean) => ServiceNames | undefined

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
  if (service !== '' && !/^[^/]+\/[^/]+$/.test(service)) reader.fail('--service', 'is written namespace/name')
  const adminSocket = reader.text('admin-socket') ?? ''
  const proxyName = readInstanceName(reader)
  const misfit = proxyName === undefined ? undefined : whyNotInstance(proxyName, 'nftables')
  if (misfit !== undefined) reader.fail('--service-proxy-name', misfit)
  else if (proxyName !== undefined && (what === 'ipvs' || what === 'ipset'))
    reader.fail('--service-proxy-name', 'a named proxy has no mode ipvs')
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

/** Our tables, elements grouped by the Service they serve, and of the Service asked for alone if there is one. */
async function readKernel(request: Request, ask: AskNames): Promise<Dump> {
  const { families, service } = request
  const { nftables, ipvs, userspace } = await readTables(request)
  const chains = request.what === 'nft' ? [] : await readIptables(families, request.instance.chains)
  const iptables = chains.some(({ ours }) => ours) ? chains : []
  const adopted = await finishInSlices(adoptRuleset({ tables: nftables }), slicingOf(systemClock))
  const { tables } = adopted.ruleset
  const own = service === '' ? tables : tables.map(table => onlyOf(table, service))
  const others = { userspace, iptables }
  if (ipvs.length === 0) return { tables: own, ipvs, filter: undefined, ...others }
  // Elements of the mode nftables, which may be taking over, say whom they serve.
  const names = ask(nftables.length === 0) ?? namesOfElements(ipvs)
  return { tables: own, ipvs, filter: filterOf(request, names), ...others }
}

/** Those of each mode: while one takes over from the other, both are there. */
async function readTables({ families, instance }: Request): Promise<TablesOfModes> {
  const ipsets = createIpsetClient({ transport: openNetfilter(), clock: systemClock })
  const client = createNftClient({ transport: openNetfilter(), clock: systemClock, ipsets })
  try {
    const names = [instance.nftables, instance.ipvs ?? [], instance.userspace].flat()
    const places = names.flatMap(name => families.map(family => ({ family, name })))
    const { tables } = (await client.list(places)).ruleset
    const of = (name: string | undefined) => tables.filter(table => table.name === name)
    return {
      nftables: of(instance.nftables),
      ipvs: of(instance.ipvs),
      userspace: of(instance.userspace),
    }
  } finally {
    await client.close()
    await ipsets.close()
  }
}

interface TablesOfModes {
  readonly nftables: readonly Table[]
  readonly ipvs: readonly Table[]
  readonly userspace: readonly Table[]
}

/** What the kernel holds of the modes that have something in it. */
interface Dump {
  /** Of the mode nftables, elements grouped by Service. */
  readonly tables: readonly Table[]
  /** Of the mode ipvs. */
  readonly ipvs: readonly Table[]
  /** Undefined without a table of the mode ipvs. */
  readonly filter: IpvsFilter | undefined
  readonly userspace: readonly Table[]
  /** Empty where no iptables mode has a chain. */
  readonly iptables: readonly ReadChain[]
}

function whatIsMissing(request: Request, { tables, ipvs, userspace, iptables }: Dump): string | undefined {
  if (tables.length + ipvs.length + userspace.length + iptables.length === 0)
    return nothingText({ ...request, service: '' })
  const held =
    request.service === '' ||
    ipvs.length > 0 ||
    userspaceRows(userspace, request.service).length > 0 ||
    tables.some(({ elements }) => ownGroups(elements) > 0) ||
    iptables.some(({ rules }) => rules.some(({ services }) => isOfService(services, request.service)))
  return held ? undefined : nothingText(request)
}

function nothingText({ service, families, proxyName }: Request): string {
  const whose = proxyName === undefined ? '' : ` from the proxy ${quote(proxyName)}`
  const where = `${whose}${families.length > 1 ? '' : ` in the family ${families.join()}`}`
  return service === ''
    ? `the kernel holds nothing of ours${where}`
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
function listingOf({ service }: Request, { tables: all, ipvs, userspace }: Dump): Ruleset {
  if (service === '') return { tables: [...all, ...ipvs, ...userspace] }
  const tables = all.map(table => {
    const own = withGroups(table, group => !SHARED.has(group))
    const inUse = new Set([...own.elements.values()].flat().map(({ set }) => set))
    const sets = new Map([...table.sets].filter(([name]) => inUse.has(name)))
    return { ...own, sets, chains: new Map() }
  })
  const relayed = userspace.map(table => userspaceOnlyOf(table, service))
  return { tables: [...tables, ...relayed].filter(({ elements }) => elements.size > 0) }
}

async function documentOf(request: Request, dump: Dump): Promise<unknown> {
  const { what } = request
  if (what === 'services') return { services: await rowsOf(request, dump) }
  const nft = rulesetToJson(listingOf(request, dump))
  if (what === 'nft') return nft
  const { filter, iptables } = dump
  const services = await rowsOf(request, dump)
  const chains = iptables.length === 0 ? {} : { iptables: showIptables(iptables, request.service).value }
  if (filter === undefined) return { services, nft, ...chains }
  const [ipvs, ipset] = [await showServers(filter), await showSets(filter)]
  return { services, nft, ipvs: ipvs.value, ipset: ipset.value, ...chains }
}

async function rowsOf(
  { service, instance }: Request,
  { tables, filter, iptables, userspace }: Dump,
): Promise<readonly ServiceRow[]> {
  const ofChains = iptablesServiceRows(iptables, instance.chains).filter(row =>
    isOfService([row.service], service),
  )
  const rows = [...kernelRows(tables), ...ofChains, ...userspaceRows(userspace, service)]
  return filter === undefined ? rows : [...rows, ...ipvsServiceRows(await readState(filter), filter.names)]
}

async function writeText(request: Request, dump: Dump, io: Io): Promise<void> {
  const { what, output, service } = request
  if (what !== 'nft') io.out(serviceTable(await rowsOf(request, dump), io))
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

async function listByNft({ tables, ipvs, userspace }: Dump): Promise<string | undefined> {
  return await runNft(
    [...tables, ...ipvs, ...userspace].map(({ family, name }) => `list table ${family} ${name}`),
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
