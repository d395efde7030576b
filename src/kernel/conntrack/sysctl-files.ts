import { readFile, writeFile } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { errorOf } from '../../base/thrown.ts'
import {
  type ConntrackSettings,
  planSysctls,
  SYSCTLS,
  type Sysctl,
  type SysctlFacts,
  type SysctlLeft,
  type SysctlWrite,
} from './sysctls.ts'

export interface TuneReport {
  readonly written: readonly SysctlWrite[]
  readonly left: readonly SysctlLeft[]
  /** What was to be written or read and could not; nothing else depends on it. */
  readonly failed: readonly TuneFailure[]
}

export interface TuneFailure {
  readonly name: string
  /** Undefined when it could not even be read. */
  readonly value: number | undefined
  readonly error: Error
}

export interface TuneOptions {
  /** Where proc and sys are, with a slash at its end. */
  readonly root?: string
}

/** Brings the kernel's settings to what is wanted, as planSysctls says. Does not reject. */
export async function tuneConntrack(
  settings: ConntrackSettings,
  { root = '/' }: TuneOptions = {},
): Promise<TuneReport> {
  const unreadable: TuneFailure[] = []
  const plan = planSysctls(settings, await readFacts(root, unreadable))
  // A file that is there and cannot be read is not missing, and matters only if something is wanted of it.
  const isUnreadable = ({ name }: SysctlLeft) => unreadable.some(failure => failure.name === name)
  const failed = unreadable.filter(({ name }) => plan.left.some(each => each.name === name))
  const written: SysctlWrite[] = []
  for (const write of plan.writes) {
    const { name, value } = write
    const error = await writeValue(root + write.path, value)
    if (error === undefined) written.push(write)
    else failed.push({ name, value, error })
  }
  return { written, left: plan.left.filter(each => !isUnreadable(each)), failed }
}

async function readFacts(root: string, unreadable: TuneFailure[]): Promise<SysctlFacts> {
  const read = async ({ name, path }: Sysctl): Promise<number | undefined> => {
    try {
      return await readValue(root + path)
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
    tcpBeLiberal: await read(SYSCTLS.tcpBeLiberal),
    udp: await read(SYSCTLS.udp),
    udpStream: await read(SYSCTLS.udpStream),
  }
  return { processors: await countProcessors(root), values }
}

/** Undefined when there is no such file. */
async function readValue(path: string): Promise<number | undefined> {
  let text: string
  try {
    text = await readFile(path, 'utf8')
  } catch (thrown) {
    if (thrown instanceof Error && 'code' in thrown && thrown.code === 'ENOENT') return undefined
    throw thrown
  }
  const value = Number(text.trim())
  if (text.trim() === '' || !Number.isInteger(value))
    throw new Error(`${path}: not a number: ${JSON.stringify(text)}`)
  return value
}

async function writeValue(path: string, value: number): Promise<Error | undefined> {
  try {
    await writeFile(path, String(value))
    return undefined
  } catch (thrown) {
    return errorOf(thrown)
  }
}

/** Of the machine, whatever part of it this process may use: `0-3,8` is five. */
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
