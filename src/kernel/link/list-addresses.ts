import type { Clock } from '../../base/clock.ts'
import type { Ip } from '../../base/ip.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_DUMP, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { malformed, NetlinkError } from '../../netlink/errors.ts'
import { encodeMessage, type Message } from '../../netlink/message.ts'
import { readAttributes } from '../../netlink/schema.ts'
import { AF_INET, AF_INET6, AF_UNSPEC, IFA_F_SECONDARY, RTM_GETADDR, RTM_NEWADDR } from './constants.ts'
import { ADDRESS, IFADDRMSG_LENGTH, readIfAddrMsg, writeIfAddrMsg } from './schema.ts'

/** An address and the index of its device. */
export interface LinkAddress {
  readonly ip: Ip
  readonly index: number
  readonly prefixLength: number
  /** IFA_F_SECONDARY of IPv4: an earlier address has the same prefix. */
  readonly secondary: boolean
}

/** A list that changes during a read may lack addresses; a read takes milliseconds, so retries are cheap. */
const ATTEMPTS = 8
const RETRY_DELAY_MS = 5
const WORDS = { operation: 'list', object: 'addresses of interfaces' } as const

/**
 * Lists the addresses of all devices (the kernel filters by device only for sockets with strict checking). Reads them
 * again while `isTorn` returns true. Rejects as AddressReader.read does.
 */
export async function listAddresses(
  connection: Connection,
  clock: Clock,
  isTorn: () => boolean = () => false,
): Promise<readonly LinkAddress[]> {
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    const found: LinkAddress[] = []
    const whole = await connection.dump({
      ...WORDS,
      build: encodeGetAddresses,
      onMessage(view, message) {
        const address = decodeAddress(view, message)
        if (address !== undefined) found.push(address)
      },
    })
    if (whole && !isTorn()) return found
    await new Promise<void>(resolve => clock.after(RETRY_DELAY_MS * attempt, resolve))
  }
  const extendedAck = `they changed during each of ${ATTEMPTS} attempts`
  throw new NetlinkError({ ...WORDS, errno: errnoNumber('EAGAIN'), extendedAck })
}

/** Lists the same synchronously, as `dumpNow`; undefined where the list changed during the read. */
export function listAddressesNow(connection: Connection): readonly LinkAddress[] | undefined {
  const found: LinkAddress[] = []
  const whole = connection.dumpNow({
    ...WORDS,
    build: encodeGetAddresses,
    onMessage(view, message) {
      const address = decodeAddress(view, message)
      if (address !== undefined) found.push(address)
    },
  })
  return whole ? found : undefined
}

/** Returns the addresses sorted, without duplicates. */
export function ipsOf(addresses: readonly LinkAddress[]): readonly Ip[] {
  return [...new Set(addresses.map(({ ip }) => ip))].sort()
}

function encodeGetAddresses(sequence: number): Uint8Array {
  const all = { family: AF_UNSPEC, prefixLength: 0, flags: 0, scope: 0, index: 0 }
  const head = { type: RTM_GETADDR, flags: NLM_F_REQUEST | NLM_F_DUMP, sequence }
  return encodeMessage(head, ({ out }) => writeIfAddrMsg(out, all))
}

/** Decodes an IP address; undefined for other families, which have addresses, too. */
function decodeAddress(view: ByteView, message: Message): LinkAddress | undefined {
  if (message.type !== RTM_NEWADDR) return undefined
  const { family, index, prefixLength, flags } = readIfAddrMsg(view, message)
  if (family !== AF_INET && family !== AF_INET6) return undefined
  const start = message.start + IFADDRMSG_LENGTH
  const { local, address } = readAttributes(view, ADDRESS, { start, end: message.end })
  const ip = local ?? address
  if (ip === undefined) return undefined
  const length = family === AF_INET ? 4 : 16
  if (ip.length !== length) throw malformed(`an address of ${ip.length} bytes in family ${family}`, start)
  // In IPv6 the same bit means a temporary address.
  const secondary = family === AF_INET && (flags & IFA_F_SECONDARY) !== 0
  return { ip, index, prefixLength, secondary }
}
