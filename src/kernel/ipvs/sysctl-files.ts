import { readFile } from 'node:fs/promises'
import { errorOf } from '../../base/thrown.ts'
import {
  readSysctl,
  type TuneFailure,
  type TuneOptions,
  type TuneReport,
  writeSysctl,
} from '../sysctl/files.ts'
import type { SysctlWrite } from '../sysctl/sysctl.ts'
import { type IpvsSysctlSettings, ipvsSysctls, planIpvsSysctls } from './sysctls.ts'

/** Brings the kernel's settings to what IPVS mode needs, as ipvsSysctls says. Does not reject. */
export async function tuneIpvs(
  settings: IpvsSysctlSettings,
  { root = '/' }: TuneOptions = {},
): Promise<TuneReport> {
  const failed: TuneFailure[] = []
  const values = new Map<string, number | undefined>()
  const list = ipvsSysctls(settings, await readRelease(root))
  for (const { sysctl } of list) {
    const { name, path } = sysctl
    try {
      values.set(name, await readSysctl(root + path))
    } catch (thrown) {
      failed.push({ name, value: undefined, error: errorOf(thrown) })
    }
  }
  const unread = new Set(failed.map(({ name }) => name))
  const plan = planIpvsSysctls(
    list.filter(({ sysctl }) => !unread.has(sysctl.name)),
    values,
  )
  const written: SysctlWrite[] = []
  for (const write of plan.writes) {
    const error = await writeSysctl(root + write.path, write.value)
    if (error === undefined) written.push(write)
    else failed.push({ name: write.name, value: write.value, error })
  }
  return { written, left: plan.left, failed }
}

/** Empty where the kernel does not tell. */
async function readRelease(root: string): Promise<string> {
  try {
    return await readFile(`${root}proc/sys/kernel/osrelease`, 'utf8')
  } catch {
    return ''
  }
}
