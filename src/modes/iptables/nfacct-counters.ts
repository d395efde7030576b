import type { Clock } from '../../base/clock.ts'
import { createNfacctClient } from '../../kernel/nfacct/client.ts'
import type { KernelSockets } from '../mode.ts'
import type { IptablesNumbers } from './metrics.ts'
import { type IptablesOptions, NFACCT_INVALID_DROPPED, NFACCT_LOCALHOST_ACCEPTED } from './settings.ts'

/** The counters of kube-proxy's rules, by its names. */
interface NfacctCounters {
  /** The counters that exist. Callers read this again each time, because ensure() changes it. */
  readonly available: IptablesOptions['nfacct']
  /** Creates the counters where the kernel supports them. Throws NetlinkError. */
  ensure(): void
  /** Reads the packets that each counter has counted. Throws NetlinkError. */
  read(): Pick<IptablesNumbers, 'invalidDropped' | 'localhostAccepted'>
  /** Removes the counters that no rule uses. Throws NetlinkError. */
  remove(): void
  close(): Promise<void>
}

/**
 * Opens the counters. `localhost` means that node ports are served at loopback, which the second counter is for.
 * Throws SystemError and NetlinkError.
 */
export function openNfacctCounters(
  { netfilter }: Pick<KernelSockets, 'netfilter'>,
  clock: Clock,
  localhost: boolean,
): NfacctCounters {
  const client = createNfacctClient({ transport: netfilter(), clock })
  const packetsOf = (name: string): number | undefined => {
    const packets = client.read(name)?.packets
    return packets === undefined ? undefined : Number(packets)
  }
  const available = { invalidDropped: false, localhostAccepted: false }
  try {
    available.invalidDropped = packetsOf(NFACCT_INVALID_DROPPED) !== undefined
    available.localhostAccepted = localhost && packetsOf(NFACCT_LOCALHOST_ACCEPTED) !== undefined
  } catch (error) {
    void client.close()
    throw error
  }
  return {
    available,
    ensure() {
      available.invalidDropped = client.ensure(NFACCT_INVALID_DROPPED)
      available.localhostAccepted = localhost && client.ensure(NFACCT_LOCALHOST_ACCEPTED)
    },
    read: () => ({
      invalidDropped: packetsOf(NFACCT_INVALID_DROPPED),
      localhostAccepted: packetsOf(NFACCT_LOCALHOST_ACCEPTED),
    }),
    remove() {
      for (const name of [NFACCT_INVALID_DROPPED, NFACCT_LOCALHOST_ACCEPTED]) client.delete(name)
    },
    close: () => client.close(),
  }
}

/**
 * The counters of a named proxy: none. Counters belong to the network namespace and count for the unnamed proxy. If
 * rules of another proxy used them, the unnamed one could not remove them.
 */
export const NO_NFACCT_COUNTERS: NfacctCounters = {
  available: { invalidDropped: false, localhostAccepted: false },
  ensure: () => undefined,
  read: () => ({ invalidDropped: undefined, localhostAccepted: undefined }),
  remove: () => undefined,
  close: () => Promise.resolve(),
}
