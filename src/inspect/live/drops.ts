import { systemClock } from '../../base/clock.ts'
import { codeOf } from '../../base/errors.ts'
import { isSelected } from '../../base/ip.ts'
import { count, oneLine } from '../../base/text.ts'
import { EXIT_FINE, type Io, lent, writeWarnings } from '../../cli/io.ts'
import { ownCommand } from '../../cli/request.ts'
import { type FlagSpec, flag } from '../../config/flag.ts'
import { ADMIN_SOCKET_FLAG } from '../../config/flags.ts'
import { defaultAdminSocket, INSTANCE_FLAG } from '../../config/own-flags.ts'
import { HERE, openNetfilter, withNetfilter } from '../../daemon/open.ts'
import { type LoggedPacket, readLog } from '../../kernel/nflog/reader.ts'
import { listHandles } from '../../kernel/nft/list.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import {
  isLogging,
  isRejecting,
  logGroupOf,
  loggedReason,
  nameOfPrefix,
  reasonText,
  refusingRules,
  type VerdictReason,
} from '../../modes/common/logs.ts'
import { isOfService } from '../../modes/common/show.ts'
import { NFT_FAMILIES } from '../../modes/common/tables.ts'
import type { HeldMode } from '../../modes/mode.ts'
import { type ReadModes, readModes } from '../../modes/registry.ts'
import { logGroupOfRule } from '../../modes/xt-common/rules-parts.ts'
import { paletteOf } from '../palette.ts'
import { isTarget, type Peers, resolvePeers } from '../peers.ts'
import { followFor } from './follow.ts'
import { PacketPrinter } from './packet-printer.ts'
import { notHeldText, PACKET_FLAGS, type PacketRequest, readPacketRequest } from './packet-request.ts'
import { factsOf, factsText, type PacketFacts } from './packet-story.ts'
import { RuleNames } from './rule-names.ts'

const FLAGS: readonly FlagSpec[] = [
  PACKET_FLAGS.service,
  PACKET_FLAGS.namespace,
  PACKET_FLAGS.from,
  PACKET_FLAGS.to,
  flag('-f, --follow', 'run until Ctrl-C; --count and --duration have no effect'),
  PACKET_FLAGS.count,
  PACKET_FLAGS.duration,
  {
    ...ADMIN_SOCKET_FLAG,
    help: 'unix socket of the daemon, which knows the addresses of names; unset: /run/kprobe/admin.sock',
  },
  INSTANCE_FLAG,
  PACKET_FLAGS.output,
]

export const command = ownCommand({
  name: 'drops',
  description:
    "Prints the packets that kprobe's rules reject or drop, live: Service, client, and the reason. Needs the daemon's\n" +
    'flag --log-rejects=GROUP, in nftables or iptables mode. Ends after --duration or --count packets.',
  details: [
    'Example:',
    '  kprobe drops --follow',
    '  kprobe drops --service shop/cart -o json --duration 5m',
    '  kprobe drops --from outside --to 10.96.1.1:81',
    '',
    'The kernel logs at most 20 packets a second for each rule that rejects or drops. The last lines count the packets that it skips, and those that it lost because the command was too slow. One process can read an NFLOG group at a time.',
    'Without the flag, in the other modes, and for packets that other programs drop: `kprobe trace --reject-only`.',
  ],
  flags: FLAGS,
  read: reader => ({ ...readPacketRequest(reader), follow: reader.bool('follow') }),
  async run(request, io) {
    await drops({ ...request, ...(await resolvePeers(request)) }, io)
    return EXIT_FINE
  },
})

interface DropsRequest extends Omit<PacketRequest, 'from' | 'to'>, Peers {
  readonly follow: boolean
}

async function drops(request: DropsRequest, io: Io): Promise<void> {
  const what = { ...HERE, families: NFT_FAMILIES, proxyName: request.proxyName }
  let found = await readModes(what)
  const read = async () => {
    found = await readModes(what)
    return found.held
  }
  const { adminSocket, proxyName: proxy } = request
  const socket = adminSocket || defaultAdminSocket(proxy)
  const names = new RuleNames({ clock: systemClock, proxy, read, socket })
  await lent(names, async () => {
    await names.load()
    const { group, chains } = loggingOf(found)
    const rows = found.held.flatMap(mode => mode.rows)
    const isHeld =
      request.service === '' || rows.some(({ service }) => isOfService([service], request.service))
    if (!isHeld && found.held.length > 0) throw new Error(notHeldText(rows, request.service))
    if (group === undefined) throw new Error(whyNoLog(found.held))
    await follow(request, io, { names, group, chains })
  })
}

interface LoggingChain {
  readonly family: NftFamily
  readonly table: string
  readonly chain: string
}

/** Finds the rules that log, in our own tables and in those of iptables. */
function loggingOf({ held, chains }: ReadModes) {
  const tables = held.flatMap(each => each.tables)
  const own = tables.flatMap(({ family, name: table, chains }) =>
    [...chains.values()]
      .filter(({ rules }) => rules.some(isLogging))
      .map(({ name: chain }): LoggingChain => ({ family, table, chain })),
  )
  const logging = chains
    .filter(({ ours }) => ours)
    .flatMap(({ family, table, name: chain, rules }) => {
      const group = rules.map(({ rule }) => logGroupOfRule(rule)).find(each => each !== undefined)
      return group === undefined ? [] : [{ group, family, table, chain }]
    })
  return { group: logGroupOf(tables) ?? logging[0]?.group, chains: [...own, ...logging] }
}

