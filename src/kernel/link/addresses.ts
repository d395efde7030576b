import type { Clock } from '../../base/clock.ts'
import type { Ip } from '../../base/ip.ts'
import { type ByteView, ByteWriter } from '../../netlink/bytes.ts'
import { Connection } from '../../netlink/connection.ts'
import { NLM_F_DUMP, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { malformed, NetlinkError } from '../../netlink/errors.ts'
import { closeMessage, type Message, openMessage } from '../../netlink/message.ts'
import { readAttributes } from '../../netlink/schema.ts'
import { SystemError, type Transport } from '../../netlink/transport.ts'
import {
  AF_INET,
  AF_INET6,
  AF_UNSPEC,
  RTM_GETADDR,
  RTM_NEWADDR,
  RTNLGRP_IPV4_IFADDR,
  RTNLGRP_IPV6_IFADDR,
} from './constants.ts'
import { ADDRESS, IFADDRMSG_LENGTH, readIfAddrMsg, writeIfAddrMsg } from './schema.ts'

export interface AddressReaderOptions {
  /** Opens a socket of NETLINK_ROUTE. */
  readonly openTransport: () => Transport
  readonly clock: Clock
}

export interface AddressReader {
  /**
   * The addresses of all interfaces, whether these are up or not; sorted, without duplicates. Rejects with
   * NetlinkError (EAGAIN: they changed during every attempt) or SystemError.
   */
  read(): Promise<readonly Ip[]>
  /**
   * Calls `changed` when the kernel says that addresses came or went, or may have: notifications that were lost count,
   * too. Undefined where the group cannot be joined; then only reading again tells. The result ends it.
   */
  watch(changed: () => void): (() => Promise<void>) | undefined
  close(): Promise<void>
}

/** A list that changes while it is made may lack addresses; a node has a handful, so that attempts are short. */
const ATTEMPTS = 8
const RETRY_DELAY_MS = 5
/** The list of addresses is no part of serving traffic: nobody waits as long for it as for a commit. */
const TIMEOUT_MS = 3_000

/** Reads this network namespace's addresses (RTM_GETADDR). A socket that failed is not used again. */
export function createAddressReader({ openTransport, clock }: AddressReaderOptions): AddressReader {
  let connection: Connection | undefined
  const close = async (): Promise<void> => {
    const closing = connection
    connection = undefined
    await closing?.close()
  }
  const read = async (): Promise<readonly Ip[]> => {
    connection ??= new Connection({ transport: openTransport(), clock, timeoutMs: TIMEOUT_MS })
    try {
      return await listAddresses(connection, clock)
    } catch (error) {
      await close()
      throw error
    }
  }
  return { read, watch: changed => watchAddresses(openTransport, changed), close }
}

/** Notifications are hints: what they say is not read, and more at a time than this are one hint all the same. */
const HINT_BYTES = 16_384
const HINTS_PER_TURN = 64

function watchAddresses(
  openTransport: () => Transport,
  changed: () => void,
): (() => Promise<void>) | undefined {
  const buffer = new Uint8Array(HINT_BYTES)
  let transport: Transport | undefined
  try {
    transport = openTransport()
    transport.join(RTNLGRP_IPV4_IFADDR)
    transport.join(RTNLGRP_IPV6_IFADDR)
  } catch (error) {
    if (!(error instanceof SystemError)) throw error
    void transport?.close()
    return undefined
  }
  const open = transport
  const unwatch = open.watch(() => {
    for (let count = 0; count < HINTS_PER_TURN; count++) if (!hasHint(open, buffer)) break
    changed()
  })
  return async () => {
    unwatch()
    await open.close()
  }
}

function hasHint(transport: Transport, buffer: Uint8Array): boolean {
  try {
    return transport.receive(buffer) !== undefined
  } catch (error) {
    // Dropped or too long for the buffer: a hint without its words.
    if (error instanceof SystemError) return true
    throw error
  }
}

async function listAddresses(connection: Connection, clock: Clock): Promise<readonly Ip[]> {
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    const ips = new Set<Ip>()
    const whole = await connection.dump({
      ...WORDS,
      build: buildRequest,
      onMessage: (view, message) => {
        const ip = decodeAddress(view, message)
        if (ip !== undefined) ips.add(ip)
      },
    })
    if (whole) return [...ips].sort()
    await new Promise<void>(resolve => clock.after(RETRY_DELAY_MS * attempt, resolve))
  }
  const extendedAck = `they changed during each of ${ATTEMPTS} attempts`
  throw new NetlinkError({ ...WORDS, errno: errnoNumber('EAGAIN'), extendedAck })
}

const WORDS = { operation: 'list', object: 'addresses of interfaces' } as const

function buildRequest(sequence: number): Uint8Array {
  const out = new ByteWriter(32)
  const start = openMessage(out, { type: RTM_GETADDR, flags: NLM_F_REQUEST | NLM_F_DUMP, sequence })
  writeIfAddrMsg(out, { family: AF_UNSPEC, prefixLength: 0, flags: 0, scope: 0, index: 0 })
  closeMessage(out, start)
  return out.written()
}

/** undefined for what is no IP address: other families have addresses, too. */
function decodeAddress(view: ByteView, message: Message): Ip | undefined {
  if (message.type !== RTM_NEWADDR) return undefined
  const { family } = readIfAddrMsg(view, message)
  if (family !== AF_INET && family !== AF_INET6) return undefined
  const start = message.start + IFADDRMSG_LENGTH
  const { local, address } = readAttributes(view, ADDRESS, { start, end: message.end })
  const ip = local ?? address
  if (ip === undefined) return undefined
  const length = family === AF_INET ? 4 : 16
  if (ip.length !== length) throw malformed(`an address of ${ip.length} bytes in family ${family}`, start)
  return ip
}
