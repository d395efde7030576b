import { systemClock } from '../../base/clock.ts'
import { count, oneLine } from '../../base/text.ts'
import { EXIT_FINE, type Io, lent, writeWarnings } from '../../cli/io.ts'
import { ownCommand } from '../../cli/request.ts'
import { type FlagReader, type FlagSpec, flag, flags } from '../../config/flag.ts'
import { ADMIN_SOCKET_FLAG } from '../../config/flags.ts'
import { defaultAdminSocket, INSTANCE_FLAG } from '../../config/own-flags.ts'
import { HERE, openNetfilter } from '../../daemon/open.ts'
import { createNftClient, type NftClient } from '../../kernel/nft/client.ts'
import { watchPacketTrace } from '../../kernel/nft/monitor.ts'
import { isOfService, type ServiceRow } from '../../modes/common/show.ts'
import { familyName, NFT_FAMILIES } from '../../modes/common/tables.ts'
import {
  CHAIN_START,
  type TraceMatch,
  type TracePlace,
  traceTableName,
  traceTables,
} from '../../modes/common/trace-table.ts'
import type { HeldMode } from '../../modes/mode.ts'
import { readModes } from '../../modes/registry.ts'
import { serviceNamesReader } from '../admin-client.ts'
import { paletteOf } from '../palette.ts'
import { resolvePeers } from '../peers.ts'
import { placeOf } from '../programmed.ts'
import { followFor } from './follow.ts'
import { PacketCollector, type TracedPacket } from './packet-collector.ts'
import { PacketPrinter, type PrintCounts } from './packet-printer.ts'
import { notHeldText, PACKET_FLAGS, readPacketRequest } from './packet-request.ts'
import { isRefused, type PacketStory, storyLines, storyOf } from './packet-story.ts'
import { RuleNames } from './rule-names.ts'

const RATE = { min: 1, max: 1_000, fallback: 20 } as const
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

type TraceRequest = ReturnType<typeof readTraceRequest>

export function readTraceRequest(reader: FlagReader) {
  return {
    ...readPacketRequest(reader),
    rejectOnly: reader.bool('reject-only'),
    allPackets: reader.bool('all-packets'),
    perSecond: reader.integer('rate', RATE),
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
    'The command adds a table that starts the trace (`meta nftrace set 1`). The kernel removes the table when the command ends, also after SIGKILL (Linux 5.12). The kernel selects the packets and limits their rate; every other packet meets only the rules that select. The last lines say what the limit left out and what the kernel lost.',
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
  const socket = adminSocket || defaultAdminSocket(proxy)
  const names = new RuleNames({ clock: systemClock, proxy, read, socket })
  await lent(names, async () => {
    const held = await names.load()
    const places = request.service === '' ? undefined : placesOf(held, request.service)
    const { from, to } = await resolvePeers(request)
    const match = { ...request, from: from[0], to, places }
    await lent(new TraceTables(), tables => followPackets(request, io, { names, tables, match }))
  })
  return EXIT_FINE
}

class TraceTables {
  readonly name: string
  readonly #client: NftClient
  #isClosed = false

  constructor() {
    const transport = openNetfilter()
    this.#client = createNftClient({ transport, clock: systemClock })
    this.name = traceTableName(transport.portId)
  }

  /** Throws when the kernel rejects the tables. */
  async write(match: TraceMatch): Promise<void> {
    const { outcome, failures } = await this.#client.commit(traceTables(this.name, match))
    if (outcome !== 'committed')
      throw failures[0]?.error ?? new Error(`cannot start the trace: the kernel's answer: ${outcome}`)
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

  /** Closes the socket, with which the kernel removes the tables. */
  async close(): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
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
    return storyText(story, request.output, io)
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
    await followFor(io, {
      durationMs: request.durationMs,
      done: printer.done,
      // Time between two looks for packets that were not seen again.
      timers: [[100, () => collector.sweep()]],
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
    const { interfaceName, pods } = names
    return storyOf(packet, { steps, row: names.rowAt(first), tracked, interfaceName, pods })
  }
}

function storyText(story: PacketStory, output: TraceRequest['output'], io: Pick<Io, 'color'>): string {
  if (output === 'json') return `${JSON.stringify(story)}\n`
  const palette = paletteOf(io)
  const paint = palette[isRefused(story.outcome) ? 'bad' : 'good']
  const [first = '', ...steps] = storyLines(story).map(oneLine)
  return `${[paint(first), ...steps.map(palette.dim)].join('\n')}\n\n`
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
    return ['kprobe trace: the rules that start the trace were removed during the run; run the command again']
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
