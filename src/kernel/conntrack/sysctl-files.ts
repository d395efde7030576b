import { readFile } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { errorOf } from '../../base/failure-text.ts'
import {
  readSysctl,
  type Sysctl,
  type SysctlLeft,
  type TuneFailure,
  type TuneOptions,
  type TuneReport,
  writeSysctls,
} from '../sysctl/files.ts'
import { type ConntrackSettings, planSysctls, SYSCTLS, type SysctlFacts } from './sysctls.ts'

/** Sets the kernel's conntrack sysctls as planSysctls plans them. Does not reject. */
export async function tuneConntrack(
  settings: ConntrackSettings,
  { root = '/' }: TuneOptions = {},
): Promise<TuneReport> {
  const unreadable: TuneFailure[] = []
  const plan = planSysctls(settings, await readFacts(root, unreadable))
  // A file that exists but cannot be read is not missing; it matters only if a value is wanted.
  const isUnreadable = ({ name }: SysctlLeft) => unreadable.some(failure => failure.name === name)
  const unread = unreadable.filter(({ name }) => plan.left.some(each => each.name === name))
  const { written, failed } = await writeSysctls(plan.writes, root)
  return { written, left: plan.left.filter(each => !isUnreadable(each)), failed: [...unread, ...failed] }
}

async function readFacts(root: string, unreadable: TuneFailure[]): Promise<SysctlFacts> {
  const read = async ({ name, path }: Sysctl): Promise<number | undefined> => {
    try {
      return await readSysctl(root + path)
    } catch (thrown) {
      unreadable.push({ name, value: undefined, error: errorOf(thrown) })
      return undefined
    }
  }
  const values = {
    max: await read(SYSCTLS.max),
    hashSize: await read(SYSCTLS.hashSize),
    tcpEstablished: await read(SYSCTLS.tcpEstablished),
    tcpCloseWait: await read(SYSCTLS.tcpCloseWait),
    tcpFinWait: await read(SYSCTLS.tcpFinWait),
    tcpTimeWait: await read(SYSCTLS.tcpTimeWait),
    tcpBeLiberal: await read(SYSCTLS.tcpBeLiberal),
    udp: await read(SYSCTLS.udp),
    udpStream: await read(SYSCTLS.udpStream),
  }
  return { processors: await countProcessors(root), values }
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
