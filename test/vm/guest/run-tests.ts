import './worker-state.ts'
import { execFileSync } from 'node:child_process'
import { type File, startTests, type Task, type Test, type VitestRunner } from '@vitest/runner'
import { getTests } from '@vitest/runner/utils'
import { enterNetns } from '../../support/lab/netns.ts'

export interface RunOptions {
  /** Only tests with such a name; a regular expression. */
  readonly pattern?: string
  /** For a test, and for a hook. */
  readonly timeoutMs: number
}

interface Failure {
  readonly name?: string
  readonly message?: string
  readonly diff?: string
  readonly stack?: string
}

type Loaders = Readonly<Record<string, () => Promise<unknown>>>

/** Marks a line that says how far it is: the host shows the last one, and keeps none. */
const PROGRESS = '\x1e'
const SLOW_MS = 5_000

/**
 * Runs test files with vitest's own runner, one behind the other in this one process, prints as vitest does, and ends
 * the process with what came of it.
 */
export async function runTests(loaders: Loaders, options: RunOptions): Promise<void> {
  // Until the summary is printed: whatever ends this early has not passed.
  process.exitCode = 1
  const strays: unknown[] = []
  process.on('unhandledRejection', reason => strays.push(reason))
  process.on('uncaughtException', error => strays.push(error))
  const runner = createRunner(loaders, options)
  const files: File[] = []
  for (const path of Object.keys(loaders)) {
    // Where a process of its own would begin: rules of an earlier file would judge the packets of this one.
    enterNetns('/proc/1/ns/net')
    nft('flush ruleset')
    const began = performance.now()
    const ran = await startTests([path], runner)
    files.push(...ran)
    for (const file of ran) printFile(file, performance.now() - began)
  }
  for (const stray of strays) console.log(` FAIL  outside of any test\n${errorText(stray)}\n`)
  printSummary(files)
  const failed = strays.length > 0 || files.length === 0 || files.some(isFailed)
  process.exit(failed ? 1 : 0)
}

function createRunner(loaders: Loaders, { pattern, timeoutMs }: RunOptions): VitestRunner {
  return {
    config: {
      root: '/',
      setupFiles: [],
      name: undefined,
      passWithNoTests: pattern !== undefined,
      testNamePattern: pattern === undefined ? undefined : new RegExp(pattern),
      allowOnly: false,
      sequence: { seed: 0, hooks: 'stack', setupFiles: 'list' },
      chaiConfig: undefined,
      maxConcurrency: 1,
      testTimeout: timeoutMs,
      hookTimeout: timeoutMs,
      retry: 0,
      includeTaskLocation: false,
      tags: [],
      tagsFilter: undefined,
      strictTags: false,
    },
    importFile: path => loaders[path]?.(),
    onBeforeRunTask: test => console.log(`${PROGRESS}${test.file.filepath} > ${titleOf(test)}`),
  }
}

function nft(command: string): string {
  return execFileSync('nft', command.split(' '), { encoding: 'utf8' })
}

function printFile(file: File, ms: number): void {
  const tests = getTests(file)
  console.log(`${PROGRESS}`)
  console.log(` ${isFailed(file) ? '❯' : '✓'} ${file.filepath} (${tests.length} tests) ${Math.round(ms)} ms`)
  for (const test of tests.filter(one => (one.result?.duration ?? 0) > SLOW_MS))
    console.log(`     ${titleOf(test)} ${Math.round(test.result?.duration ?? 0)} ms`)
  for (const task of failures(file)) {
    console.log(`\n FAIL  ${[file.filepath, titleOf(task)].filter(part => part !== '').join(' > ')}`)
    for (const error of task.result?.errors ?? []) console.log(`${errorText(error)}\n`)
  }
}

function* failures(task: Task): Generator<Task> {
  if ((task.result?.errors?.length ?? 0) > 0 && task.result?.state === 'fail') yield task
  if ('tasks' in task) for (const child of task.tasks) yield* failures(child)
}

function isFailed(file: File): boolean {
  return !failures(file).next().done
}

/** Without the file. */
function titleOf(task: Task): string {
  const names: string[] = []
  for (
    let at: Task | undefined = task;
    (at !== undefined && at.type !== 'suite') || at?.suite !== undefined;
    at = at?.suite
  )
    names.unshift(at?.name ?? '')
  return names.join(' > ')
}

function errorText(error: unknown): string {
  if (typeof error !== 'object' || error === null) return String(error)
  const { name, message, diff, stack }: Failure = error
  const frames = `${stack ?? ''}`.split('\n').filter(line => /^ +at /.test(line))
  return [`${name ?? 'Error'}: ${message}`, ...(diff === undefined ? [] : [diff]), ...frames].join('\n')
}

function printSummary(files: readonly File[]): void {
  const tests = files.flatMap(file => getTests(file))
  console.log('')
  console.log(` Test Files  ${counts(files.map(file => (isFailed(file) ? 'fail' : 'pass')))}`)
  console.log(`      Tests  ${counts(tests.map(stateOf))}`)
}

function stateOf(test: Test): string {
  return test.mode === 'skip' || test.mode === 'todo' ? 'skip' : (test.result?.state ?? 'skip')
}

function counts(states: readonly string[]): string {
  const named = [
    ['fail', 'failed'],
    ['pass', 'passed'],
    ['skip', 'skipped'],
  ] as const
  const parts = named
    .map(([state, word]) => [states.filter(one => one === state).length, word] as const)
    .filter(([count]) => count > 0)
    .map(([count, word]) => `${count} ${word}`)
  return `${parts.join(' | ')} (${states.length})`
}
