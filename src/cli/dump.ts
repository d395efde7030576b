import { systemClock } from '../base/clock.ts'
import { PersistentMap } from '../base/persistent-map.ts'
import { finishInSlices, slicingOf } from '../base/steps.ts'
import { type FlagSpec, readArguments } from '../config/flag.ts'
import { FlagReader, quote } from '../config/flag-reader.ts'
import { HELP_FLAG, outputFlag } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { openNetfilter } from '../daemon/open.ts'
import { GROUP_NODEPORT_IPS, serviceOfGroup } from '../dataplane/common/groups.ts'
import { adoptRuleset } from '../dataplane/nftables/adopt.ts'
import { GROUP_DISPATCH } from '../dataplane/nftables/layout.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../dataplane/nftables/options.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import { printRuleset, rulesetToJson } from '../kernel/nft/print.ts'
import type { ElementGroup, NftFamily, Ruleset, Table } from '../kernel/nft/state.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { kernelRows } from './kernel-rows.ts'
import { runNft } from './libnftables.ts'
import { writeDocument } from './output.ts'
import { serviceTable } from './service-rows.ts'
import { failureText, usageErrors } from './usage-errors.ts'

const WHAT = ['services', 'nft', 'all'] as const
const OUTPUTS = ['text', 'json', 'yaml', 'nft'] as const

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
  outputFlag(OUTPUTS),
]

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe dump [services|nft|all] [flags]',
      description:
        'Prints what the kernel holds of ours, read over netlink, and the Service that each object serves.',
      details: [
        'What:',
        '  services   each address and port that is served, and where it leads (default, but for -o nft)',
        '  nft        tables, chains, rules, sets and elements; with -o nft in the words of nft itself when',
        '             libnftables is on this machine, of the own printer otherwise',
        '  all        both',
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
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const given = readArguments(argv, FLAGS, () => undefined)
  const reader = new FlagReader(given)
  const request = readRequest(reader, given.positionals)
  if (reader.errors.length > 0) return usageErrors(io, 'dump', reader.errors)
  try {
    const ruleset = await readKernel(request)
    const missing = whatIsMissing(request, ruleset)
    if (missing !== undefined) io.err(`${missing}\n`)
    if (request.output === 'json' || request.output === 'yaml')
      await writeDocument(documentOf(request, ruleset), request.output, io)
    else await writeText(request, ruleset, io)
    return EXIT_FINE
  } catch (error) {
    io.err(`kprobe dump: ${failureText(error)}\n`)
    return EXIT_FAILED
  }
}

function readRequest(reader: FlagReader, positionals: readonly string[]): Request {
  const output = reader.oneOf('output', OUTPUTS, 'text')
  const [first = output === 'nft' ? 'nft' : 'services', ...rest] = positionals
  const what = WHAT.find(word => word === first)
  if (what === undefined) reader.fail(quote(first), `is not one of ${WHAT.join(', ')}`)
  for (const argument of rest) reader.fail(quote(argument), 'no such argument')
  if (output === 'nft' && what !== 'nft') reader.fail('--output', 'nft is for `kprobe dump nft`')
  const service = reader.text('service') ?? ''
  if (service !== '' && !/^[^/]+\/[^/]+$/.test(service)) reader.fail('--service', 'is written namespace/name')
  return { what: what ?? 'services', output, service, families: readFamilies(reader) }
}

function readFamilies(reader: FlagReader): readonly NftFamily[] {
  if ((reader.text('family') ?? '') === '') return ['ip', 'ip6']
  const family = reader.oneOf('family', ['IPv4', 'IPv6', 'ip', 'ip6', 'ipv4', 'ipv6'], 'ip')
  return [family.endsWith('6') ? 'ip6' : 'ip']
}

/** Our tables, elements grouped by the Service they serve, and of the Service asked for alone if there is one. */
async function readKernel({ families, service }: Request): Promise<Ruleset> {
  const client = createNftClient({ transport: openNetfilter(), clock: systemClock })
  try {
    const { tableName: name } = DEFAULT_NFTABLES_OPTIONS
    const { ruleset } = await client.list(families.map(family => ({ family, name })))
    const adopted = await finishInSlices(adoptRuleset(ruleset), slicingOf(systemClock))
    const { tables } = adopted.ruleset
    return service === '' ? { tables } : { tables: tables.map(table => onlyOf(table, service)) }
  } finally {
    await client.close()
  }
}

function whatIsMissing({ service, families }: Request, { tables }: Ruleset): string | undefined {
  const where = families.length > 1 ? '' : ` in the family ${families.join()}`
  if (tables.length === 0) return `the kernel holds nothing of ours${where}`
  const held = service === '' || tables.some(({ elements }) => ownGroups(elements) > 0)
  return held ? undefined : `the kernel holds nothing for the Service ${quote(service)}${where}`
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
function listingOf({ service }: Request, ruleset: Ruleset): Ruleset {
  if (service === '') return ruleset
  const tables = ruleset.tables.map(table => {
    const own = withGroups(table, group => !SHARED.has(group))
    const inUse = new Set([...own.elements.values()].flat().map(({ set }) => set))
    const sets = new Map([...table.sets].filter(([name]) => inUse.has(name)))
    return { ...own, sets, chains: new Map() }
  })
  return { tables: tables.filter(({ elements }) => elements.size > 0) }
}

function documentOf(request: Request, ruleset: Ruleset): unknown {
  const { what } = request
  const services = () => kernelRows(ruleset.tables)
  if (what === 'services') return { services: services() }
  const nft = rulesetToJson(listingOf(request, ruleset))
  return what === 'nft' ? nft : { services: services(), nft }
}

async function writeText(request: Request, ruleset: Ruleset, io: Io): Promise<void> {
  const { what, output, service } = request
  if (what !== 'nft') io.out(serviceTable(kernelRows(ruleset.tables), io))
  if (what === 'services') return
  if (what === 'all') io.out('\n')
  const asTool = output === 'nft' && service === '' ? await listByNft(ruleset) : undefined
  if (asTool !== undefined) io.out(asTool)
  else writeLines(printRuleset(listingOf(request, ruleset)), io)
}

async function listByNft({ tables }: Ruleset): Promise<string | undefined> {
  return await runNft(tables.map(({ family, name }) => `list table ${family} ${name}`))
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
