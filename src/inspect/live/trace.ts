import { pause, systemClock } from '../../base/clock.ts'
import { count, oneLine } from '../../base/text.ts'
import { serviceNamesReader } from '../../cli/admin-client.ts'
import { EXIT_FINE, type Io, lent, writeWarnings } from '../../cli/io.ts'
import { ownCommand, readNamespace } from '../../cli/request.ts'
import { type FlagReader, type FlagSpec, flag, flags, quote } from '../../config/flag.ts'
import { ADMIN_SOCKET_FLAG } from '../../config/flags.ts'
import { INSTANCE_FLAG, readInstanceName, readSocketPath } from '../../config/own-flags.ts'
import { HERE, openNetfilter } from '../../daemon/open.ts'
import { createNftClient, type NftClient } from '../../kernel/nft/client.ts'
import { watchPacketTrace } from '../../kernel/nft/monitor.ts'
import { familyName, isOfService, type ServiceRow } from '../../modes/common/show.ts'
import { NFT_FAMILIES } from '../../modes/common/tables.ts'
import {
  CHAIN_START,
  type TraceMatch,
  type TracePlace,
  traceTableName,
  traceTables,
} from '../../modes/common/trace-table.ts'
import type { HeldMode } from '../../modes/mode.ts'
import { readModes } from '../../modes/registry.ts'
import {
  checkAddresses,
  given,
  hintAt,
  readFilterClient,
  readFilterTarget,
  resolvePeers,
  TARGETS,
} from '../peers.ts'
import { placeOf } from '../programmed.ts'
import { NAMES_IN, readServiceFlag } from '../service-flag.ts'
import {
  isRefused,
  PacketCollector,
  type PacketStory,
  storyLines,
  storyOf,
  type TracedPacket,
} from './packet-story.ts'
import { RuleNames } from './rule-names.ts'

const OUTPUTS = ['text', 'json'] as const
const COUNT = { min: 1, max: 100_000, fallback: 100 } as const
const RATE = { min: 1, max: 1_000, fallback: 20 } as const
const DURATION = { minMs: 1, maxMs: 3_600_000, fallbackMs: 30_000 } as const

/** The flags of all commands that print packets. */
export const PACKET_FLAGS = {
  service: flag(
    '--service NAMESPACE/NAME[:PORT]',
    'only packets to this Service, at all its addresses and node ports; a port is a name, as `kprobe dump` prints it',
    { namesService: true },
  ),
  namespace: NAMES_IN,
  from: flag(
    '--from CLIENT',
    'only packets from this client: an address, a CIDR, pod/NAMESPACE/NAME, node/NAME (this node), or outside: every address but those of pods, Services and this node',
  ),
  to: flag('--to TARGET', `only packets to this destination: ${TARGETS}`, { namesService: true }),
  count: flag(`--count N = ${COUNT.fallback}`, `end after N packets, 1 to ${COUNT.max}`),
  duration: flag('--duration DURATION = 30s', 'end after this time, at most 1h'),
  output: flag('-o, --output FORMAT = text', 'text, or json: one object a line', { choices: OUTPUTS }),
} as const satisfies Readonly<Record<string, FlagSpec>>

export const TRACE_FLAGS: readonly FlagSpec[] = [
  PACKET_FLAGS.service,
  PACKET_FLAGS.namespace,
  PACKET_FLAGS.from,
  PACKET_FLAGS.to,
  ...flags({
    '--reject-only': 'print only packets that are rejected, dropped or lost; --count counts only these',
    '--all-packets': 'trace all packets of TCP, not only those that open a connection',
  }),
  PACKET_FLAGS.count,
  PACKET_FLAGS.duration,
  flag(
    `--rate N = ${RATE.fallback}`,
    `maximum number of packets a second that the kernel traces in each address family, 1 to ${RATE.max}`,
  ),
  {
    ...ADMIN_SOCKET_FLAG,
    help: 'unix socket of the daemon, which knows which Service an IPVS object belongs to, and the addresses of names; unset: /run/kprobe/admin.sock, for addresses of names only',
  },
  INSTANCE_FLAG,
  PACKET_FLAGS.output,
]

