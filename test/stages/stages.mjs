// The stages of `npm test`, in the order in which a change breaks them.
import { repeatingFiles } from './files.mjs'

/** Ten times what an idle machine is ever silent, and longer than a single test may take (vitest.config.ts). */
const SILENT_SECONDS = 1_300

const vitest = (project, ...more) => ['vitest', 'run', '--reporter=verbose', '--project', project, ...more]
const onTheKernel = (project, ...more) => ['unshare', '-Urnm', ...vitest(project, ...more)]
const againstReference = (...more) => ['sh', 'test/reference/run.sh', '--reporter=verbose', ...more]

/** A stage that keeps one processor busy and runs test files of `npm run test:NAME`. */
const testing = (name, command, more) => ({ name, script: `test:${name.split('-')[0]}`, command, ...more })

/** What `npm test` runs. */
const CORE = [
  { name: 'types', command: ['npm', 'run', '-s', 'types'] },
  // The format as well: each file is parsed once.
  { name: 'lint', command: ['biome', 'check', '--error-on-warnings'] },
  // It takes longest, and waits half of its time: what follows runs beside it.
  testing('kernel', onTheKernel('kernel')),
  testing('unit', vitest('unit*'), { load: 2 }),
  testing('contract', onTheKernel('contract')),
  testing('scenarios', onTheKernel('scenarios')),
  testing('reference', againstReference(), { env: { PROJECT: 'reference' } }),
  testing('faults', onTheKernel('faults')),
  { name: 'browser', command: ['sh', 'test/browser/run.sh'] },
  testing('vm', ['node', 'test/vm/run.mjs', '--core']),
  testing('churn', onTheKernel('churn'), { env: { KPROBE_CHURN_SECONDS: '20' } }),
  { name: 'native', command: ['sh', 'test/native/run.sh'] },
  { name: 'addon-asan', command: ['sh', 'test/native/asan.sh'] },
  // It says that it skips where test/cluster/build.mjs has not built what it needs.
  {
    name: 'cluster',
    load: 2,
    command: [
      'node',
      'test/cluster/run.mjs',
      'conformance',
      '--as',
      'daemonset',
      '--procs',
      '8',
      '--compare',
    ],
  },
  // It takes what the others leave.
  { name: 'sim', load: 0, command: ['nice', '-n', '19', ...vitest('sim')], env: { KPROBE_SEEDS: '200' } },
]

/** Files of test/faults of which `npm test` runs a part. */
const PARTS_OF_FAULTS = ['foreign', 'process', 'replies', 'restart', 'syscalls'].map(
  name => `test/faults/${name}.test.ts`,
)
/** Walks between the states of scenarios: other ones than in `scenarios`. */
const WALKS = ['walk', 'walk-iptables'].map(name => `test/scenarios/${name}.test.ts`)
const WHOLE = { KPROBE_RUNS: 'all' }
/** What breaks first when a proxy loses connections; a cluster that starts and goes included, in three minutes on two busy processors. */
const SHORT_LIFE = ['--as', 'daemonset', '--rounds', '2', '--only', '^(roll|kill|reboot)$']

/** What types and lint leave of one processor is theirs, from the beginning. */
const LONGEST = ['types', 'lint', 'vm-rest']

/** What takes longer and runs only by its name, and in `.ci/run`. */
const REST = [
  testing('vm-rest', ['node', 'test/vm/run.mjs', '--rest']),
  // Without `unit-mocked`: its files take threads that read all of src/ anew.
  testing('unit-quick', vitest('unit'), { load: 2, env: { KPROBE_QUICK: '1' } }),
  testing('faults-long', onTheKernel('faults-long')),
  testing('kernel-long', onTheKernel('kernel-long')),
  testing('reference-long', againstReference(), { env: { PROJECT: 'reference-long' } }),
  testing('reference-rest', againstReference('test/reference/kprobe.test.ts'), {
    env: { PROJECT: 'reference', ...WHOLE },
  }),
  { name: 'mutate', load: 2, command: ['node', 'test/mutate/run.mjs', '--count=12'] },
  { name: 'modes-rest', load: 2, command: ['node', 'test/without-mode.mjs'] },
  { name: 'runtimes', load: 2, command: ['sh', 'test/runtimes.sh'] },
  {
    name: 'sim-rest',
    load: 0,
    command: ['nice', '-n', '19', ...vitest('sim')],
    env: { KPROBE_FIRST_SEED: '201', KPROBE_SEEDS: '600' },
  },
  testing('scenarios-rest', onTheKernel('scenarios', ...WALKS), { env: { ...WHOLE, WALK_SEED: '2' } }),
  testing('faults-rest', onTheKernel('faults', ...PARTS_OF_FAULTS), { env: WHOLE }),
  testing('unit-rest', vitest('unit*', ...repeatingFiles()), {
    load: 2,
    env: { ...WHOLE, PROPERTY_SEED: '2' },
  }),
  { name: 'cluster-down', load: 2, command: vitest('cluster') },
  {
    name: 'life',
    load: 2,
    command: ['node', 'test/cluster/run.mjs', 'life', '--fresh', ...SHORT_LIFE],
  },
]

/**
 * The stages of these names; those of `npm test` without any; with `all`, what .ci/run runs: the longest ones begin first, so
 * that no processor is idle while the last one ends. Throws for a name that is none.
 */
export function stagesOf(names) {
  const all = [...CORE, ...REST].map(stage => ({ load: 1, silentSeconds: SILENT_SECONDS, ...stage }))
  if (names.length === 0) return all.slice(0, CORE.length)
  if (names.includes('all')) {
    const rank = ({ name }) => (LONGEST.includes(name) ? 0 : 1)
    return all.filter(({ name }) => name !== 'unit-quick').sort((a, b) => rank(a) - rank(b))
  }
  const unknown = names.filter(name => !all.some(stage => stage.name === name))
  if (unknown.length > 0)
    throw new Error(
      `There is no stage ${unknown.join(', ')}; there are ${all.map(({ name }) => name).join(', ')}.`,
    )
  return all.filter(({ name }) => names.includes(name))
}