function whyNoLog(held: readonly HeldMode[]): string {
  const modes = held.map(({ mode }) => mode).join(' and ')
  const here =
    held.length === 0 ? 'the kernel holds no rules of kprobe' : `rules of ${modes} mode log nothing`
  return `${here}; start the daemon with --log-rejects=GROUP in nftables or iptables mode, or use \`kprobe trace --reject-only\``
}

interface Logging {
  readonly names: RuleNames
  readonly group: number
  readonly chains: readonly LoggingChain[]
}

/** The kernel answers EPERM where another socket reads the group. CAP_NET_ADMIN is there: the rules were read before. */
function readGroup(options: Parameters<typeof readLog>[0]): () => void {
  try {
    return readLog(options)
  } catch (error) {
    if (codeOf(error) !== 'EPERM') throw error
    throw new Error(
      `another process reads NFLOG group ${options.group}: end it, or give the daemon another --log-rejects`,
    )
  }
}

async function follow(request: DropsRequest, io: Io, { names, group, chains }: Logging): Promise<void> {
  const { packets, durationMs, follow: isEndless } = request
  const printer = new PacketPrinter<LoggedPacket>(
    isEndless ? Number.POSITIVE_INFINITY : packets,
    io,
    packet => dropText(packet, request, { names, io }),
  )
  let [ours, lost] = [0, 0]
  const transport = openNetfilter()
  try {
    const stop = readGroup({
      transport,
      clock: systemClock,
      group,
      onPacket: packet => {
        // Other programs may log to the same group.
        if (nameOfPrefix(packet.prefix) === undefined) return
        ours++
        printer.take(packet)
      },
      onLost: missing => {
        lost += missing
      },
    })
    const before = await countRefused(chains)
    if (isEndless) io.err('kprobe drops: following packets; Ctrl-C ends\n')
    await followFor(io, { durationMs: isEndless ? 0 : durationMs, done: printer.done, timers: [] })
    // The counters are read before the reading ends, so that later packets are in neither count.
    const refused = refusedBetween(before, await countRefused(chains))
    stop()
    await printer.written()
    const { printed, dropped } = printer.counts
    const unlogged = refused === undefined ? 0 : Number(refused) - ours - lost
    await writeWarnings(
      [
        `printed ${count(printed, 'packet')} of ${ours} that the kernel logged`,
        ...(refused === undefined
          ? [
              'the rules and their counters were replaced during the run: the number of packets that the kernel left out is not known',
            ]
          : []),
        ...(unlogged > 0
          ? [`sampled: the kernel logged no more than 20 a second for each rule, and left out ${unlogged}`]
          : []),
        ...(lost > 0 ? [`lost ${count(lost, 'packet')}: the command was too slow for the kernel`] : []),
        ...(dropped > 0 ? [`${count(dropped, 'packet')} not printed: standard output is too slow`] : []),
      ],
      io,
    )
  } finally {
    await transport.close()
  }
}

/** The packets, logged or not, that a rule with this handle refuses. */
type Refused = ReadonlyMap<string, bigint>

async function countRefused(chains: readonly LoggingChain[]): Promise<Refused> {
  return await withNetfilter(async connection => {
    const packets = new Map<string, bigint>()
    for (const place of chains)
      for (const each of refusingRules(await listHandles(connection, place)))
        packets.set(`${place.family} ${place.table} ${place.chain} ${each.handle}`, each.packets)
    return packets
  })
}

/** Gives the packets between two counts; undefined where a rule is gone, or counts anew. Pure. */
export function refusedBetween(before: Refused, after: Refused): bigint | undefined {
  let packets = 0n
  for (const [rule, now] of after) packets += now - (before.get(rule) ?? 0n)
  const isWhole = [...before].every(([rule, was]) => (after.get(rule) ?? -1n) >= was)
  return isWhole ? packets : undefined
}

interface Drop extends PacketFacts {
  readonly verdict: 'reject' | 'drop'
  readonly reason: VerdictReason
  readonly answer: string
}

async function dropText(
  { prefix, head, inputInterface }: LoggedPacket,
  { service, from, to, output }: DropsRequest,
  { names, io }: { readonly names: RuleNames; readonly io: Pick<Io, 'color'> },
): Promise<string | undefined> {
  const atMs = Date.now()
  const name = nameOfPrefix(prefix)
  if (name === undefined || head === undefined) return undefined
  if (from.length > 0 && !from.some(each => isSelected(each, head.source))) return undefined
  if (to !== undefined && !isTarget(to, head.destination, head.ports?.destination)) return undefined
  await names.refresh()
  const row = names.rowAt(head)
  if (service !== '' && !isOfService(row === undefined ? [] : [row.service], service)) return undefined
  const reason = loggedReason(name, row !== undefined)
  const verdict = isRejecting(name) ? 'reject' : 'drop'
  const drop: Drop = {
    ...factsOf(head, { row, interfaceName: names.interfaceName, pods: names.pods }, { atMs, inputInterface }),
    verdict,
    reason,
    answer: `${verdict === 'reject' ? 'rejected' : 'dropped'}: ${reasonText(reason)}`,
  }
  if (output === 'json') return `${JSON.stringify(drop)}\n`
  return `${paletteOf(io)[verdict === 'drop' ? 'bad' : 'warning'](oneLine(factsText(drop, drop.answer)))}\n`
}
