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

/** A setting that needs exactly this value: a larger one that another program set is overwritten. */
export interface WantedSysctl {
  readonly sysctl: Sysctl
  readonly value: number
}

interface SwitchPlan {
  readonly writes: readonly SysctlWrite[]
  readonly left: readonly SysctlLeft[]
}

/** Returns the sysctl of a name under /proc/sys, with slashes. */
export function wantedSysctl(name: string, value: number): WantedSysctl {
  return { sysctl: { name, path: `proc/sys/${name}` }, value }
}

/** Plans the writes. `values` are the current ones by name, undefined for sysctls that this kernel lacks. */
export function planSwitches(
  list: readonly WantedSysctl[],
  values: ReadonlyMap<string, number | undefined>,
): SwitchPlan {
  const writes: SysctlWrite[] = []
  const left: SysctlLeft[] = []
  for (const { sysctl, value } of list) {
    const { name } = sysctl
    const before = values.get(name)
    if (before === undefined) left.push({ name, wanted: value, reason: 'missing', value: before })
    else if (before === value) left.push({ name, wanted: value, reason: 'equal', value })
    else writes.push({ ...sysctl, value, before })
  }
  return { writes, left }
}

/** Sets each sysctl to its wanted value. Does not reject. */
export async function tuneSwitches(
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
  const plan = planSwitches(
    list.filter(({ sysctl }) => !unread.some(({ name }) => name === sysctl.name)),
    values,
  )
  const { written, failed } = await writeSysctls(plan.writes, root)
  return { written, left: plan.left, failed: [...unread, ...failed] }
}
