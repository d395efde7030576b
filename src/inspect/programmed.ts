import { systemClock } from '../base/clock.ts'
import { errorOf, failureText } from '../base/errors.ts'
import { type Family, familyOf, formatIpPort, type Ip, parseCidr, parseIp } from '../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../base/ip-packet.ts'
import { sortedRows } from '../cli/service-rows.ts'
import type { Config } from '../config/config.ts'
import { HERE, openSockDiag } from '../daemon/open.ts'
import type { NftFamily } from '../kernel/nft/state.ts'
import { type Listener, listListeners } from '../kernel/socket/listeners.ts'
import { isKubeProxyTable, outlinesOf } from '../modes/common/kube-proxy.ts'
import { type Hook, isOfService, NOT_REACHED, type ReadRules, type ServiceRow } from '../modes/common/show.ts'
import type { Finding, HeldMode } from '../modes/mode.ts'
import { readModes } from '../modes/registry.ts'
import { Connection } from '../netlink/connection.ts'
import type { Trace, TracePacket, Tracer } from '../proof/evaluate/trace.ts'
import { lazyTracer } from './tracer.ts'

/** One mode whose rules the kernel holds, with the rows that a command prints. */
export interface ProgrammedMode extends Pick<HeldMode, 'mode' | 'rules' | 'damage'> {
  /** Rows that packets do not reach are marked. */
  readonly rows: readonly ServiceRow[]
}

/**
 * Lists every mode that has rules in the kernel, with the rows of `service`, or of all Services if `service` is empty.
 * Pure.
 */
export function programmedModes(held: readonly HeldMode[], service = ''): readonly ProgrammedMode[] {
  return held.map(({ mode, rows: all, rules, damage }) => {
    const wanted = all.filter(row => isOfService([row.service], service))
    const rows = sortedRows(withReach(wanted, rules, all)).map(row => ({ ...row, mode }))
    return { mode, rows, rules, damage }
  })
}

/** Tests whether a process accepts connections at an `ADDRESS:PORT` that rules lead to. */
export type IsListening = (protocol: string, place: string) => boolean

const LIST_TRIES = 5

/** Reads which processes listen on this node: a false alarm would be worse than none, so that all do where it is not known. */
export function readListening(list: typeof listListeners = listListeners): IsListening {
  const listeners = readListeners(list)
  const places = new Set(listeners?.map(({ protocol, ip, port }) => `${protocol} ${formatIpPort(ip, port)}`))
  return (protocol, place) => listeners === undefined || places.has(`${protocol} ${place}`)
}

/** Lists the listeners; undefined where the kernel does not report them, or where the list changed during every try. */
function readListeners(list: typeof listListeners = listListeners): readonly Listener[] | undefined {
  for (let tries = 0; tries < LIST_TRIES; tries++) {
    const connection = new Connection({ transport: openSockDiag(), clock: systemClock })
    try {
      let isKnown = true
      const listeners = list(connection, () => {
        isKnown = false
      })
      return isKnown ? listeners : undefined
    } catch {
      // The next try reads the whole list again.
    } finally {
      void connection.close()
    }
  }
  return undefined
}

/** Says that no process relays what the rules lead to `places`; undefined if one does. */
export function whyNotRelayed(
  protocol: string,
  places: readonly (string | undefined)[],
  isListening: IsListening,
): string | undefined {
  const silent = places.find(place => place !== undefined && !isListening(protocol, place))
  return silent === undefined ? undefined : `no process listens at ${silent}`
}

export function isRelayed({ listener, insideListener }: ServiceRow): boolean {
  return (listener ?? insideListener) !== undefined
}

/**
 * Marks the rows of a mode that relays whose listener is gone: the daemon ended, and its rules stayed. Listeners come and
 * go with Services and endpoints: call it right after the rules were read, before the packets are followed.
 */
export function withRelays(
  modes: readonly HeldMode[],
  read: () => IsListening = readListening,
): readonly HeldMode[] {
  if (!modes.some(({ rows }) => rows.some(isRelayed))) return modes
  const isListening = read()
  return modes.map(mode => ({
    ...mode,
    rows: mode.rows.map(row => {
      const why = whyNotRelayed(row.protocol, [row.listener, row.insideListener], isListening)
      return why === undefined || row.problem !== undefined
        ? row
        : { ...row, problem: `${NOT_RELAYED}: ${why}` }
    }),
  }))
}

