import { readFileSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { errorOf } from '../../base/failure-text.ts'

/** One number of the kernel that is read and written as a file. */
export interface Sysctl {
  readonly name: string
  /** From the root of the file system. */
  readonly path: string
}

export interface SysctlWrite extends Sysctl {
  readonly value: number
  readonly before: number
}

/** What is wanted and not written. */
export interface SysctlLeft {
  readonly name: string
  readonly wanted: number
  readonly reason: /** It has that value. */
    | 'equal'
    /** Somebody made it larger. */
    | 'larger'
    /** The kernel has no such file. */
    | 'missing'
  /** Undefined when it is missing. */
  readonly value: number | undefined
}

/** What became of settings of the kernel. */
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

/** Undefined when there is no such file. Throws when it cannot be read, or is no number. */
export async function readSysctl(path: string): Promise<number | undefined> {
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

/** At once, for what has to be known before a plane is there: undefined also where it cannot be read. */
export function settingNow(path: string): number | undefined {
  try {
    const text = readFileSync(path, 'utf8').trim()
    return /^-?\d+$/.test(text) ? Number(text) : undefined
  } catch {
    return undefined
  }
}

/** Gives why it could not be written. */
export async function writeSysctl(path: string, value: number): Promise<Error | undefined> {
  try {
    await writeFile(path, String(value))
    return undefined
  } catch (thrown) {
    return errorOf(thrown)
  }
}
