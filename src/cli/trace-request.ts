import { pause, systemClock } from '../base/clock.ts'
import { type FlagReader, type FlagSpec, flag, flags, quote } from '../config/flag.ts'
import { ADMIN_SOCKET_FLAG } from '../config/flag-tables.ts'
import { INSTANCE_FLAG, readInstanceName, readSocketPath } from '../config/own-flags.ts'
import type { Io } from './io.ts'
import { checkAddresses, given, readFilterClient, readFilterTarget, TARGETS } from './peers.ts'

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
  from: flag(
    '--from CLIENT',
    'only packets from this client: an address, a CIDR, pod/NAMESPACE/NAME, node/NAME (this node), or outside: every address but those of pods, Services and this node',
  ),
  to: flag('--to TARGET', `only packets to this destination: ${TARGETS}`, { namesService: true }),
  count: flag(`--count N = ${COUNT.fallback}`, `end after so many packets, 1 to ${COUNT.max}`),
  duration: flag('--duration DURATION = 30s', 'end after this time, at most 1h'),
  output: flag('-o, --output FORMAT = text', 'text, or json: one object a line', { choices: OUTPUTS }),
} as const satisfies Readonly<Record<string, FlagSpec>>

export const TRACE_FLAGS: readonly FlagSpec[] = [
  PACKET_FLAGS.service,
  PACKET_FLAGS.from,
  PACKET_FLAGS.to,
  ...flags({
    '--reject-only': 'print only packets that are rejected, dropped or lost; --count counts only these',
    '--all-packets': 'trace every packet of TCP, and not only those that open a connection',
  }),
  PACKET_FLAGS.count,
  PACKET_FLAGS.duration,
  flag(
    `--rate N = ${RATE.fallback}`,
    `packets a second in each address family that the kernel traces at most, 1 to ${RATE.max}`,
  ),
  {
    ...ADMIN_SOCKET_FLAG,
    help: 'unix socket of the daemon, which knows which Service an IPVS object belongs to, and the addresses of names; unset: the usual one, for names alone',
  },
  INSTANCE_FLAG,
  PACKET_FLAGS.output,
]

/** What all commands that print packets are asked. */
export type PacketRequest = ReturnType<typeof readPacketRequest>

/** Reads the flags of PacketRequest. Reports errors to the reader. */
export function readPacketRequest(reader: FlagReader) {
  const service = reader.text('service') ?? ''
  if (service !== '' && !/^[^/:]+\/[^/:]+(?::[^/:]*)?$/.test(service))
    reader.fail('--service', `${quote(service)} is not written NAMESPACE/NAME or NAMESPACE/NAME:PORT`)
  const from = given(reader, 'from', readFilterClient)
  const to = given(reader, 'to', readFilterTarget)
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

/** What `kprobe trace` is asked. */
export type TraceRequest = ReturnType<typeof readTraceRequest>

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

export interface PrintCounts {
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
