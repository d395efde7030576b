import type { Family } from '../../base/ip.ts'
import type { DetectorOption } from '../common/detector.ts'
import { DEFAULT_LIMITS, type RelayLimits } from './relay/context.ts'

export interface UserspaceOptions {
  /** Of both tables, `ip` and `ip6`. */
  readonly tableName: string
  /** Tells pods, which policy Local sends everywhere, from others. */
  readonly detector: Readonly<Record<Family, DetectorOption | undefined>>
  readonly limits: RelayLimits
}

export const DEFAULT_USERSPACE_OPTIONS: UserspaceOptions = {
  tableName: 'kube-proxy-userspace',
  detector: { IPv4: { kind: 'node-cidr' }, IPv6: { kind: 'node-cidr' } },
  limits: DEFAULT_LIMITS,
}
