import { describe, expect, it } from 'vitest'
import { eventually } from '../support/patience.ts'
import { isRunning } from '../support/processes.ts'

interface Stage {
  readonly name: string
  readonly command: readonly string[]
  readonly silentSeconds?: number
  readonly load?: number
  readonly script?: string
  readonly ready?: () => Promise<void>
}

interface Runner {
  runStages(options: {
    readonly stages: readonly Stage[]
    readonly processors: number
    readonly write: (text: string) => void
    readonly signal?: AbortSignal
  }): Promise<number>
}

const AT = new URL('../stages/', import.meta.url).href
const { runStages }: Runner = await import(`${AT}run-stages.mjs`)
interface Files {
  runtimeFiles(): readonly string[]
  guardsOf(changed: readonly string[]): { plain: readonly string[]; onKernel: readonly string[] }
}
const { runtimeFiles, guardsOf }: Files = await import(`${AT}files.mjs`)
const { stagesOf }: { stagesOf(names: readonly string[]): readonly Stage[] } = await import(`${AT}stages.mjs`)

const shell = (name: string, script: string, more: Partial<Stage> = {}): Stage => ({
  name,
  command: ['sh', '-c', script],
  silentSeconds: 300,
  load: 1,
  ...more,
})

async function run(stages: readonly Stage[], processors = 1, signal?: AbortSignal) {
  let out = ''
  const write = (text: string) => {
    out += text
  }
  const failed = await runStages({ stages, processors, write, ...(signal && { signal }) })
  return { failed, lines: out.trimEnd().split('\n') }
}

