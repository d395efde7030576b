import { defineConfig } from 'vitest/config'

/**
 * `unit` needs nothing but Node. The others speak with the real kernel: they run inside a namespace of their own (see
 * the scripts of package.json), one file at a time, because the namespace is shared by the files of one run.
 */
const onTheKernel = {
  pool: 'forks',
  fileParallelism: false,
  testTimeout: 60_000,
  hookTimeout: 60_000,
  // Packets between namespaces get lost on a machine that is busy with something else: once more, and no oftener.
  retry: 1,
} as const

const PACKETS = 'test/scenarios/**/packets*.test.ts'
const WALK = 'test/scenarios/**/walk*.test.ts'
const CONTRACT_ON_KERNEL = 'test/contract/**/kernel*.test.ts'

export default defineConfig({
  test: {
    // The process that hands out the files has next to nothing to do.
    maxWorkers: '100%',
    projects: [
      {
        test: {
          name: 'unit',
          pool: 'threads',
          include: ['test/{unit,fuzz,scenarios,contract}/**/*.test.ts', 'test/architecture.test.ts'],
          exclude: [PACKETS, WALK, CONTRACT_ON_KERNEL],
          testTimeout: 60_000,
        },
      },
      // Seeds of the simulator: KPROBE_SEEDS says how many.
      { test: { name: 'sim', pool: 'threads', include: ['test/sim/**/*.test.ts'] } },
      { test: { name: 'contract', include: [CONTRACT_ON_KERNEL], ...onTheKernel } },
      { test: { name: 'kernel', include: ['test/kernel/**/*.test.ts'], ...onTheKernel } },
      { test: { name: 'scenarios', include: [PACKETS, WALK], ...onTheKernel } },
      // A real control plane, which takes its time.
      {
        test: {
          name: 'reference',
          include: ['test/reference/**/*.test.ts'],
          ...onTheKernel,
          testTimeout: 600_000,
          hookTimeout: 300_000,
        },
      },
      {
        test: {
          name: 'churn',
          include: ['test/churn/**/*.test.ts'],
          ...onTheKernel,
          testTimeout: 600_000,
          retry: 0,
        },
      },
      { test: { name: 'faults', include: ['test/faults/**/*.test.ts'], ...onTheKernel } },
    ],
    coverage: { include: ['src/**/*.ts'], reporter: ['text-summary'] },
  },
})
