import { type Clock, Pacer } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import type { Ip } from '../base/ip.ts'
import { isSame } from '../base/plain-data.ts'

interface AddressReader {
  read(): Promise<readonly Ip[]>
  /** Calls `changed` when they may have changed, until the result is called; undefined without notifications. */
  watch(changed: () => void): (() => Promise<void>) | undefined
  close(): Promise<void>
}

export interface AddressHandlers {
  /** Called with every address once they are known, and whenever they have changed. */
  readonly changed: (ips: readonly Ip[]) => void
  /** They cannot be read: what was known stays valid. Reported once; retries continue. */
  readonly failed: (error: Error) => void
  readonly recovered: () => void
}

interface LocalAddressesOptions extends AddressHandlers {
  readonly clock: Clock
  readonly reader: AddressReader
}

export interface LocalAddresses {
  /** No handler is called from now on. */
  stop(): Promise<void>
}

/** Intervals of the polls: without notifications, after a failure, and with notifications. */
const POLL_MS = 1_000
const WATCHED_POLL_MS = 30_000

/**
 * Watches the addresses of this machine, for NodePorts on ranges. An error takes no address away: that would close
 * node ports that still exist.
 */
export function watchLocalAddresses(options: LocalAddressesOptions): LocalAddresses {
  const { clock, reader, changed, failed, recovered } = options
  let known: readonly Ip[] | undefined
  let failing = false
  const attempt = async (): Promise<readonly Ip[] | undefined> => {
    try {
      return await reader.read()
    } catch (error) {
      if (!failing && !reads.isStopped) failed(errorOf(error))
      failing = true
      return undefined
    }
  }
  const read = async (): Promise<number> => {
    const ips = await attempt()
    if (reads.isStopped) return POLL_MS
    if (ips !== undefined) {
      if (failing) recovered()
      failing = false
      if (!isSame(ips, known)) changed(ips)
      known = ips
    }
    return failing || unwatch === undefined ? POLL_MS : WATCHED_POLL_MS
  }
  const reads: Pacer = new Pacer({ clock, run: read })
  // Listening begins before the first read, so that no change falls between the two.
  // Interfaces come up with several addresses: those of 5 ms are one read.
  const unwatch = reader.watch(() => reads.wake(5))
  reads.wake()
  const stop = async (): Promise<void> => {
    void reads.stop()
    await unwatch?.()
    await reader.close()
  }
  return { stop }
}
