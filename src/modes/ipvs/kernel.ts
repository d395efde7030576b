import type { Clock } from '../../base/clock.ts'
import { IpsetClient } from '../../kernel/ipset/client.ts'
import { createIpvsClient, type IpvsClient } from '../../kernel/ipvs/client.ts'
import { DummyClient } from '../../kernel/link/dummy.ts'
import { createNftClient, type NftClient } from '../../kernel/nft/client.ts'
import { tablesNamed, withNftClient } from '../common/writers.ts'
import type { KernelAccess, KernelSockets } from '../mode.ts'
import { DEFAULT_IPVS_OPTIONS } from './settings.ts'

/** The subsystems of the kernel that this mode writes to. */
export interface IpvsKernel {
  readonly nft: NftClient
  readonly ipset: IpsetClient
  readonly ipvs: IpvsClient
  readonly dummy: DummyClient
}

interface OpenKernel {
  readonly kernel: IpvsKernel
  /** The port id of the socket that commits to nf_tables. */
  readonly ownPortId: number
  readonly close: () => Promise<void>
}

/** Makes clients for four subsystems of the kernel, each with a socket of its own. Throws SystemError. */
export function openIpvsKernel({ netfilter, generic, route }: KernelSockets, clock: Clock): OpenKernel {
  const transport = netfilter()
  const ipset = new IpsetClient({ transport: netfilter(), clock })
  const nft = createNftClient({ transport, clock, ipsets: ipset })
  const ipvs = createIpvsClient({ transport: generic(), clock })
  const dummy = new DummyClient({ transport: route(), clock })
  return {
    kernel: { nft, ipset, ipvs, dummy },
    ownPortId: transport.portId,
    close: async () => void (await Promise.all([nft.close(), ipset.close(), ipvs.close(), dummy.close()])),
  }
}

/** Makes the clients for the duration of `use`. */
export async function withIpvsKernel<T>(
  { sockets, clock }: KernelAccess,
  use: (kernel: IpvsKernel) => Promise<T>,
): Promise<T> {
  const { kernel, close } = openIpvsKernel(sockets, clock)
  try {
    return await use(kernel)
  } finally {
    await close()
  }
}

/** Whether our own table exists, which no other program makes: the mode runs, or ran and left its objects. */
export async function hasIpvsTable(context: KernelAccess): Promise<boolean> {
  const { tableName } = DEFAULT_IPVS_OPTIONS
  return await withNftClient(context, async client => (await tablesNamed(client, tableName)).length > 0)
}
