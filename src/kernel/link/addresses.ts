import type { Clock } from '../../base/clock.ts'
import type { Ip } from '../../base/ip.ts'
import { watchGroups } from '../../netlink/batch.ts'
import { Connection } from '../../netlink/connection.ts'
import { SystemError, type Transport } from '../../netlink/transport.ts'
import { RTM_DELADDR, RTM_NEWADDR, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR } from './constants.ts'
import { findLink, ipsOf, listAddresses, readIfAddrMsg } from './links.ts'

interface AddressReaderOptions {
  /** Opens a NETLINK_ROUTE socket. */
  readonly openTransport: () => Transport
  readonly clock: Clock
  /** Name of a device whose addresses and changes are ignored. */
  readonly except?: string | undefined
}

export interface AddressReader {
  /**
   * Reads the addresses of all interfaces, up or down; sorted, without duplicates. Rejects with NetlinkError (EAGAIN:
   * they changed during every attempt) or SystemError.
   */
  read(): Promise<readonly Ip[]>
  /**
   * Calls `changed` when the kernel reports that addresses came or went, and when it lost notifications. Returns a
   * function that stops the watch; undefined where the group cannot be joined: the caller must then poll.
   */
  watch(changed: () => void): (() => Promise<void>) | undefined
  close(): Promise<void>
}

/** Serving traffic does not depend on the address list, so its timeout is shorter than that of a commit. */
const TIMEOUT_MS = 3_000

/** Creates a reader of this network namespace's addresses (RTM_GETADDR). It does not reuse a failed socket. */
export function createAddressReader({ openTransport, clock, except }: AddressReaderOptions): AddressReader {
  let connection: Connection | undefined
  /** Index of the excepted device at the last read. */
  let exceptIndex: number | undefined
  const close = async (): Promise<void> => {
    const closing = connection
    connection = undefined
    await closing?.close()
  }
  const readFrom = async (open: Connection): Promise<readonly Ip[]> => {
    if (except === undefined) return ipsOf(await listAddresses(open, clock))
    exceptIndex = findLink(open, except)?.index
    // If the device is created during the read, its addresses would be in the list.
    const isTorn = (): boolean => {
      const before = exceptIndex
      exceptIndex = findLink(open, except)?.index
      return exceptIndex !== before
    }
    const all = await listAddresses(open, clock, isTorn)
    return ipsOf(all.filter(({ index }) => index !== exceptIndex))
  }
  const read = async (): Promise<readonly Ip[]> => {
    connection ??= new Connection({ transport: openTransport(), clock, timeoutMs: TIMEOUT_MS })
    try {
      return await readFrom(connection)
    } catch (error) {
      await close()
      throw error
    }
  }
  const isExcepted = (index: number): boolean => index === exceptIndex
  return { read, watch: changed => watchAddresses(openTransport, isExcepted, changed), close }
}

const NOTIFICATION_BYTES = 16_384
/** More at a time take several turns of the event loop. */
const NOTIFICATIONS_PER_TURN = 64

function watchAddresses(
  openTransport: () => Transport,
  isExcepted: (index: number) => boolean,
  changed: () => void,
): (() => Promise<void>) | undefined {
  let mayMatter = false
  let transport: Transport | undefined
  try {
    const open = openTransport()
    transport = open
    const stop = watchGroups({
      transport: open,
      groups: [RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR],
      datagramBytes: NOTIFICATION_BYTES,
      messagesPerTurn: NOTIFICATIONS_PER_TURN,
      take(view, message) {
        const isAddress = message.type === RTM_NEWADDR || message.type === RTM_DELADDR
        mayMatter ||= !isAddress || !isExcepted(readIfAddrMsg(view, message).index)
      },
      lost() {
        mayMatter = true
      },
      turned() {
        if (mayMatter) changed()
        mayMatter = false
      },
    })
    return async () => {
      stop()
      await open.close()
    }
  } catch (error) {
    if (!(error instanceof SystemError)) throw error
    void transport?.close()
    return undefined
  }
}
