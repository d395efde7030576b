import { readdirSync, readFileSync } from 'node:fs'
import { defineConfig } from 'vitest/config'
import { BaseSequencer, type TestSpecification } from 'vitest/node'
import { keepNewest } from './test/support/keep-newest.ts'

/**
 * Nothing takes so long, not even on a machine that is twenty times slower than idle: only what hangs does. Tests wait by
 * test/support/patience.ts and set no limit of their own; a stage that is silent for still longer is ended by test/stages.
 */
const HANGS_MS = 1_200_000
const limits = {
  testTimeout: HANGS_MS,
  hookTimeout: HANGS_MS,
  expect: { poll: { timeout: 120_000 } },
} as const

/**
 * `unit` needs nothing but Node. The others speak with the real kernel: they run inside a namespace of their own (see
 * the scripts of package.json), one file at a time, because the namespace is shared by the files of one run.
 *
 * `faults` mostly waits, and each of its files makes a network namespace for itself: a few at a time.
 */
const onTheKernel = {
  pool: 'forks',
  globalSetup: 'test/support/require-build.mjs',
  fileParallelism: false,
  ...limits,
} as const

const PACKETS = 'test/scenarios/**/packets*.test.ts'
const WALK = 'test/scenarios/**/walk*.test.ts'
/** Tests that replace modules of Node.js or of ours, for whoever imports them behind it. */
const MOCKED = readdirSync('test/unit', { recursive: true, encoding: 'utf8' })
  .map(name => `test/unit/${name}`)
  .filter(path => path.endsWith('.test.ts') && readFileSync(path, 'utf8').includes('vi.mock('))
const CONTRACT_ON_KERNEL = 'test/contract/**/kernel*.test.ts'

/**
 * `*.long.test.ts` take long for what a change breaks in them: `.ci/run` runs those on the kernel, `npm run ok` none. What
 * else `npm run ok` leaves out: docs/how-to/test-suite.md.
 */
const LONG = '**/*.long.test.ts'
const IS_QUICK = process.env.KPROBE_QUICK === '1'

const MODULE_CACHE = '.cache/modules'
/** Three times what one run reads, 60 MB. Nothing else ever removes a module that has changed. */
const MODULES_MAX = 3_000
if (IS_QUICK) keepNewest(MODULE_CACHE, MODULES_MAX)

/** Files that take long for their size: whoever begins with them is not left waiting for them at the end. */
const FIRST = /test\/faults\/(cluster-half-open|restart)\.test\.ts$|\.long\.test\.ts$/

class LongFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const bySize = await super.sort(files)
    const isLong = ({ moduleId }: TestSpecification) => FIRST.test(moduleId)
    return [...bySize.filter(isLong), ...bySize.filter(file => !isLong(file))]
  }
}

/** Two projects: NAME of what `npm test` runs, and NAME-long of what takes long. */
function both(name: string, include: readonly string[], options: Readonly<Record<string, unknown>> = {}) {
  const long = include.map(pattern => pattern.replace(/\*\.test\.ts$/, '*.long.test.ts'))
  return [
    { test: { name, include: [...include], exclude: [LONG], ...onTheKernel, ...options } },
    { test: { name: `${name}-long`, include: long, ...onTheKernel, ...options } },
  ]
}

export default defineConfig({
  test: {
    // Of several runs at once, one would read the cache while another writes it; and the order is always the same.
    cache: false,
    // Sources as they are run, by what is in them: a third less of what it takes to load them.
    experimental: { fsModuleCache: IS_QUICK, fsModuleCachePath: MODULE_CACHE },
    sequence: { sequencer: LongFirst },
    // The process that hands out the files has next to nothing to do.
    maxWorkers: '100%',
    projects: [
      {
        test: {
          name: 'unit',
          // Of threads of one process, one forks while another closes a socket: the child has the socket until it execs.
          pool: 'forks',
          include: [
            'test/{unit,fuzz,scenarios,contract}/**/*.test.ts',
            'test/attack/*.test.ts',
            'test/architecture.test.ts',
          ],
          exclude: [PACKETS, WALK, CONTRACT_ON_KERNEL, ...MOCKED, ...(IS_QUICK ? [LONG] : [])],
          ...limits,
          // No module has state (test/architecture.test.ts): reading them anew for each of 400 files took a third of the time.
          isolate: false,
          restoreMocks: true,
          setupFiles: ['test/support/properties.ts'],
        },
      },
      { test: { name: 'unit-mocked', pool: 'threads', include: MOCKED, ...limits } },
      // Seeds of the simulator: KPROBE_SEEDS says how many.
      { test: { name: 'sim', pool: 'threads', include: ['test/sim/**/*.test.ts'], ...limits } },
      { test: { name: 'contract', include: [CONTRACT_ON_KERNEL], ...onTheKernel } },
      { test: { name: 'scenarios', include: [PACKETS, WALK], ...onTheKernel } },
      // As root, outside of any namespace: it makes its own.
      { test: { name: 'cluster', include: ['test/cluster/**/*.test.ts'], ...onTheKernel } },
      // A real browser.
      { test: { name: 'browser', include: ['test/browser/**/*.test.ts'], ...onTheKernel } },
      { test: { name: 'churn', include: ['test/churn/**/*.test.ts'], ...onTheKernel } },
      ...both('kernel', ['test/kernel/**/*.test.ts']),
      // A real control plane, which takes its time.
      ...both('reference', ['test/reference/**/*.test.ts']),
      ...both('faults', ['test/faults/**/*.test.ts', 'test/attack/kernel/*.test.ts'], {
        fileParallelism: true,
        maxWorkers: 3,
        // Groups of projects with different numbers of workers have to differ.
        sequence: { groupOrder: 1 },
      }),
    ],
    coverage: { include: ['src/**/*.ts'], reporter: ['text-summary'] },
  },
})
