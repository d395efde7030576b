import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, renameSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const CACHE = fileURLToPath(new URL('../../../.cache/lab/', import.meta.url))

/** Compiles one of the C programs beside this file, once per version of its source; gives the program's path. */
export function buildProgram(name: string): string {
  const source = fileURLToPath(new URL(`${name}.c`, import.meta.url))
  const version = createHash('sha256').update(readFileSync(source)).digest('hex').slice(0, 12)
  const program = `${CACHE}${name}-${version}`
  if (existsSync(program)) return program
  mkdirSync(CACHE, { recursive: true })
  // Renamed into place, since another test process may be compiling the same program.
  const unfinished = `${program}.${process.pid}`
  execFileSync('gcc', ['-O2', '-Wall', '-Wextra', '-Werror', '-o', unfinished, source], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  renameSync(unfinished, program)
  return program
}
