import type { Clock } from '../base/clock.ts'
import { FAMILIES, familyOf } from '../base/ip.ts'
import type { Config, DetectLocal } from '../config/config.ts'
import type { DetectorOption } from '../dataplane/common/detector.ts'
import { DEFAULT_NFTABLES_OPTIONS, type NftablesOptions } from '../dataplane/nftables/options.ts'
import type { NftablesPlan } from '../dataplane/nftables/plan.ts'
import type { NftablesState } from '../dataplane/nftables/state.ts'
import { watchWriters } from '../dataplane/nftables/writers.ts'
import { createDataplane } from '../dataplane/registry.ts'
import { createAddressReader } from '../kernel/link/addresses.ts'
import { createNftClient, type NftClient } from '../kernel/nft/client.ts'
import { createNamePool } from '../model/names.ts'
import { parseObject } from '../model/parse.ts'
import { NETLINK_NETFILTER, NETLINK_ROUTE } from '../netlink/constants.ts'
import { openNetlink } from '../netlink/native.ts'
import type { Transport } from '../netlink/transport.ts'
import type { Dataplane } from '../reconcile/dataplane.ts'
import { FileSource } from '../source/file/file-source.ts'
import type { ApiClient } from '../source/kube/api-client.ts'
import { type AddressHandlers, type LocalAddresses, watchLocalAddresses } from '../source/local-addresses.ts'
import type { Source } from '../source/source.ts'

/** One daemon a network namespace: two would undo each other's work. */
export function lockName(options: NftablesOptions): string {
  return `kprobe/${options.tableName}`
}

export interface OpenPlane {
  readonly plane: Dataplane<NftablesState, NftablesPlan>
  readonly client: NftClient
  readonly close: () => Promise<void>
}

/** A socket to the kernel's nf_tables. Throws when the addon is missing or the socket refused. */
export function openNetfilter(): Transport {
  return openNetlink({ protocol: NETLINK_NETFILTER })
}

export function openPlane(config: Config, clock: Clock, openTransport: () => Transport): OpenPlane {
  const transport = openTransport()
  const client = createNftClient({ transport, clock })
  const options = nftablesOptions(config)
  const watching = { openTransport, own: transport.portId, table: options.tableName }
  const plane = createDataplane(config.proxyMode, {
    nftables: { client, options, watchWriters: report => watchWriters(watching, report) },
  })
  return { plane, client, close: () => client.close() }
}

export function nftablesOptions(config: Config): NftablesOptions {
  const { detectLocal, masqueradeAll, masqueradeBit } = config
  const [IPv4, IPv6] = FAMILIES.map(family => detectorOf(detectLocal, family))
  const connectionCounters = config.connectionMetricsMax > 0
  const detector = { IPv4, IPv6 }
  return { ...DEFAULT_NFTABLES_OPTIONS, masqueradeAll, masqueradeBit, detector, connectionCounters }
}

function detectorOf(detect: DetectLocal, family: (typeof FAMILIES)[number]): DetectorOption | undefined {
  switch (detect.kind) {
    case 'NodeCIDR':
      return { kind: 'node-cidr' }
    case 'BridgeInterface':
      return { kind: 'interface', name: detect.name }
    case 'InterfaceNamePrefix':
      return { kind: 'interface-prefix', prefix: detect.prefix }
    case 'ClusterCIDR': {
      const cidr = detect.cidrs.find(({ ip }) => familyOf(ip) === family)
      return cidr === undefined ? undefined : { kind: 'cidr', cidr }
    }
  }
}

/** The files that the configuration names. Of Nodes they tell this one alone. */
export function openFileSource(config: Config, clock: Clock): Source {
  const { source, nodeName } = config
  if (source.kind !== 'file') throw new Error(`${source.kind} is no source of files`)
  const pool = createNamePool()
  return new FileSource({
    path: source.path,
    clock,
    parseObject: object => {
      const result = parseObject(object, pool)
      const foreign =
        result !== undefined && 'kind' in result && result.kind === 'Node' && result.key !== nodeName
      return foreign ? undefined : result
    },
  })
}

export function openRoute(): Transport {
  return openNetlink({ protocol: NETLINK_ROUTE })
}

/** Addresses of this machine, or undefined when the choice of NodePort addresses does not depend on them. */
export function watchLocalIps(
  config: Config,
  clock: Clock,
  { openTransport = openRoute, ...handlers }: AddressHandlers & { readonly openTransport?: () => Transport },
): LocalAddresses | undefined {
  if (config.nodePortAddresses.cidrs.length === 0) return undefined
  return watchLocalAddresses({ clock, reader: createAddressReader({ openTransport, clock }), ...handlers })
}

export interface OpenClientOptions {
  readonly clock: Clock
  readonly env: Readonly<Record<string, string | undefined>>
  readonly warn: (text: string) => void
}

/** The API server that the configuration names. What speaks with it is loaded only here. */
export async function openClient(config: Config, options: OpenClientOptions): Promise<ApiClient> {
  const { openApiClient } = await import('../source/kube/client/http-client.ts')
  const { kubeconfig, master, qps, burst } = config.client
  return await openApiClient({ ...options, kubeconfig, master, qps, burst })
}
