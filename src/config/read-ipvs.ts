import { nsToMs } from '../base/duration.ts'
import type { IpvsConfig } from './config.ts'
import type { FieldPath, PathOf } from './fields.ts'
import { quote, readCidrs } from './flag-reader.ts'
import type { IpvsFlags } from './ipvs-flags.ts'
import { modeOf } from './mode-fields.ts'
import type { Settings } from './settings.ts'

/**
 * Reads the options of IPVS mode in every mode, because the removal of its leftovers needs them. As in kube-proxy, they
 * cause no error in another mode.
 */
export function readIpvs(settings: Settings, flags: IpvsFlags): IpvsConfig {
  const fail: Fail = (path, message, index) => {
    if (modeOf(settings) === 'ipvs') settings.fail(path, message, index)
  }
  return {
    scheduler: readScheduler(settings, fail),
    excludeCidrs: readCidrs(settings.texts('ipvs.excludeCIDRs'), (index, message) =>
      fail('ipvs.excludeCIDRs', message, index),
    ),
    strictArp: settings.bool('ipvs.strictARP'),
    tcpTimeoutS: timeoutS(settings, 'ipvs.tcpTimeout'),
    tcpFinTimeoutS: timeoutS(settings, 'ipvs.tcpFinTimeout'),
    udpTimeoutS: timeoutS(settings, 'ipvs.udpTimeout'),
    ...flags,
  }
}

type Fail = (path: FieldPath, message: string, index?: number) => void

/** The scheduler that IPVS's own tools and kube-proxy default to. */
const DEFAULT_SCHEDULER = 'rr'
/** IP_VS_SCHEDNAME_MAXLEN without the final zero. */
const SCHEDULER_NAME_MAX = 15

/** Reads the scheduler. The list of valid ones is known only to the kernel: modules may add some. */
function readScheduler(settings: Settings, fail: Fail): string {
  const name = settings.text('ipvs.scheduler')
  if (name === '') return DEFAULT_SCHEDULER
  if (!/^[a-z0-9_-]+$/.test(name) || name.length > SCHEDULER_NAME_MAX)
    fail(
      'ipvs.scheduler',
      `${quote(name)} cannot be the name of a scheduler (at most ${SCHEDULER_NAME_MAX} small letters and digits)`,
    )
  return name
}

/**
 * Maximum timeout: ip_vs_set_timeout() accepts INT_MAX / HZ seconds (HZ 1000) in the int of struct ip_vs_timeout_user.
 */
const TIMEOUT_S_MAX = 2_147_483

/** Reads a timeout. A value below a second becomes one second, because zero would keep the kernel's value. */
function timeoutS(settings: Settings, path: PathOf<'duration'>): number {
  const ms = nsToMs(settings.duration(path))
  return ms <= 0 ? 0 : Math.min(TIMEOUT_S_MAX, Math.max(1, Math.floor(ms / 1_000)))
}
