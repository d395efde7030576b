import type { Clock } from '../../base/clock.ts'
import { type PacketHead, readPacketHead } from '../../base/ip-packet.ts'
import { u32be } from '../../base/octets.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { messageReceiver } from '../../netlink/batch.ts'
import { u32be as number32, octets, string, u8, u16be } from '../../netlink/codecs.ts'
import { Connection } from '../../netlink/connection.ts'
import { NFNL_SUBSYS_ULOG, NLM_F_ACK, NLM_F_REQUEST, NLMSG_OVERRUN } from '../../netlink/constants.ts'
import { malformed } from '../../netlink/errors.ts'
import { encodeMessage, type Message, nfSpan, writeNfGenMsg } from '../../netlink/message.ts'
import { attributeSet, readAttributes, writeAttributes } from '../../netlink/schema.ts'
import type { Transport } from '../../netlink/transport.ts'

/* linux/netfilter/nfnetlink_log.h. */
const NFULNL_MSG_PACKET = 0
const NFULNL_MSG_CONFIG = 1
const NFULNL_CFG_CMD_BIND = 1
const NFULNL_COPY_PACKET = 2
const NFULNL_CFG_F_SEQ = 1

const CONFIG = attributeSet({
  command: [1, u8],
  /** struct nfulnl_msg_config_mode. */
  mode: [2, octets],
  threshold: [5, number32],
  flags: [6, u16be],
})

const PACKET = attributeSet({
  inputInterface: [4, number32],
  payload: [9, octets],
  prefix: [10, string],
  sequence: [12, number32],
})

export interface LoggedPacket {
  readonly prefix: string
  /** Undefined for a packet that is not IP. */
  readonly head: PacketHead | undefined
  readonly inputInterface: number | undefined
}

interface LogOptions {
  /** A dedicated socket: packets would fill the queue of any other. */
  readonly transport: Transport
  readonly clock: Clock
  readonly group: number
  readonly onPacket: (packet: LoggedPacket) => void
  /** Called with the number of packets that the kernel dropped because the queue was full. */
  readonly onLost: (packets: number) => void
}

/** Datagrams per turn of the event loop. */
const MESSAGES_PER_TURN = 64
/** Messages that are taken at the end, while rules may log further ones: more than a receive buffer holds. */
const QUEUED_MAX = 4_096
const SEQUENCE_MODULUS = 2 ** 32

/**
 * Reads the packets of one NFLOG group, until the returned function is called, which takes what the kernel has queued.
 * Throws NetlinkError: EPERM where another socket reads the group.
 */
export function readLog(options: LogOptions): () => void {
  const { transport, clock, group } = options
  new Connection({ transport, clock }).roundTrip({
    operation: 'read',
    object: `NFLOG group ${group}`,
    build: sequence => encodeBind(group, sequence),
    onMessage: () => undefined,
  })
  const receive = messageReceiver({
    transport,
    take: logTaker(options),
    // The sequence number of the next packet gives the number of missing ones.
    lost: () => undefined,
  })
  const unwatch = transport.watch(() => receive(MESSAGES_PER_TURN))
  return () => {
    unwatch()
    receive(QUEUED_MAX)
  }
}

function encodeBind(group: number, sequence: number): Uint8Array {
  const type = (NFNL_SUBSYS_ULOG << 8) | NFULNL_MSG_CONFIG
  return encodeMessage({ type, flags: NLM_F_REQUEST | NLM_F_ACK, sequence }, out => {
    writeNfGenMsg(out.out, { family: 0, resourceId: group })
    writeAttributes(out, CONFIG, {
      command: NFULNL_CFG_CMD_BIND,
      // The first bytes of a packet: addresses and ports, behind options and extension headers.
      mode: `${u32be(128)}${String.fromCharCode(NFULNL_COPY_PACKET)}\0`,
      // Each packet is sent at once.
      threshold: 1,
      flags: NFULNL_CFG_F_SEQ,
    })
  })
}

/** Takes packets, and finds by their sequence numbers how many the kernel dropped. */
function logTaker({ onPacket, onLost }: LogOptions) {
  let next: number | undefined
  return (view: ByteView, message: Message): void => {
    const packet = decodeLogged(view, message)
    if (packet === undefined) return
    const { sequence, ...logged } = packet
    if (sequence !== undefined) {
      const lost = next === undefined ? 0 : (sequence - next + SEQUENCE_MODULUS) % SEQUENCE_MODULUS
      if (lost > 0) onLost(lost)
      next = (sequence + 1) % SEQUENCE_MODULUS
    }
    onPacket(logged)
  }
}

/** Decodes NFULNL_MSG_PACKET; undefined for other messages. Throws NetlinkError. */
export function decodeLogged(
  view: ByteView,
  message: Message,
): (LoggedPacket & { readonly sequence: number | undefined }) | undefined {
  if (message.type === NLMSG_OVERRUN) throw malformed('an overrun', message.start)
  if (message.type !== ((NFNL_SUBSYS_ULOG << 8) | NFULNL_MSG_PACKET)) return undefined
  const { prefix = '', payload, inputInterface, sequence } = readAttributes(view, PACKET, nfSpan(message))
  const head = payload === undefined ? undefined : readPacketHead(payload)
  return { prefix, head, inputInterface, sequence }
}