/** The flags of all commands that print packets. */
export type PacketRequest = ReturnType<typeof readPacketRequest>

/** Reads the flags of PacketRequest. Reports errors to the reader. */
export function readPacketRequest(reader: FlagReader) {
  const namespace = readNamespace(reader)
  const service = readServiceFlag(reader, namespace, { mayHavePort: true })
  const from = given(reader, 'from', readFilterClient, namespace)
  const to = given(reader, 'to', readFilterTarget, namespace)
  checkAddresses(reader, from === undefined ? [] : [from], to)
  return {
    service,
    from,
    to,
    packets: reader.integer('count', COUNT),
    durationMs: reader.durationMs('duration', DURATION),
    output: reader.oneOf('output', OUTPUTS, 'text'),
    proxyName: readInstanceName(reader),
  }
}

type TraceRequest = ReturnType<typeof readTraceRequest>

/** Reads the flags. Reports errors to the reader. */
export function readTraceRequest(reader: FlagReader) {
  return {
    ...readPacketRequest(reader),
    rejectOnly: reader.bool('reject-only'),
    allPackets: reader.bool('all-packets'),
    perSecond: reader.integer('rate', RATE),
    adminSocket: readSocketPath(reader),
  }
}

/** Time between two checks of a command that prints packets whether it has to end. */
const LOOK_MS = 100

/** Waits until the time is up, `isOver` gives true, or the command is to end. */
export async function untilOver(io: Io, durationMs: number, isOver: () => boolean): Promise<void> {
  const endMs = systemClock.nowMs() + durationMs
  while (!isOver() && !io.signal.aborted && !io.outLost.aborted) {
    const leftMs = endMs - systemClock.nowMs()
    if (leftMs <= 0) return
    await pause(systemClock, Math.min(LOOK_MS, leftMs), io.signal)
  }
}

/** The packets that wait to be named and printed, at most; later ones are counted. */
const WAITING_MAX = 2_000

interface PrintCounts {
  readonly taken: number
  readonly printed: number
  /** Packets for which there was no room, because standard output is slow. */
  readonly dropped: number
}

/** Formats packets one after the other, and prints them in their order, up to a number. */
export class PacketPrinter<Packet> {
  readonly #max: number
  readonly #io: Io
  readonly #format: (packet: Packet) => Promise<string | undefined>
  readonly #waiting: Packet[] = []
  #work: Promise<void> | undefined
  #failure: { readonly error: unknown } | undefined
  #taken = 0
  #printed = 0
  #dropped = 0

  /** `format` gives undefined for a packet that is not printed. */
  constructor(max: number, io: Io, format: (packet: Packet) => Promise<string | undefined>) {
    this.#max = max
    this.#io = io
    this.#format = format
  }

