import { access, constants, stat } from 'node:fs/promises'
import { quote } from '../config/flag-reader.ts'

/** The program of one --exec. */
export interface ApiProgram {
  /** The value of --exec. */
  readonly name: string
  /** A path, or a name that is searched in PATH. */
  readonly command: string
  readonly args: readonly string[]
}

interface ApiProgramOptions {
  /** The arguments after `--`. */
  readonly args: readonly string[]
  /** PATH; undefined when there is none. */
  readonly path: string | undefined
  /** Reports why the program cannot be used. */
  readonly fail: (message: string) => void
}

const SHELL = '/bin/sh'

/**
 * Reads one --exec. Its value is a program, which gets the arguments after `--`. A value with spaces that names no
 * program is a line for the shell, with its own arguments.
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

/**
 * Makes a pipe fail with any of its commands, if the shell can. The test runs in a subshell, because a shell without
 * the option (dash 0.5.12) would exit.
 */
const PIPEFAIL = '(set -o pipefail) 2>/dev/null && set -o pipefail'

export function isLine({ name, command }: ApiProgram): boolean {
  return name !== command
}

/** Only a path that does not exist is known to fail beforehand. The shell reports other errors with its exit code. */
async function whyNotLine(line: string, path: string | undefined): Promise<string | undefined> {
  if ((await whyNotProgram(SHELL, path)) !== undefined)
    return `no program has this name, and there is no ${SHELL} to run it as a line; put arguments of a program after --`
  const [, first] = /^\s*([\w./+-]*\/[\w./+-]*)(?:\s|$)/.exec(line) ?? []
  const whyNot = first === undefined ? undefined : await whyNotProgram(first, path)
  return whyNot === undefined ? undefined : `${first}: ${whyNot}`
}

const ABSENT = 'no such program'
/** The search path that execvp(3) uses without PATH. */
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
    // A line may exceed the maximum length of a name.
    if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'ENAMETOOLONG') return ABSENT
    return code === 'EACCES' ? 'is not executable' : String(error)
  }
}
