import type { Cancel, Clock } from '../base/clock.ts'
import { errorOf } from '../base/failure-text.ts'
import type { Ip } from '../base/ip.ts'
import { isSame } from '../model/equal.ts'

/** Gives the addresses of this machine's interfaces. */
interface AddressReader {
  read(): Promise<readonly Ip[]>
  /** Calls `changed` when they may have changed, until the result is called; undefined without notifications. */
  watch(changed: () => void): (() => Promise<void>) | undefined
  close(): Promise<void>
}

export interface AddressHandlers {
  /** Called with every address once they are known, and whenever they have changed. */
  readonly changed: (ips: readonly Ip[]) => void
  /** They cannot be read: what was known stays valid. Said once; trying goes on. */
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
/** Delay from a hint to the read: interfaces come up with several addresses. */
const HINT_MS = 5

/**
 * Watches the addresses of this machine, for NodePorts on ranges. An error takes no address away: that would close
 * node ports that still exist.
 */
export function watchLocalAddresses(options: LocalAddressesOptions): LocalAddresses {
  const { clock, reader, changed, failed, recovered } = options
  let timer: Cancel | undefined
  let stopped = false
  let known: readonly Ip[] | undefined
  let failing = false
  let looking = false
  let hinted = false
  let unwatch: (() => Promise<void>) | undefined
  const lookWithin = (delayMs: number): void => {
    timer?.()
    timer = clock.after(delayMs, () => void look())
  }
  const attempt = async (): Promise<readonly Ip[] | undefined> => {
    try {
      return await reader.read()
    } catch (error) {
      if (!failing && !stopped) failed(errorOf(error))
      failing = true
      return undefined
    }
  }
  const look = async (): Promise<void> => {
    looking = true
    hinted = false
    const ips = await attempt()
    looking = false
    if (stopped) return
    if (ips !== undefined) {
      if (failing) recovered()
      failing = false
      if (!isSame(ips, known)) changed(ips)
      known = ips
    }
    if (hinted) lookWithin(HINT_MS)
    else lookWithin(failing || unwatch === undefined ? POLL_MS : WATCHED_POLL_MS)
  }
  // Listening begins before the first look, so that no change falls between the two.
  unwatch = reader.watch(() => {
    hinted = true
    if (!looking && !stopped) lookWithin(HINT_MS)
  })
  void look()
  const stop = async (): Promise<void> => {
    stopped = true
    timer?.()
    await unwatch?.()
    await reader.close()
  }
  return { stop }
}
