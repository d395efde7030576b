import type { Snapshot } from '../model/snapshot.ts'
import { NFT_FAMILIES } from '../modes/common/tables.ts'
import type { ModeContext } from '../modes/mode.ts'
import { findMode, readModes } from '../modes/registry.ts'
import type { ActiveMode } from './mode-switcher.ts'

/**
 * Tests whether serving a saved Snapshot makes no Service older that the kernel serves. It may where the kernel serves
 * none, as after a reboot, or exactly those. What relays of an earlier process served ended with it.
 */
export async function mayServe(
  snapshot: Snapshot,
  { config, sockets, clock }: Pick<ModeContext, 'config' | 'sockets' | 'clock'>,
  active: Pick<ActiveMode, 'mode' | 'differenceTo'> | undefined,
): Promise<boolean> {
  if (active === undefined) return false
  const { serviceProxyName: proxyName } = config
  const { held } = await readModes({ families: NFT_FAMILIES, proxyName, sockets, clock })
  const lasting = held.filter(({ mode }) => findMode(mode).relays !== true)
  if (lasting.length === 0) return true
  if (lasting.some(({ mode }) => mode !== active.mode)) return false
  const { lines, complete } = await active.differenceTo(snapshot)
  return complete && lines.length === 0
}