/** Gives the first problem, and the number of affected rows; undefined if there is none. */
export function damageText(modes: readonly ProgrammedMode[]): string | undefined {
  const rows = modes.flatMap(mode => mode.rows)
  const hurt = rows.filter(({ problem }) => problem !== undefined)
  const [first] = [
    ...modes.flatMap(({ mode, damage }) => damage.map(text => `${mode} mode: ${text}`)),
    ...hurt.map(({ service, frontend, problem }) => `${service} at ${frontend}: ${problem}`),
  ]
  if (first === undefined) return undefined
  if (hurt.length === 0) return `${first}; packets reach all ${rows.length} frontends that the kernel holds`
  return `${first}; ${hurt.length} of ${rows.length} frontends are not reached or incomplete`
}

export function remedyText(modes: readonly ProgrammedMode[]): string {
  const isRest = ({ rows, damage }: ProgrammedMode) =>
    damage.length > 0 || rows.some(({ problem }) => problem !== undefined && !problem.startsWith(NOT_RELAYED))
  return modes.some(isRest)
    ? '`kprobe verify` names what differs'
    : 'start kprobe again, or remove its rules with `kprobe cleanup`'
}

export interface RuleFindings {
  readonly findings: readonly Finding[]
  readonly modes: readonly string[]
}

/** Checks whether packets reach the Services that the kernel holds rules for. No findings if it holds none. */
export async function damageFindings(
  { serviceProxyName: proxyName }: Config,
  families: readonly NftFamily[],
): Promise<RuleFindings> {
  let modes: readonly ProgrammedMode[]
  try {
    const { held } = await readModes({ ...HERE, families, proxyName })
    modes = programmedModes(withRelays(held.filter(mode => !isOfKubeProxy(mode))))
  } catch (error) {
    const text = `cannot be read: ${failureText(error)}`
    return { findings: [{ kind: 'warning', subject: 'rules of kprobe in the kernel', text }], modes: [] }
  }
  if (modes.length === 0) return { findings: [], modes: [] }
  const names = modes.map(({ mode }) => mode)
  const damage = damageText(modes)
  const frontends = modes.reduce((sum, { rows }) => sum + rows.length, 0)
  const kind = damage === undefined ? 'ok' : 'damaged'
  const text = damage ?? `packets reach all ${frontends} frontends that the kernel holds`
  return { findings: [{ kind, subject: `rules of ${names.join(' and ')} mode`, text }], modes: names }
}

/** Tests whether kube-proxy wrote all tables of the mode: kprobe's tables have the same names. */
function isOfKubeProxy({ tables }: HeldMode): boolean {
  return tables.length > 0 && tables.every(table => isKubeProxyTable(outlinesOf(table)))
}

const NOT_RELAYED = 'NOT RELAYED'

const HOOKS: readonly Hook[] = ['prerouting', 'output']

/**
 * Traces one packet from outside and one from the node through the rules for each row, and marks the rows that a packet
 * does not reach. `all` are the rows of the same rules: an address of one Service can hide a node port of another.
 */
function withReach(
  rows: readonly ServiceRow[],
  rules: ReadRules,
  all: readonly ServiceRow[] = rows,
): readonly ServiceRow[] {
  const caught = new Set(all.filter(({ type }) => type !== 'NodePort').map(placeKey))
  const nodePortIps = all
    .filter(({ type }) => type === 'NodePort')
    .flatMap(row => placeOf(row)?.ip ?? [])
    .filter((ip, index, list) => list.indexOf(ip) === index)
  const localIps = new Set([...rules.localIps, ...Object.values(NODE), ...nodePortIps])
  const tracer = lazyTracer(rules.traced)
  return rows.map(row => {
    const isHidden = row.type === 'NodePort' && caught.has(placeKey(row))
    const problem =
      isHidden || row.type === 'private' ? undefined : whyNotReached(row, { rules, tracer, localIps })
    return problem === undefined ? row : { ...row, problem }
  })
}

function placeKey({ protocol, frontend }: ServiceRow): string {
  return `${protocol} ${frontend}`
}

function whyNotReached(row: ServiceRow, reading: Omit<Question, 'place'>): string | undefined {
  const place = placeOf(row)
  if (row.problem?.startsWith(NOT_REACHED) === true || place === undefined) return row.problem
  const failed = HOOKS.flatMap(hook => {
    const reason = whyNotFrom(row, hook, { ...reading, place })
    return reason === undefined ? [] : [{ hook, reason }]
  })
  const [first, second] = failed
  if (first === undefined) return undefined
  if (second?.reason === first.reason) return `${NOT_REACHED} from prerouting and output: ${first.reason}`
  return `${NOT_REACHED} ${failed.map(({ hook, reason }) => `from ${hook}: ${reason}`).join('; ')}`
}

interface Place {
  /** Undefined for every address of the node. */
  readonly ip: Ip | undefined
  readonly family: Family
  readonly port: number
}

