import { familyOf, formatIpPort, type Ip, parseIp } from '../../../../src/base/ip.ts'
import type { Flow, FlowProtocol } from '../../../../src/kernel/conntrack/flow.ts'
import { appendNew } from '../../../../src/kernel/conntrack/messages.ts'
import { ByteWriter } from '../../../../src/netlink/bytes.ts'
import type { Transport } from '../../../../src/netlink/transport.ts'

/** IPS_CONFIRMED, IPS_ASSURED and IPS_SEEN_REPLY: an entry that the kernel does not give up when room is short. */
const STATUS = 14

interface FlowWords {
  readonly protocol?: FlowProtocol
  readonly id?: number
  readonly zone?: number
}

/** A flow `10.1.0.5:4000` → `10.96.0.10:53` that `10.200.0.1:1053` answers; nobody translated it without the third. */
export function flow(from: string, to: string, answeredBy = to, words: FlowWords = {}): Flow {
  const [client, service, endpoint] = [socket(from), socket(to), socket(answeredBy)]
  const { protocol = 'UDP', id = 7, zone } = words
  return {
    family: familyOf(client.ip),
    protocol,
    original: tuple(client, service),
    reply: tuple(endpoint, client),
    status: STATUS,
    id,
    timeoutS: 600,
    zone,
  }
}

interface Socket {
  readonly ip: Ip
  readonly port: number
}

function tuple(from: Socket, to: Socket): Flow['original'] {
  return {
    source: from.ip,
    destination: to.ip,
    sourcePort: from.port,
    destinationPort: to.port,
    zone: undefined,
  }
}

/** Reads `10.0.0.1:53` and `[fd00::1]:53`. */
export function socket(text: string): Socket {
  const match = /^\[?([^\]]*?)\]?:(\d+)$/.exec(text)
  const ip = parseIp(match?.[1] ?? '')
  if (ip === undefined) throw new Error(`not an address and port: ${text}`)
  return { ip, port: Number(match?.[2]) }
}

/** `UDP 10.1.0.5:4000 > 10.96.0.10:53 = 10.200.0.1:1053`. */
export function flowText({ protocol, original, reply }: Flow): string {
  const from = formatIpPort(original.source, original.sourcePort)
  const to = formatIpPort(original.destination, original.destinationPort)
  return `${protocol} ${from} > ${to} = ${formatIpPort(reply.source, reply.sourcePort)}`
}

const ENTRIES_A_SEND = 500

/** Puts entries into this network namespace's connection tracking; gives how many the kernel took. */
export function inject(transport: Transport, flows: Iterable<Omit<Flow, 'id'>>): number {
  const into = new Uint8Array(1 << 17)
  let [taken, waiting] = [0, 0]
  let out = new ByteWriter(1 << 16)
  const send = (): void => {
    if (waiting > 0) transport.sendSync(out.written())
    for (let length = transport.receive(into); length !== undefined; length = transport.receive(into))
      taken += accepted(into.subarray(0, length))
    waiting = 0
    out = new ByteWriter(1 << 16)
  }
  for (const each of flows) {
    appendNew(out, each, 1)
    if (++waiting === ENTRIES_A_SEND) send()
  }
  send()
  return taken
}

/** Acknowledgements of success in a datagram. */
function accepted(bytes: Uint8Array): number {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  let count = 0
  for (let at = 0; at + 20 <= bytes.length; at += (view.getUint32(at, true) + 3) & ~3)
    if (view.getUint16(at + 4, true) === 2 && view.getInt32(at + 16, true) === 0) count++
  return count
}
