import type { IpvsHeld } from '../../src/kernel/evaluate/ipvs.ts'
import type { AnyTable } from '../../src/kernel/nft/state.ts'
import type { Snapshot } from '../../src/model/snapshot.ts'
import { IPVS_PROMISES } from '../../src/modes/ipvs/proving.ts'
import { DEFAULT_IPVS_OPTIONS } from '../../src/modes/ipvs/settings.ts'
import type { IpvsState } from '../../src/modes/ipvs/state.ts'
import { ipvsHeld } from '../../src/modes/ipvs/trace.ts'
import type { Proving } from '../../src/modes/mode.ts'
import type { Proof } from '../../src/proof/prove.ts'
import { ip, type PipelineConfig } from './pipeline.ts'
import { proofOf } from './proof.ts'
import { LOCAL_IPS } from './scenario.ts'

/** What a kernel holds beside nf_tables after a commit of a state. */
export function heldOf(state: IpvsState): IpvsHeld {
  const held = ipvsHeld(state)
  return { ...held, addresses: [...LOCAL_IPS.map(ip), ...held.addresses] }
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
