import type { Ip } from '../../src/base/ip.ts'
import type { DynamicElements } from '../../src/proof/evaluate/single.ts'
import type { TracePacket, Tracer } from '../../src/proof/evaluate/trace.ts'
import { drawsToMeet } from './draws.ts'
import { addressText, endpointText, parseEndpoint } from './lab/address.ts'
import type { Flow, Outcome } from './lab/lab.ts'
import { PROTOCOL_NUMBER } from './lab/probe.ts'
import { ip } from './pipeline.ts'
import { type Expected, LOCAL_IPS, type PacketRow } from './scenario.ts'

/** Endpoints that sticky labels have come to mean in a scenario so far. */
export type Labels = Map<string, string>

/** A row with what is expected, or what happened, in the words of a packet table. */
export function expectedLine(row: PacketRow): string {
  return line(row, words(row.expected))
}

function words(expected: Expected): string {
  if (expected.verdict !== 'DNAT') return expected.verdict
  const { endpoints, source, sticky } = expected
  return `${sticky === undefined ? '' : `always the same (${sticky}) of `}${endpoints.join(' ')} ${source}`
}

function line({ text }: PacketRow, outcome: string): string {
  return `${text.replace(/ -> .*/, '')} -> ${outcome}`
}

/** Where connections arrived, and with which of the possible sources. */
interface Arrival {
  readonly endpoint: string
  readonly masqueraded: boolean
}

function dnatWords(row: PacketRow, arrivals: readonly Arrival[], labels: Labels): string {
  const { expected } = row
  const reached = [...new Set(arrivals.map(({ endpoint }) => endpoint))].sort()
  const source = sourceWord(row, arrivals)
  if (expected.verdict !== 'DNAT' || expected.sticky === undefined) return `${reached.join(' ')} ${source}`
  const [only = ''] = reached
  const meant = labels.get(expected.sticky) ?? only
  labels.set(expected.sticky, meant)
  const asExpected = reached.length === 1 && only === meant && expected.endpoints.includes(only)
  if (asExpected && source === expected.source) return words(expected)
  return `${reached.join(' ')} ${source}, and ${expected.sticky} is ${meant}`
}

/** Hairpin only where the row says so and both kinds of endpoints behave: else kept, masqueraded or mixed. */
function sourceWord(row: PacketRow, arrivals: readonly Arrival[]): string {
  const isHairpin = ({ endpoint, masqueraded }: Arrival) =>
    (parseEndpoint(endpoint).address === row.source) === masqueraded
  if (row.expected.verdict === 'DNAT' && row.expected.source === 'hairpin') {
    return arrivals.every(isHairpin) ? 'hairpin' : `not hairpin: ${JSON.stringify(arrivals)}`
  }
  const kinds = new Set(arrivals.map(({ masqueraded }) => (masqueraded ? 'masqueraded' : 'kept')))
  return [...kinds].join(' or ')
}

// ---- in the laboratory

/** Enough connections that each endpoint which can be reached is met: see draws.ts. */
export function flowOf(row: PacketRow): Flow {
  return flow(row, triesFor(endpointsOf(row)))
}

/** As flowOf, where a packet that should reach nobody may well reach one of several endpoints. */
export function flowAnywhere(row: PacketRow): Flow {
  return flow(row, triesFor(Math.max(SEVERAL, endpointsOf(row))))
}

const SEVERAL = 2

/** Where endpoints take turns, each of them comes soon. */
export function flowInTurns(row: PacketRow): Flow {
  return flow(row, endpointsOf(row) * 2 + 2)
}

function endpointsOf({ expected }: PacketRow): number {
  return expected.verdict === 'DNAT' ? expected.endpoints.length : 0
}

function flow({ from, source, protocol, destination, port }: PacketRow, tries: number): Flow {
  return { from, source, protocol, destination, port, tries }
}

function triesFor(endpoints: number): number {
  if (endpoints === 0) return 6
  return endpoints === 1 ? 8 : drawsToMeet(endpoints)
}

export function seenLine(row: PacketRow, outcome: Outcome, labels: Labels): string {
  const { verdict, lost, badChecksums, sourcesAt } = outcome
  if (badChecksums > 0) return line(row, `${badChecksums} wrong checksums`)
  if (verdict === 'MIXED')
    return line(row, `MIXED: ${lost} lost of ${outcome.sent}, ${[...outcome.endpoints].join(' ')}`)
  if (verdict !== 'DNAT') return line(row, row.expected.verdict === 'NOWHERE' ? 'NOWHERE' : verdict)
  const arrivals = [...sourcesAt].flatMap(([endpoint, sources]) =>
    [...sources].map(source => ({ endpoint, masqueraded: source !== row.source })),
  )
  const strangers = [...outcome.sources].filter(
    source => source !== row.source && !LOCAL_IPS.includes(source),
  )
  if (strangers.length > 0) return line(row, `masqueraded as ${strangers.join(' ')}, which is not the node`)
  return line(row, dnatWords(row, arrivals, labels))
}

// ---- in the tracer

const INTERFACES = { outside: 'ext0', pod: 'pod0' } as const
/** Somebody else's mark, without the bit that is ours: it must leave as it came. */
const MARK = 0xdeadb3ef

export interface Tracing {
  readonly tracer: Tracer
  readonly labels: Labels
  readonly random: (modulus: number) => number
  dynamic: DynamicElements
}

export function tracedLine(row: PacketRow, tracing: Tracing): string {
  const packet = packetOf(row)
  const isSticky = row.expected.verdict === 'DNAT' && row.expected.sticky !== undefined
  const traces = isSticky ? sequence(packet, tracing) : ways(packet, tracing)
  const verdicts = [...new Set(traces.map(({ verdict }) => verdict))]
  if (verdicts.length !== 1) return line(row, `MIXED: ${verdicts.join(' ')}`)
  if (verdicts[0] !== 'dnat')
    return line(row, verdicts[0] === 'accept' ? 'PASS' : String(verdicts[0]).toUpperCase())
  if (traces.some(({ mark }) => mark !== MARK)) return line(row, 'the mark of somebody else is changed')
  const arrivals = traces.map(({ destination, masquerade }) => ({
    endpoint: endpointOf(destination),
    masqueraded: masquerade,
  }))
  return line(row, dnatWords(row, arrivals, tracing.labels))
}

const STICKY_TRIES = 10

function sequence(packet: TracePacket, tracing: Tracing) {
  return Array.from({ length: STICKY_TRIES }, () => {
    const trace = tracing.tracer.trace(packet, {
      localIps: LOCAL,
      random: tracing.random,
      dynamic: tracing.dynamic,
    })
    tracing.dynamic = trace.dynamic
    return trace
  })
}

function ways(packet: TracePacket, { tracer, dynamic }: Tracing) {
  return tracer.ways(packet, { localIps: LOCAL, dynamic }).map(({ trace }) => trace)
}

const LOCAL: ReadonlySet<Ip> = new Set(LOCAL_IPS.map(ip))

function packetOf(row: PacketRow): TracePacket {
  const packet = {
    protocol: PROTOCOL_NUMBER[row.protocol],
    source: ip(row.source),
    sourcePort: 40_000,
    destination: ip(row.destination),
    destinationPort: row.port,
    mark: MARK,
  }
  if (row.from === 'node') return { ...packet, origin: 'process' }
  return { ...packet, origin: 'interface', interfaceName: INTERFACES[row.from] }
}

function endpointOf({ ip, port }: { readonly ip: Ip; readonly port: number }): string {
  return endpointText(addressText(Buffer.from(ip, 'latin1')), port)
}
