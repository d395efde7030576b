import type { Cancel, Clock } from '../base/clock.ts'
import type { Ip } from '../base/ip.ts'
import { isSame } from '../model/equal.ts'

/** Gives the addresses of this machine's interfaces. */
export interface AddressReader {
  read(): Promise<readonly Ip[]>
  close(): Promise<void>
}

export interface AddressHandlers {
  /** Called with every address once they are known, and whenever they have changed. */
  readonly changed: (ips: readonly Ip[]) => void
  /** They cannot be read: what was known stays valid. Said once; trying goes on. */
  readonly failed: (error: Error) => void
  readonly recovered: () => void
}

export interface LocalAddressesOptions extends AddressHandlers {
  readonly clock: Clock
  readonly reader: AddressReader
}

export interface LocalAddresses {
  /** No handler is called from now on. */
  stop(): Promise<void>
}

const POLL_MS = 1_000

/**
 * Watches the addresses of this machine, for NodePorts on ranges. An error takes no address away: that would close
 * NodePorts which nobody asked to close.
 */
export function watchLocalAddresses(options: LocalAddressesOptions): LocalAddresses {
  const { clock, reader, changed, failed, recovered } = options
  let timer: Cancel | undefined
  let stopped = false
  let known: readonly Ip[] | undefined
  let failing = false
  const attempt = async (): Promise<readonly Ip[] | undefined> => {
    try {
      return await reader.read()
    } catch (error) {
      if (!failing && !stopped) failed(error instanceof Error ? error : new Error(String(error)))
      failing = true
      return undefined
    }
  }
  const look = async (): Promise<void> => {
    const ips = await attempt()
    if (stopped) return
    if (ips !== undefined) {
      if (failing) recovered()
      failing = false
      if (!isSame(ips, known)) changed(ips)
      known = ips
    }
    timer = clock.after(POLL_MS, () => void look())
  }
  void look()
  const stop = async (): Promise<void> => {
    stopped = true
    timer?.()
    await reader.close()
  }
  return { stop }
}