/** Gives where a row catches packets; undefined for a row without an address. */
export function placeOf({ frontend }: ServiceRow): Place | undefined {
  const [, bracketed, plain = '', digits = ''] = /^(?:\[(.*)\]|([^:]*)):(\d+)$/.exec(frontend) ?? []
  if (digits === '') return undefined
  const text = bracketed ?? plain
  const port = Number(digits)
  if (text === '*') return { ip: undefined, family: bracketed === undefined ? 'IPv4' : 'IPv6', port }
  const ip = parseIp(text)
  return ip === undefined ? undefined : { ip, family: familyOf(ip), port }
}

/** Addresses for documentation: one stands for every address of the node, one for a client outside the cluster. */
const NODE: Readonly<Record<Family, Ip>> = { IPv4: '\xc0\0\x02\xfd', IPv6: documentation('\xfd') }
export const OUTSIDE_CLIENT: Readonly<Record<Family, Ip>> = {
  IPv4: '\xcb\0\x71\xfd',
  IPv6: documentation('\xfc'),
}
/** No rule matches the client's port, so that any port will do. */
export const CLIENT_PORT = 40_000

function documentation(last: string): Ip {
  return `\x20\x01\x0d\xb8${'\0'.repeat(11)}${last}`
}

interface Question {
  readonly place: Place
  readonly rules: ReadRules
  readonly tracer: Tracer
  readonly localIps: ReadonlySet<Ip>
}

function whyNotFrom(
  row: ServiceRow,
  hook: Hook,
  { place, rules, tracer, localIps }: Question,
): string | undefined {
  const { family } = place
  const isOwn = hook === 'output'
  const packet: TracePacket = {
    origin: isOwn ? 'process' : 'interface',
    protocol: PROTOCOL_NUMBERS[protocolOf(row)],
    // The packet of a process has an allowed source, too: another source would not show whether the rules exist.
    source: allowedClient(row) ?? (isOwn ? NODE : OUTSIDE_CLIENT)[family],
    sourcePort: CLIENT_PORT,
    destination: place.ip ?? NODE[family],
    destinationPort: place.port,
  }
  try {
    const trace = tracer.trace(packet, { localIps, random: () => 0 })
    if (isAsListed(row, trace, { isOwn, rules })) return undefined
    return rules.obstacle(family, hook) ?? outcomeText(trace)
  } catch (error) {
    return `the rules cannot be followed: ${errorOf(error).message}`
  }
}

function protocolOf({ protocol }: ServiceRow): keyof typeof PROTOCOL_NUMBERS {
  return protocol === 'UDP' || protocol === 'SCTP' ? protocol : 'TCP'
}

function allowedClient({ allowedFrom = [] }: ServiceRow): Ip | undefined {
  const [first = ''] = allowedFrom
  return parseIp(first) ?? parseCidr(first)?.ip
}

function isAsListed(
  row: ServiceRow,
  { verdict, destination }: Trace,
  { isOwn, rules }: { readonly isOwn: boolean; readonly rules: ReadRules },
): boolean {
  const { action, endpoints, localEndpoints, allowedFrom, listener, insideListener } = row
  switch (verdict) {
    case 'dnat': {
      const to = formatIpPort(destination.ip, destination.port)
      return (
        to === listener || to === insideListener || endpoints.includes(to) || !!localEndpoints?.includes(to)
      )
    }
    case 'drop':
      return action.includes('drop') || isEmpty(row, localEndpoints ?? endpoints) || allowedFrom?.length === 0
    case 'reject':
      return action.includes('reject') || isEmpty(row, endpoints)
    case 'accept':
      if (isPastRules(row)) return true
      return isOwn && rules.rejectsOutsideOnly === true && row.type !== 'ClusterIP' && action !== 'balance'
  }
}

/** Tests whether clients reach the listener itself: no rule leads to it. */
function isPastRules({ frontend, listener }: ServiceRow): boolean {
  return listener !== undefined && listener === frontend
}

function isEmpty({ action }: ServiceRow, list: readonly string[]): boolean {
  return action === 'balance' && list.length === 0
}

function outcomeText({ verdict, destination, steps }: Trace): string {
  // Every packet passes these chains.
  const last = steps.findLast(({ chain }) => !/postrouting$/i.test(chain))
  const after = last === undefined ? '' : ` after ${last.chain}, rule ${last.rule}`
  switch (verdict) {
    case 'dnat':
      return `the packet goes to ${formatIpPort(destination.ip, destination.port)}, which is not an endpoint of the Service`
    case 'drop':
      return `the packet is dropped${after}`
    case 'reject':
      return `the packet is rejected${after}`
    case 'accept':
      return `the packet passes unchanged${after}`
  }
}
