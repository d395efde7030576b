import type { Clock } from '../../base/clock.ts'
import { createNfacctClient, type NfacctClient } from '../../kernel/nfacct/client.ts'
import type { KernelSockets } from '../mode.ts'
import type { IptablesNumbers } from './metrics.ts'
import { type IptablesOptions, NFACCT_INVALID_DROPPED, NFACCT_LOCALHOST_ACCEPTED } from './options.ts'

/** Counters that kube-proxy's rules count with, by its names. */
interface NfacctCounters {
  /** Those that exist. What follows from it is read anew each time: making them changes it. */
  readonly available: IptablesOptions['nfacct']
  /** Makes them where the kernel has such counters. Throws NetlinkError. */
  ensure(): void
  /** Packets that each has counted. Throws NetlinkError. */
  read(): Pick<IptablesNumbers, 'invalidDropped' | 'localhostAccepted'>
  /** Removes those that no rule counts with. Throws NetlinkError. */
  remove(): void
  close(): Promise<void>
}

/** `localhost`: NodePorts answer at loopback, which the second one is about. Throws SystemError and NetlinkError. */
export function openNfacctCounters(
  { netfilter }: Pick<KernelSockets, 'netfilter'>,
  clock: Clock,
  localhost: boolean,
): NfacctCounters {
  const client = createNfacctClient({ transport: netfilter(), clock })
  const available = existing(client, localhost)
  return {
    available,
    ensure() {
      available.invalidDropped = client.ensure(NFACCT_INVALID_DROPPED)
      available.localhostAccepted = localhost && client.ensure(NFACCT_LOCALHOST_ACCEPTED)
    },
    read: () => ({
      invalidDropped: packetsOf(client, NFACCT_INVALID_DROPPED),
      localhostAccepted: packetsOf(client, NFACCT_LOCALHOST_ACCEPTED),
    }),
    remove() {
      for (const name of [NFACCT_INVALID_DROPPED, NFACCT_LOCALHOST_ACCEPTED]) client.delete(name)
    },
    close: () => client.close(),
  }
}

/** Closes the client when it cannot be asked: nobody else would. */
function existing(
  client: NfacctClient,
  localhost: boolean,
): { invalidDropped: boolean; localhostAccepted: boolean } {
  try {
    return {
      invalidDropped: client.read(NFACCT_INVALID_DROPPED) !== undefined,
      localhostAccepted: localhost && client.read(NFACCT_LOCALHOST_ACCEPTED) !== undefined,
    }
  } catch (error) {
    void client.close()
    throw error
  }
}

/**
 * Those of a named proxy: none. The counters are of the network namespace and count for the unnamed proxy; whoever
 * else's rules counted with them would keep it from removing them.
 */
export const NO_NFACCT_COUNTERS: NfacctCounters = {
  available: { invalidDropped: false, localhostAccepted: false },
  ensure: () => undefined,
  read: () => ({ invalidDropped: undefined, localhostAccepted: undefined }),
  remove: () => undefined,
  close: () => Promise.resolve(),
}

function packetsOf(client: NfacctClient, name: string): number | undefined {
  const packets = client.read(name)?.packets
  return packets === undefined ? undefined : Number(packets)
}