describe('npm test', () => {
  it('counts tests and stages in its last two lines', async () => {
    const { failed, lines } = await run([
      shell('types', 'true'),
      shell('unit', 'echo " Test Files  2 passed (2)"; echo "      Tests  40 passed | 2 skipped (42)"'),
      shell('vm', 'echo "skipped: there is no QEMU"'),
    ])
    expect(failed).toBe(0)
    expect(lines.slice(0, 3).map(line => line.replace(/ +/g, ' ').replace(/\d+ s\b/g, 'N s'))).toEqual([
      'ok types N s N s CPU ',
      'ok unit N s N s CPU 40 passed, 2 skipped',
      'skip vm N s N s CPU skipped: there is no QEMU',
    ])
    expect(lines.slice(-2)).toEqual([
      'tests: 40 passed, 0 failed, 2 skipped',
      'stages: 2 passed, 0 failed, 1 skipped (vm)',
    ])
  })

  it('prints the first failure of a failed stage last, and the commands that repeat it', async () => {
    const log = [
      'a test',
      ...[1, 2].map(
        number => ` FAIL  |kernel| test/kernel/lab.test.ts > test ${number}\nError: reason ${number}`,
      ),
      '      Tests  2 failed | 3 passed (5)',
      ...Array.from({ length: 30 }, (_, index) => `line ${index}`),
    ]
    const script = `cat <<'EOF'\n${log.join('\n')}\nEOF\nexit 1`
    const { failed, lines } = await run([
      shell('kernel', script, { script: 'test:kernel' }),
      shell('churn', 'echo "      Tests  1 passed (1)"'),
    ])
    expect(failed).toBe(1)
    const end = lines.slice(lines.indexOf('FAIL  kernel: exit code 1; its first failure:'))
    expect(end.slice(1, 3)).toEqual([' FAIL  |kernel| test/kernel/lab.test.ts > test 1', 'Error: reason 1'])
    expect(end.slice(-5)).toEqual([
      'again: npm test -- kernel',
      '   or: npm run test:kernel -- test/kernel/lab.test.ts',
      '',
      'tests: 4 passed, 2 failed, 0 skipped',
      'stages: 1 passed, 1 failed, 0 skipped',
    ])
    expect(lines).toContain('line 29')
  })

  it('prints the failed tests of a failed stage first, and no test that passed', async () => {
    const log = [' ✓ |unit| a.test.ts > one 1ms', ' × |unit| a.test.ts > two 3ms', 'Error: reason']
    const { lines } = await run([shell('unit', `printf '${log.join('\\n')}\\n'; exit 1`)])
    const begin = lines.indexOf('--- output of unit:')
    expect(lines.slice(begin + 1, begin + 3)).toEqual([log[1], log[2]])
    expect(lines).not.toContain(log[0])
  })

  it('prints why tests failed ahead of what else a stage without names of tests wrote', async () => {
    const log = ['a line', '⎯⎯ Failed Tests 1 ⎯⎯', ' FAIL  |unit| test/unit/a.test.ts > one', 'Error: reason']
    const { lines } = await run([shell('runtimes', `printf '${log.join('\\n')}\\n'; exit 1`)])
    const begin = lines.indexOf('--- output of runtimes:')
    expect(lines[begin + 1]).toBe(log[1])
    expect(lines).toContain('a line')
  })

  it('ends a stage that writes nothing for too long, with all that it started, and shows its last words', async () => {
    const { failed, lines } = await run([
      shell('stuck', 'echo began; sleep 1000 & echo $!; wait', { silentSeconds: 0.5 }),
    ])
    expect(failed).toBe(1)
    const pid = Number(lines.find(line => /^\d+$/.test(line)))
    await eventually(() => !isRunning(pid), 'what it started has ended')
    expect(lines).toContain('FAIL  stuck: ended, because it wrote nothing for 0.5 s; its first failure:')
    expect(lines.slice(-5)).toContain('again: npm test -- stuck')
  })

  it('lets a stage go on for as long as it writes', async () => {
    const { failed } = await run([
      shell('slow', 'for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done', { silentSeconds: 1.5 }),
    ])
    expect(failed).toBe(0)
  })

  it('begins stages in their order as far as processors go; one that is not ready holds up none', async () => {
    let letGo: (() => void) | undefined
    const built = new Promise<void>(resolve => {
      letGo = resolve
    })
    const running = run([
      shell('reference', 'true', { ready: () => built }),
      shell('unit', 'true', { load: 2 }),
      shell('kernel', 'true'),
    ])
    setTimeout(() => letGo?.(), 500)
    const { lines } = await running
    expect(lines.slice(0, 3).map(line => line.split(/ +/)[1])).toEqual(['unit', 'kernel', 'reference'])
  })

  it('holds processors free for a stage that needs several, but for what keeps none busy', async () => {
    const { lines } = await run(
      [
        shell('lint', 'sleep 0.5'),
        shell('unit', 'true', { load: 2 }),
        shell('kernel', 'true'),
        shell('sim', 'true', { load: 0 }),
      ],
      2,
    )
    expect(lines.slice(0, 4).map(line => line.split(/ +/)[1])).toEqual(['sim', 'lint', 'unit', 'kernel'])
  })

  it('ends all stages when it is interrupted', async () => {
    const abort = new AbortController()
    setTimeout(() => abort.abort(), 200)
    const { lines } = await run([shell('long', 'sleep 1000'), shell('next', 'true')], 1, abort.signal)
    expect(lines).toEqual([''])
  })

  it('names its stages when there is none of that name', () => {
    expect(() => stagesOf(['kernal'])).toThrow(/^There is no stage kernal; there are types, lint, /)
    expect(stagesOf(['vm-rest', 'unit']).map(({ name }) => name)).toEqual(['unit', 'vm-rest'])
    expect(stagesOf([]).map(({ name }) => name)).not.toContain('vm-rest')
  })

  it('begins with the longest stages when all of them run, which leaves out what another repeats', () => {
    const names = stagesOf(['all']).map(({ name }) => name)
    expect(names.slice(0, 4)).toEqual(['types', 'lint', 'vm-rest', 'kernel'])
    expect(names).toEqual(expect.arrayContaining(stagesOf([]).map(({ name }) => name)))
    expect(names).not.toContain('unit-quick')
  })

  it('chooses files that use the runtime for other majors, and those with more to run for unit-rest', () => {
    const [http2, codec, plain] = [
      'source/kube/client/http2-connection',
      'wire/protobuf/encoder',
      'base/duration',
    ]
    const at = (name: string | undefined) => `test/unit/${name}.test.ts`
    expect(runtimeFiles()).toEqual(expect.arrayContaining([at(http2), at(codec)]))
    const [rest] = stagesOf(['unit-rest'])
    expect(rest?.command).toContain(at(codec))
    // Its helper says how often.
    expect(rest?.command).toContain(at('modes/ipvs/sequence'))
    expect(rest?.command).not.toContain(at(http2))
    expect(rest?.command).not.toContain(at(plain))
  })

  it('names the tests that import a changed file, or a helper that does', () => {
    const { plain, onKernel } = guardsOf(['src/kernel/nft/client.ts'])
    expect(plain).toContain('test/unit/kernel/nft/client.test.ts')
    expect(plain.every(path => path.endsWith('.test.ts'))).toBe(true)
    // Through test/support/rig.ts.
    expect(onKernel).toContain('test/faults/notifications.test.ts')
    // It comes there through other files of src/.
    expect(guardsOf(['src/model/port-frontends.ts']).plain).toContain('test/scenarios/trace.test.ts')
    expect(guardsOf(['README.md'])).toEqual({ plain: [], onKernel: [] })
  })
})
