import { spawnSync } from 'node:child_process'
import { describe, expect, it } from 'vitest'

function run(script: string, ...args: readonly string[]) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [script, ...args], { encoding: 'utf8' })
  return { status, stdout, stderr }
}

/* Whatever starts writes a line to standard output first. */

describe.each([
  { script: 'test/bench/run.mjs', before: [] },
  { script: 'test/bench-cluster/run.mjs', before: ['table'] },
])('$script', ({ script, before }) => {
  it('starts nothing with --help', () => {
    for (const flag of ['--help', '-h']) {
      const help = run(script, ...before, flag)
      expect(help).toMatchObject({ status: 0, stderr: '' })
      expect(help.stdout).toMatch(/^npm run bench(:cluster)? -- \[/)
      expect(help.stdout).toMatch(/--help +print this\n$/)
    }
  })
})

describe('npm run bench', () => {
  it('ends with the names that there are, for one that there is not', () => {
    const { status, stdout, stderr } = run('test/bench/run.mjs', 'daemom', '--runs=2')
    expect([status, stdout]).toEqual([2, ''])
    expect(stderr).toMatch(/^no such benchmark: daemom, --runs=2; there are: balance, .*\n$/)
  })
})

describe('npm run bench:cluster', () => {
  it.each([
    [[], { command: 'both', sizes: [], runs: 3, baseline: false }],
    [['1000x10'], { command: 'both', sizes: [{ services: 1_000, endpoints: 10 }] }],
    [
      ['kprobe', '1x2', '--baseline'],
      { command: 'kprobe', sizes: [{ services: 1, endpoints: 2 }], baseline: true },
    ],
    [
      ['table', '--runs=1', '--beside=a build', '9x2', '1x7'],
      {
        ...{ command: 'table', runs: 1, beside: 'a build' },
        sizes: [
          { services: 9, endpoints: 2 },
          { services: 1, endpoints: 7 },
        ],
      },
    ],
  ])('reads %s', (args, options) => {
    const script = `import('./test/bench-cluster/options.mjs').then(({ parseOptions }) => console.log(JSON.stringify(parseOptions(${JSON.stringify(args)}))))`
    expect(JSON.parse(run('-e', script).stdout)).toMatchObject(options)
  })

  it.each([
    [['tabel'], 'tabel is neither a command (both, kprobe, kube-proxy, table) nor SERVICESxENDPOINTS'],
    [
      ['table', '1000x'],
      '1000x is neither a command (both, kprobe, kube-proxy, table) nor SERVICESxENDPOINTS',
    ],
    [['table', '--run=3'], "Unknown option '--run'"],
    [['table', '--runs=x'], '--runs=x is not a number from 1 to 99'],
    [['both', '--beside=a build'], '--beside is of table alone'],
  ])('ends with one error for %s', (args, words) => {
    const help = 'npm run bench:cluster -- --help lists commands and flags'
    expect(run('test/bench-cluster/run.mjs', ...args)).toEqual({
      status: 2,
      stdout: '',
      stderr: `${words}; ${help}\n`,
    })
  })
})
