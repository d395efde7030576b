import { readFile } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { type TuneOptions, type TuneReport, tuneSysctls } from '../sysctl/sysctls.ts'
import { type ConntrackSettings, conntrackSysctls } from './sysctls.ts'

/** Sets the kernel's conntrack sysctls. Does not reject. */
export async function tuneConntrack(
  settings: ConntrackSettings,
  { root = '/' }: TuneOptions = {},
): Promise<TuneReport> {
  return await tuneSysctls(conntrackSysctls(settings, await countProcessors(root)), { root })
}

/** Counts the processors of the machine, even if this process may use only some: `0-3,8` is five. */
async function countProcessors(root: string): Promise<number> {
  try {
    const text = await readFile(`${root}sys/devices/system/cpu/online`, 'utf8')
    return countOf(text.trim()) ?? availableParallelism()
  } catch {
    return availableParallelism()
  }
}

function countOf(list: string): number | undefined {
  let count = 0
  for (const part of list.split(',')) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(part)
    if (match === null) return undefined
    count += Number(match[2] ?? match[1]) - Number(match[1]) + 1
  }
  return count
}
