import type { Config } from '../../config/config.ts'
import { tableNameOf } from '../../config/modes/userspace.ts'
import { type Detectors, detectorsOf } from '../common/detector.ts'
import { DEFAULT_LIMITS, type ForwarderLimits } from '../common/forwarder/context.ts'
import { NAT_PRIORITY, natPriorityOf } from '../common/rules.ts'

export interface UserspaceOptions {
  /** The name of both tables, `ip` and `ip6`. */
  readonly tableName: string
  /** The priority of the hooks that translate destinations: NAT_PRIORITY unless another proxy serves this node too. */
  readonly natPriority: number
  /** Distinguishes pods, which policy Local sends to endpoints everywhere, from other clients. */
  readonly detector: Detectors
  readonly limits: ForwarderLimits
}

export const DEFAULT_USERSPACE_OPTIONS: UserspaceOptions = {
  tableName: tableNameOf(undefined),
  natPriority: NAT_PRIORITY,
  detector: { IPv4: { kind: 'node-cidr' }, IPv6: { kind: 'node-cidr' } },
  limits: DEFAULT_LIMITS,
}

export function userspaceOptions({ detectLocal, serviceProxyName }: Config): UserspaceOptions {
  const tableName = tableNameOf(serviceProxyName)
  const natPriority = natPriorityOf(serviceProxyName)
  return { ...DEFAULT_USERSPACE_OPTIONS, tableName, natPriority, detector: detectorsOf(detectLocal) }
}