  get counts(): PrintCounts {
    return { taken: this.#taken, printed: this.#printed, dropped: this.#dropped }
  }

  /** Nothing more will be printed: the number is reached, or formatting has failed. */
  get isFull(): boolean {
    return this.#printed >= this.#max || this.#failure !== undefined
  }

  take(packet: Packet): void {
    this.#taken++
    if (this.#waiting.length >= WAITING_MAX) {
      this.#dropped++
      return
    }
    this.#waiting.push(packet)
    this.#work ??= this.#print()
  }

  /** Resolves when all packets are printed. Throws what `format` throws. */
  async written(): Promise<void> {
    await this.#work
    if (this.#failure !== undefined) throw this.#failure.error
  }

  async #print(): Promise<void> {
    try {
      for (let packet = this.#waiting.shift(); packet !== undefined; packet = this.#waiting.shift()) {
        if (this.isFull) continue
        const text = await this.#format(packet)
        if (text === undefined) continue
        this.#printed++
        this.#io.out(text)
        await this.#io.outWritten()
      }
    } catch (error) {
      this.#failure = { error }
    } finally {
      this.#work = undefined
    }
  }
}

export const command = ownCommand({
  name: 'trace',
  description:
    'Traces real packets through the rules of all programs in nf_tables, live: which rule decided at each step, the\n' +
    'conntrack entry, and what happened to the packet. Needs no daemon. Ends after --duration or --count packets.',
  details: [
    'Example:',
    '  kprobe trace --service shop/cart',
    '  kprobe trace --from 203.0.113.0/24 --reject-only --duration 5m',
    '',
    'The command adds a table that starts the trace (`meta nftrace set 1`). The kernel removes the table when the command ends, also after SIGKILL (Linux 5.12; before, `kprobe cleanup` and the next start of the daemon remove it). The kernel selects the packets and limits their rate; every other packet meets only the rules that select. The last lines say what the limit left out and what the kernel lost.',
    'The trace sees rules of nftables mode, of iptables-nft, and of IPVS and userspace mode. It does not see legacy iptables, tc, XDP, eBPF and IPVS itself: a packet that ends there is reported as not seen again. --service stands for the addresses that the Service has at the start.',
  ],
  flags: TRACE_FLAGS,
  read: readTraceRequest,
  run: trace,
})

/** Gives the places of a Service in the kernel. Throws when it has none. */
function placesOf(held: readonly HeldMode[], service: string): readonly TracePlace[] {
  const rows = held.flatMap(mode => mode.rows)
  const places = rows
    .filter(row => isOfService([row.service], service))
    .flatMap(row => tracePlaceOf(row) ?? [])
  if (places.length > 0) return places
  if (held.length === 0)
    throw new Error(
      'the kernel holds no rules of kprobe, so that --service has no addresses; use --from or --to',
    )
  throw new Error(notHeldText(rows, service))
}

/** Says that no rule is for the Service, or for those of the namespace. */
export function notHeldText(rows: readonly Pick<ServiceRow, 'service'>[], service: string): string {
  if (service.endsWith('/')) return `the kernel serves no Service of the namespace ${service.slice(0, -1)}`
  const hint = hintAt(
    service,
    rows.map(row => row.service),
  )
  return `the kernel holds nothing for the Service ${quote(service)}${hint}`
}

function tracePlaceOf(row: ServiceRow): TracePlace | undefined {
  const place = placeOf(row)
  const { protocol } = row
  if (place === undefined || (protocol !== 'TCP' && protocol !== 'UDP' && protocol !== 'SCTP'))
    return undefined
  return { protocol, ip: place.ip, family: familyName(place.family), port: place.port }
}

async function trace(request: TraceRequest, io: Io): Promise<number> {
  const { proxyName: proxy, adminSocket } = request
  const readNames = serviceNamesReader(adminSocket)
  const what = { ...HERE, families: NFT_FAMILIES, proxyName: proxy }
  const read = async () => {
    const serviceNames = await readNames()
    return (await readModes(what, () => serviceNames)).held
  }
  const names = new RuleNames({ clock: systemClock, proxy, read })
  await lent(names, async () => {
    const held = await names.load()
    const places = request.service === '' ? undefined : placesOf(held, request.service)
    const match = { ...request, ...(await resolvePeers(request)), places }
    await lent(new TraceTables(), tables => followPackets(request, io, { names, tables, match }))
  })
  return EXIT_FINE
}

/** The tables that start the trace, while they are open. */
class TraceTables {
  readonly name: string
  readonly #client: NftClient
  #isOwned = true
  #isClosed = false

  constructor() {
    const transport = openNetfilter()
    this.#client = createNftClient({ transport, clock: systemClock })
    this.name = traceTableName(transport.portId)
  }

  /** Throws when the kernel rejects the tables. */
  async write(match: TraceMatch): Promise<void> {
    let first: Error | undefined
    // Kernels before 5.12 reject a table with an owner.
    for (const owned of [true, false]) {
      const { outcome, failures } = await this.#client.commit(traceTables(this.name, match, { owned }))
      this.#isOwned = owned
      if (outcome === 'committed') return
      first ??= failures[0]?.error ?? new Error(`cannot start the trace: the kernel's answer: ${outcome}`)
    }
    throw first
  }

