import { FAMILIES } from '../base/ip.ts'
import type { Config } from '../config/config.ts'
import { DEFAULT_IPVS_OPTIONS, type IpvsOptions } from '../dataplane/ipvs/options.ts'
import { detectorOf } from './detector.ts'

/** The device that Services' addresses are bound to: they are no addresses of this machine. */
export const IPVS_DEVICE = DEFAULT_IPVS_OPTIONS.deviceName

export function ipvsOptions(config: Config): IpvsOptions {
  const { detectLocal, masqueradeAll, masqueradeBit, ipvs } = config
  const [IPv4, IPv6] = FAMILIES.map(family => detectorOf(detectLocal, family))
  return {
    ...DEFAULT_IPVS_OPTIONS,
    scheduler: ipvs.scheduler,
    excludeCidrs: ipvs.excludeCidrs,
    masqueradeAll,
    masqueradeBit,
    detector: { IPv4, IPv6 },
    drainMs: ipvs.drainTimeoutMs,
    digestMs: ipvs.digestPeriodMs,
  }
}
