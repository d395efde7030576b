// The stages of `npm test`, in the order in which a change breaks them.

const vitest = (project, ...more) => ['vitest', 'run', '--reporter=verbose', '--project', project, ...more]
const onTheKernel = (project, ...more) => ['unshare', '-Urnm', ...vitest(project, ...more)]

/** What `npm test` runs. */
const CORE = [
  { name: 'types', load: 1, silentSeconds: 600, command: ['tsc', '-p', '.'] },
  { name: 'lint', load: 1, silentSeconds: 600, command: ['npm', 'run', '-s', 'lint'] },
  { name: 'format', load: 1, silentSeconds: 600, command: ['biome', 'format'] },
  { name: 'unit', load: 2, silentSeconds: 600, script: 'test:unit', command: vitest('unit*') },
  {
    name: 'contract',
    load: 1,
    silentSeconds: 600,
    script: 'test:contract',
    command: onTheKernel('contract'),
  },
  {
    name: 'scenarios',
    load: 1,
    silentSeconds: 600,
    script: 'test:scenarios',
    command: onTheKernel('scenarios'),
  },
  {
    name: 'reference',
    load: 1,
    silentSeconds: 600,
    script: 'test:reference',
    command: ['sh', 'test/reference/run.sh', '--reporter=verbose'],
    env: { PROJECT: 'reference' },
  },
  { name: 'faults', load: 1, silentSeconds: 600, script: 'test:faults', command: onTheKernel('faults') },
  { name: 'kernel', load: 1, silentSeconds: 600, script: 'test:kernel', command: onTheKernel('kernel') },
  {
    name: 'vm',
    load: 1,
    silentSeconds: 600,
    script: 'test:vm',
    command: ['node', 'test/vm/run.mjs', '--core'],
  },
  {
    name: 'churn',
    load: 1,
    silentSeconds: 600,
    script: 'test:churn',
    command: onTheKernel('churn'),
    env: { KPROBE_CHURN_SECONDS: '20' },
  },
  { name: 'native', load: 1, silentSeconds: 180, command: ['sh', 'test/native/run.sh'] },
  { name: 'addon-asan', load: 1, silentSeconds: 600, command: ['sh', 'test/native/asan.sh'] },
  {
    name: 'sim',
    // It takes what the others leave.
    load: 0,
    silentSeconds: 600,
    command: ['nice', '-n', '19', ...vitest('sim')],
    env: { KPROBE_SEEDS: '200' },
  },
]

/** What takes longer and runs only by its name: `.ci/run` runs it after `npm test`. */
const REST = [
  {
    name: 'unit-quick',
    load: 2,
    silentSeconds: 600,
    script: 'test:unit',
    command: vitest('unit*'),
    env: { KPROBE_QUICK: '1' },
  },
  {
    name: 'faults-long',
    load: 1,
    silentSeconds: 600,
    script: 'test:faults',
    command: onTheKernel('faults-long'),
  },
  {
    name: 'kernel-long',
    load: 1,
    silentSeconds: 600,
    script: 'test:kernel',
    command: onTheKernel('kernel-long'),
  },
  {
    name: 'reference-long',
    load: 1,
    silentSeconds: 600,
    script: 'test:reference',
    command: ['sh', 'test/reference/run.sh', '--reporter=verbose'],
    env: { PROJECT: 'reference-long' },
  },
  { name: 'modes-rest', load: 2, silentSeconds: 600, command: ['node', 'test/without-mode.mjs'] },
  { name: 'runtimes', load: 2, silentSeconds: 900, command: ['sh', 'test/runtimes.sh'] },
  {
    name: 'sim-rest',
    load: 0,
    silentSeconds: 600,
    command: ['nice', '-n', '19', ...vitest('sim')],
    env: { KPROBE_FIRST_SEED: '201', KPROBE_SEEDS: '1800' },
  },
  {
    name: 'faults-rest',
    load: 1,
    silentSeconds: 900,
    script: 'test:faults',
    command: onTheKernel(
      'faults',
      ...['replies', 'restart', 'syscalls'].map(name => `test/faults/${name}.test.ts`),
    ),
    env: { KPROBE_RUNS: 'all' },
  },
  { name: 'unit-rest', load: 2, silentSeconds: 600, command: vitest('unit*'), env: { KPROBE_RUNS: 'all' } },
  {
    name: 'vm-rest',
    load: 1,
    silentSeconds: 600,
    script: 'test:vm',
    command: ['node', 'test/vm/run.mjs', '--rest'],
  },
]

/** The stages of these names; those of `npm test` without any. Throws for a name that is none. */
export function stagesOf(names) {
  if (names.length === 0) return CORE
  const all = [...CORE, ...REST]
  const unknown = names.filter(name => !all.some(stage => stage.name === name))
  if (unknown.length > 0)
    throw new Error(
      `There is no stage ${unknown.join(', ')}; there are ${all.map(({ name }) => name).join(', ')}.`,
    )
  return all.filter(({ name }) => names.includes(name))
}
