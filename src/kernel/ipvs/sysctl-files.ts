import { readFile } from 'node:fs/promises'
import { type TuneOptions, type TuneReport, tuneSysctls } from '../sysctl/sysctls.ts'
import { type IpvsSysctlSettings, ipvsSysctls } from './sysctls.ts'

/** Sets the kernel's sysctls for IPVS mode, as ipvsSysctls lists them. Does not reject. */
export async function tuneIpvs(
  settings: IpvsSysctlSettings,
  { root = '/' }: TuneOptions = {},
): Promise<TuneReport> {
  return await tuneSysctls(ipvsSysctls(settings, await readRelease(root)), { root })
}

/** Empty where the kernel does not report it. */
async function readRelease(root: string): Promise<string> {
  try {
    return await readFile(`${root}proc/sys/kernel/osrelease`, 'utf8')
  } catch {
    return ''
  }
}
