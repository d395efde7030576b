import { nsToMs } from '../base/duration.ts'
import type { IpvsConfig } from './config.ts'
import type { FieldPath, PathOf } from './fields.ts'
import { quote, readCidrs } from './flag-reader.ts'
import type { IpvsFlags } from './ipvs-flags.ts'
import { modeOf } from './mode-fields.ts'
import type { Settings } from './settings.ts'

/**
 * In another mode nothing of it is wrong, as in kube-proxy; it is read all the same, because what IPVS has left from
 * before is removed by it.
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

/** The default of IPVS's own tools and of kube-proxy. */
const DEFAULT_SCHEDULER = 'rr'
/** IP_VS_SCHEDNAME_MAXLEN less the closing zero. */
const SCHEDULER_NAME_MAX = 15

/** Which schedulers there are only the kernel knows: modules may add some. */
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

/** struct ip_vs_timeout_user holds an int, of which ip_vs_set_timeout() takes so many seconds (INT_MAX / HZ, HZ 1000). */
const TIMEOUT_S_MAX = 2_147_483

/** What is shorter than a second is one: zero would leave what the kernel has. */
function timeoutS(settings: Settings, path: PathOf<'duration'>): number {
  const ms = nsToMs(settings.duration(path))
  return ms <= 0 ? 0 : Math.min(TIMEOUT_S_MAX, Math.max(1, Math.floor(ms / 1_000)))
}
