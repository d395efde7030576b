import { pause, restMs, systemClock } from '../../base/clock.ts'
import { isDocument, writeDocument } from '../../cli/document.ts'
import { EXIT_FAILED, EXIT_FINE, type Io, lent, tableText, writeWarnings } from '../../cli/io.ts'
import { ownCommand } from '../../cli/request.ts'
import { serviceTable, sortedRows } from '../../cli/service-rows.ts'
import { quote } from '../../config/flag.ts'
import { defaultAdminSocket } from '../../config/own-flags.ts'
import { HERE } from '../../daemon/open.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import { printRuleset, rulesetToJson } from '../../kernel/nft/print.ts'
import type { Ruleset } from '../../kernel/nft/state.ts'
import type { PodNames } from '../../model/pod-names.ts'
import { namesOfElements, type ServiceNames } from '../../modes/common/service-names.ts'
import { isOfService, type ServiceRow } from '../../modes/common/show.ts'
import type { DumpFilter, Mode } from '../../modes/mode.ts'
import { type ReadModes, readModes, readTables } from '../../modes/registry.ts'
import { askPods, serviceNamesReader } from '../admin-client.ts'
import { hintAt } from '../peers.ts'
import {
  damageText,
  isRelayed,
  type ProgrammedMode,
  programmedModes,
  remedyText,
  withRelays,
} from '../programmed.ts'
import { DUMP_HELP, DUMPS, type Request, readRequest } from './dump-request.ts'

export const command = ownCommand({ ...DUMP_HELP, takesArguments: true, read: readRequest, run })

async function run(request: Request, io: Io): Promise<number> {
  const readNames = serviceNamesReader(request.adminSocket)
  const dump = DUMPS.find(({ what }) => what === request.what)
  if (dump !== undefined) return await dumpObjects(request, io, { dump, names: await readNames() })
  const read = async () => await readKernel(request, await readNames())
  if (!request.isWatched) return await dumpTables(request, io, await read())
  await watchRows(io, {
    first: async () => {
      const held = await read()
      await dumpTables(request, io, held)
      return rowsRead(request, held)
    },
    read: async () => rowsRead(request, await read()),
    textOf: rows => rowsText(rows, request, io),
  })
  return EXIT_FINE
}

async function dumpTables(request: Request, io: Io, dump: Dump): Promise<number> {
  if (isDocument(request.output)) await writeDocument(await documentOf(request, dump), request.output, io)
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
  /** The daemon's names; undefined without a socket. */
  readonly names: ServiceNames | undefined
}

