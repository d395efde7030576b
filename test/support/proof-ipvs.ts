import { append } from '../../src/base/collections.ts'
import type { Ip } from '../../src/base/ip.ts'
import type { IpsetEntry } from '../../src/kernel/ipset/state.ts'
import type { AnyTable } from '../../src/kernel/nft/state.ts'
import type { Snapshot } from '../../src/model/snapshot.ts'
import { DEFAULT_IPVS_OPTIONS, IPVS_PROMISES } from '../../src/modes/ipvs/settings.ts'
import type { IpvsState } from '../../src/modes/ipvs/state.ts'
import type { Proving } from '../../src/modes/mode.ts'
import type { IpvsHeld } from '../../src/proof/ipvs.ts'
import type { Proof } from '../../src/proof/prove.ts'
import { ip, type PipelineConfig } from './pipeline.ts'
import { proofOf } from './proof.ts'
import { LOCAL_IPS } from './scenario.ts'

/** What a kernel holds beside nf_tables after a commit of a state. */
export function heldOf({ servers, sets, entries, addresses }: IpvsState): IpvsHeld {
  const bySet = new Map<string, IpsetEntry[]>()
  for (const { set, entry } of entries.values()) append(bySet, set, entry)
  const bound = addresses.values().map((its): Ip => its.ip)
  return {
    servers: [...servers.values()].map(({ server, destinations }) => ({
      server,
      destinations: [...destinations.values()],
    })),
    ipsets: [...sets.values()].map(set => ({ set, entries: bySet.get(set.name) ?? [] })),
    addresses: [...LOCAL_IPS.map(ip), ...bound],
  }
}

export const PROVING_IPVS: Proving = { promises: IPVS_PROMISES, owns: () => false }

export function proofOfIpvs(
  config: PipelineConfig,
  snapshot: Snapshot,
  { tables, held }: { readonly tables: readonly AnyTable[]; readonly held: IpvsHeld },
): Proof {
  const ipvs = { held, ownName: DEFAULT_IPVS_OPTIONS.tableName }
  return proofOf(config, snapshot, tables, PROVING_IPVS, ipvs)
}
