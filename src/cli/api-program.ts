import { access, constants, stat } from 'node:fs/promises'
import { quote } from '../config/flag-reader.ts'

/** What one --exec starts. */
export interface ApiProgram {
  /** As it was given. */
  readonly name: string
  /** A path, or a name that is looked for in PATH. */
  readonly command: string
  readonly args: readonly string[]
}

interface ApiProgramOptions {
  /** What stands behind `--`. */
  readonly args: readonly string[]
  /** PATH; undefined when there is none. */
  readonly path: string | undefined
  /** Why there is no such program. */
  readonly fail: (message: string) => void
}

const SHELL = '/bin/sh'

/**
 * A program, of which the arguments behind `--` are; or, where nothing has that name and it has blanks in it, a line that
 * the shell runs, with arguments of its own.
 */
export async function readApiProgram(
  given: string,
  { args, path, fail }: ApiProgramOptions,
): Promise<ApiProgram> {
  const program = { name: given, command: given, args }
  if (given.trim() === '' || given.includes('\0')) {
    fail(`${quote(given)} names no program`)
    return program
  }
  const whyNot = await whyNotProgram(given, path)
  if (whyNot !== ABSENT || !/\s/.test(given)) {
    if (whyNot !== undefined) fail(`${quote(given)}: ${whyNot}`)
    return program
  }
  const problem = await whyNotLine(given, path)
  if (problem !== undefined) fail(`${quote(given)}: ${problem}`)
  return { name: given, command: SHELL, args: ['-c', `${PIPEFAIL}; ${given}`] }
}

/** A pipe fails with any of its commands, where the shell can do that; a shell that cannot (dash 0.5.12) would end. */
const PIPEFAIL = '(set -o pipefail) 2>/dev/null && set -o pipefail'

export function isLine({ name, command }: ApiProgram): boolean {
  return name !== command
}

/** What the shell finds out for itself is the exit code of a run; a path that is nowhere is known before. */
async function whyNotLine(line: string, path: string | undefined): Promise<string | undefined> {
  if ((await whyNotProgram(SHELL, path)) !== undefined)
    return `no program has this name, and there is no ${SHELL} to run it as a line; put arguments of a program after --`
  const [, first] = /^\s*([\w./+-]*\/[\w./+-]*)(?:\s|$)/.exec(line) ?? []
  const whyNot = first === undefined ? undefined : await whyNotProgram(first, path)
  return whyNot === undefined ? undefined : `${first}: ${whyNot}`
}

const ABSENT = 'no such program'
/** Of execvp(3), where there is no PATH. */
const DEFAULT_PATH = '/bin:/usr/bin'

async function whyNotProgram(command: string, path = DEFAULT_PATH): Promise<string | undefined> {
  if (command.includes('/')) return await whyNotFile(command)
  const found = await Promise.all(path.split(':').map(folder => whyNotFile(`${folder || '.'}/${command}`)))
  if (found.includes(undefined)) return undefined
  return found.find(whyNot => whyNot !== ABSENT) ?? ABSENT
}

async function whyNotFile(file: string): Promise<string | undefined> {
  try {
    if (!(await stat(file)).isFile()) return 'is not a file'
    await access(file, constants.X_OK)
    return undefined
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined
    // A line may be longer than any name.
    if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'ENAMETOOLONG') return ABSENT
    return code === 'EACCES' ? 'is not executable' : String(error)
  }
}