async function dumpObjects(request: Request, io: Io, { dump, names: known }: Asked): Promise<number> {
  const { output, families, proxyName: proxy } = request
  const { saveTables } = dump
  if (output === dump.saveFormat && saveTables !== undefined) {
    for (const text of await saveTables.print(HERE, families)) io.out(text)
    await writeWarnings(families.length > 1 ? [saveTables.note] : [], io)
    return EXIT_FINE
  }
  const names = dump.isNamed
    ? NO_NAMES
    : (daemonNames(request, known, true) ?? (await namesInTables(request, dump.mode)))
  const found = await dump.read(HERE, { ...filterOf(request, names), proxy })
  if (isDocument(output)) await writeDocument(found.value, output, io)
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

/** Kernel state of all modes that hold objects. */
interface Dump extends ReadModes {
  /** Names of objects that carry none; undefined if no mode holds such objects. */
  readonly names: ServiceNames | undefined
  readonly pods: PodNames
  /** Modes with their rows; empty for `dump nft`, which prints none. */
  readonly modes: readonly ProgrammedMode[]
}

async function readKernel(request: Request, names: ServiceNames | undefined): Promise<Dump> {
  const read = await readModes({ ...HERE, ...request }, isNeeded => daemonNames(request, names, isNeeded))
  const modes = request.what === 'nft' ? [] : programmedModes(withRelays(read.held), request.service)
  const { adminSocket, proxyName } = request
  const pods = await askPods(adminSocket || defaultAdminSocket(proxyName))
  return { ...read, names: read.held.find(mode => mode.names !== undefined)?.names, modes, pods }
}

function whatIsMissing(request: Request, { held, chains, modes }: Dump): string | undefined {
  const { service, namespace } = request
  const withTables = held.filter(({ tables }) => tables.length > 0)
  const iptables = request.what !== 'nft' && chains.some(({ ours }) => ours) ? chains : []
  if (withTables.length + iptables.length === 0) return nothingText({ ...request, service: '' })
  if (service === '' && modes.length > 0 && modes.every(({ rows }) => rows.length === 0))
    return noFrontend(modes)
  if (
    namespace !== '' &&
    service === '' &&
    !modes.some(({ rows }) => rows.some(row => isIn(namespace, row.service)))
  )
    return `the kernel serves no Service of the namespace ${namespace}`
  const isHeld =
    service === '' ||
    modes.some(({ rows }) => rows.length > 0) ||
    // The tables of a mode whose objects carry no names serve every Service.
    (request.what === 'nft' && withTables.some(({ names }) => names !== undefined)) ||
    held.some(({ tablesOf }) => tablesOf(service).length > 0) ||
    iptables.some(({ rules }) => rules.some(({ services }) => isOfService(services, service)))
  if (isHeld) return undefined
  const known = held.flatMap(({ rows }) => rows.map(row => row.service))
  return `${nothingText(request)}${hintAt(service, known)}`
}

/** A mode that can serve no Service on this node leaves the same rules as one without Services. */
function noFrontend(modes: readonly ProgrammedMode[]): string {
  const names = modes.map(({ mode }) => mode).join(' and ')
  return `the rules of ${names} mode serve no frontend: there are no Services, or the daemon skips them; its log has the reason`
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
  const services = rowsOf(request, dump)
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

/** Sorts numbers within a text by their value: 10.0.0.9 before 10.0.0.10. */
const NATURAL = new Intl.Collator('en', { numeric: true })

function rowsOf({ namespace, sortBy }: Request, { modes, pods }: Dump): readonly ServiceRow[] {
  const wanted = modes.flatMap(({ rows }) => rows).filter(({ service }) => isIn(namespace, service))
  const rows = sortedRows(wanted).map(row => namedRow(row, pods))
  if (sortBy === undefined) return rows
  return [...rows].sort((a, b) => NATURAL.compare(a[sortBy], b[sortBy]))
}

/** Adds the Pods of the endpoints that have one. */
function namedRow(row: ServiceRow, pods: PodNames): ServiceRow {
  const named = [...row.endpoints, ...(row.localEndpoints ?? [])].flatMap(address => {
    const pod = pods(address)
    return pod === undefined ? [] : [[address, pod] as const]
  })
  return named.length === 0 ? row : { ...row, pods: Object.fromEntries(named) }
}

function isIn(namespace: string, service: string): boolean {
  return namespace === '' || service.startsWith(`${namespace}/`)
}

function rowsRead(request: Request, dump: Dump): RowsRead {
  const rows = rowsOf(request, dump)
  // IPVS changes its virtual servers, and a relay ends, without a commit of nf_tables.
  return { rows, isNftAlone: dump.names === undefined && !rows.some(isRelayed) }
}

function rowsText(rows: readonly ServiceRow[], { output, service }: Request, io: Io): string {
  return serviceTable(rows, { color: io.color, wide: output === 'wide' || service !== '' })
}

async function writeText(request: Request, dump: Dump, io: Io): Promise<void> {
  const { what } = request
  if (what !== 'nft') io.out(rowsText(rowsOf(request, dump), request, io))
  if (what === 'services') return
  if (what === 'all') io.out('\n')
  writeLines(printRuleset(listingOf(request, dump)), io)
  if (what === 'nft') return
  for (const { found } of await objectsOf(request, dump))
    io.out(`\n${tableText(found.heading, found.rows, io)}`)
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

interface RowsRead {
  readonly rows: readonly ServiceRow[]
  /** All rows come from nf_tables, whose generation changes with any of them. */
  readonly isNftAlone: boolean
}

/** The part of a core that reading rows may take. */
const ROWS_PACE = { share: 0.1 } as const

interface RowsSource {
  readonly first: () => Promise<RowsRead>
  readonly read: () => Promise<RowsRead>
  /** Formats some rows, with a heading. */
  readonly textOf: (rows: readonly ServiceRow[]) => string
}

/** Prints all rows, and then those that are added, change or go, until the command is to end. */
export async function watchRows(
  io: Pick<Io, 'out' | 'outWritten' | 'signal' | 'outLost'>,
  { first, read, textOf }: RowsSource,
): Promise<void> {
  const client = createNftClient({ transport: HERE.sockets.netfilter(), clock: HERE.clock })
  const end = AbortSignal.any([io.signal, io.outLost])
  await lent(client, async () => {
    let generation = client.generation()
    // A commit during the first read makes the next check read again, and compare with what was printed.
    let { rows, isNftAlone } = await first()
    while (!end.aborted) {
      // Time between two reads of the generation.
      await pause(systemClock, 500, end)
      const now = client.generation()
      if (now === generation && isNftAlone) continue
      generation = now
      const started = systemClock.nowMs()
      const next = await read()
      const changed = changedRows(rows, next.rows)
      // The heading stands above the first table alone.
      if (changed.length > 0) io.out(textOf(changed).replace(/^[^\n]*\n/, ''))
      // Changes behind a reader that stalls are merged into one.
      await io.outWritten()
      rows = next.rows
      isNftAlone = next.isNftAlone
      await pause(systemClock, restMs(systemClock.nowMs() - started, ROWS_PACE), end)
    }
  })
}

/** Lists the rows of `after` that `before` has not in the same form, and then those that are gone. Pure. */
function changedRows(before: readonly ServiceRow[], after: readonly ServiceRow[]): readonly ServiceRow[] {
  const old = new Map(before.map(row => [keyOf(row), JSON.stringify(row)]))
  const kept = new Set(after.map(keyOf))
  return [
    ...after.filter(row => old.get(keyOf(row)) !== JSON.stringify(row)),
    ...before.filter(row => !kept.has(keyOf(row))).map(row => ({ ...row, problem: 'gone' })),
  ]
}

function keyOf({ service, mode, type, protocol, frontend }: ServiceRow): string {
  return [service, mode, type, protocol, frontend].join('\0')
}
