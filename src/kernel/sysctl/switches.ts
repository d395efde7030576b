import { errorOf } from '../../base/failure-text.ts'
import {
  readSysctl,
  type Sysctl,
  type SysctlLeft,
  type SysctlWrite,
  type TuneFailure,
  type TuneOptions,
  type TuneReport,
  writeSysctls,
} from './files.ts'

export interface WantedSysctl {
  readonly sysctl: Sysctl
  readonly value: number
  /** Keeps a larger value, unless it is the kernel's default; otherwise kprobe overwrites every other value. */
  readonly keepsLarger?: boolean
}

export interface SysctlPlan {
  readonly writes: readonly SysctlWrite[]
  readonly left: readonly SysctlLeft[]
}

/** Returns the sysctl of a name under /proc/sys, with slashes. */
export function wantedSysctl(name: string, value: number): WantedSysctl {
  return { sysctl: { name, path: `proc/sys/${name}` }, value }
}

/** Plans the writes, in the order of `list`. `values` are the current ones by name, undefined for missing sysctls. */
export function planSysctls(
  list: readonly WantedSysctl[],
  values: ReadonlyMap<string, number | undefined>,
): SysctlPlan {
  const writes: SysctlWrite[] = []
  const left: SysctlLeft[] = []
  for (const { sysctl, value: wanted, keepsLarger = false } of list) {
    const { name, path, initial } = sysctl
    const value = values.get(name)
    if (value === undefined) left.push({ name, wanted, reason: 'missing', value })
    else if (value === wanted) left.push({ name, wanted, reason: 'equal', value })
    else if (value > wanted && keepsLarger && value !== initial)
      left.push({ name, wanted, reason: 'larger', value })
    else writes.push({ name, path, value: wanted, before: value })
  }
  return { writes, left }
}

/** Sets sysctls as planSysctls plans it. Does not reject. */
export async function tuneSysctls(
  list: readonly WantedSysctl[],
  { root = '/' }: TuneOptions = {},
): Promise<TuneReport> {
  const unread: TuneFailure[] = []
  const values = new Map<string, number | undefined>()
  for (const { sysctl } of list) {
    const { name, path } = sysctl
    try {
      values.set(name, await readSysctl(root + path))
    } catch (thrown) {
      unread.push({ name, value: undefined, error: errorOf(thrown) })
    }
  }
  // A file that exists but cannot be read is not missing.
  const readable = list.filter(({ sysctl }) => values.has(sysctl.name))
  const plan = planSysctls(readable, values)
  const { written, failed } = await writeSysctls(plan.writes, root)
  return { written, left: plan.left, failed: [...unread, ...failed] }
}