  /** Counts the packets that matched, traced or not; undefined where the tables are gone. */
  async matched(): Promise<bigint | undefined> {
    let packets: bigint | undefined
    for (const family of NFT_FAMILIES) {
      const rules = await this.#client.ruleCounters({ family, table: this.name, chain: CHAIN_START })
      for (const rule of rules) packets = (packets ?? 0n) + rule.packets
    }
    return packets
  }

  /** Removes the tables; the kernel does it with the socket where it can. */
  async close(): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
    if (!this.#isOwned)
      for (const family of NFT_FAMILIES)
        await this.#client.commit([{ verb: 'delete-table', family, table: this.name }])
    await this.#client.close()
  }
}

interface Following {
  readonly names: RuleNames
  readonly tables: TraceTables
  readonly match: TraceMatch
}

/**
 * Prints packets until the time or their number is reached, or the command is to end. Then reports what is missing.
 * It listens before the tables are written: no packet that they match is missed.
 */
async function followPackets(
  request: TraceRequest,
  io: Io,
  { names, tables, match }: Following,
): Promise<void> {
  const makeStory = storyOfPacket(names)
  const printer = new PacketPrinter<TracedPacket>(request.packets, io, async packet => {
    const story = await makeStory(packet)
    if (request.rejectOnly && !isRefused(story.outcome)) return undefined
    return storyText(story, request.output)
  })
  const collector = new PacketCollector({
    clock: systemClock,
    wallMs: () => Date.now(),
    table: tables.name,
    onPacket: packet => printer.take(packet),
  })
  let lost = 0
  const transport = openNetfilter()
  const stop = watchPacketTrace({
    transport,
    onEvent: event => collector.take(event),
    onLost: () => {
      lost++
      collector.lost()
    },
  })
  try {
    await tables.write(match)
    names.acceptGeneration()
    await untilOver(io, request.durationMs, () => {
      collector.sweep()
      return printer.isFull
    })
    const matched = await tables.matched()
    await tables.close()
    stop()
    collector.sweep({ now: true })
    await printer.written()
    await writeWarnings(endTexts(request, { ...printer.counts, matched, lost }), io)
  } finally {
    stop()
    await transport.close()
  }
}

function storyOfPacket(names: RuleNames): (packet: TracedPacket) => Promise<PacketStory> {
  return async packet => {
    const steps = await names.steps(packet)
    const { first } = packet
    const tracked = names.tracked(first)
    return storyOf(packet, { steps, row: names.rowAt(first), tracked, interfaceName: names.interfaceName })
  }
}

function storyText(story: PacketStory, output: TraceRequest['output']): string {
  if (output === 'json') return `${JSON.stringify(story)}\n`
  return `${storyLines(story)
    .map(line => `${oneLine(line)}\n`)
    .join('')}\n`
}

interface Ending extends PrintCounts {
  readonly matched: bigint | undefined
  readonly lost: number
}

/** Names what the output does not show. */
function endTexts(
  { perSecond, rejectOnly, packets }: TraceRequest,
  { taken: traced, printed, dropped, matched, lost }: Ending,
): readonly string[] {
  if (matched === undefined)
    return ['kprobe trace: the rules that start the trace were removed meanwhile; run the command again']
  if (matched === 0n)
    return ['no packet matched; packets of established connections do not match without --all-packets']
  const summary = `traced ${count(traced, 'packet')} of ${matched} that matched, printed ${printed}`
  const untraced = matched - BigInt(traced)
  return [
    printed >= packets ? `${summary}; --count ${packets} is reached` : summary,
    ...(untraced > 0n && printed < packets
      ? [`the rate limit left out the others: --rate ${perSecond} a second in each address family`]
      : []),
    ...(rejectOnly && printed === 0 ? ['none of them was rejected, dropped or lost'] : []),
    ...(lost > 0
      ? [`the kernel dropped messages ${count(lost, 'time')}: packets and steps are missing; lower --rate`]
      : []),
    ...(dropped > 0 ? [`${count(dropped, 'packet')} not printed: standard output is too slow`] : []),
  ]
}
