import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { command as nodes } from '../../src/inspect/nodes/nodes.ts'
import { tool } from '../support/command.ts'
import { ExecServer } from '../support/exec-server.ts'
import { FakeIo } from '../support/fake-io.ts'
import { patientMs } from '../support/patience.ts'
import { drawTerminal, linesOf, withoutColors } from '../support/terminal-picture.ts'

/*
 * The pictures of docs/look.md are what the commands print in the demo: with KPROBE_PICTURES=1 they are written, and
 * otherwise compared, without what differs from run to run.
 */

const ROOT = new URL('../../', import.meta.url).pathname
const SHOWN = [
  ['status', 'kprobe status'],
  ['why', 'kprobe why --from pod/shop/mail-a --to svc/shop/search'],
  ['trace', 'kprobe trace --service shop/cart --count 1'],
  ['flows', 'kprobe flows --group-by endpoint'],
  ['top', 'kprobe top --once'],
  ['drops', 'kprobe drops --count 3'],
] as const

/** Runs all commands in one demo. Gives what each printed. */
function demo(): ReadonlyMap<string, string> {
  const border = '-- border --'
  const hint = /^ {2}(kill -STOP .*)$/m.exec(readFileSync(`${ROOT}deploy/demo/run.sh`, 'utf8'))?.[1] ?? ''
  const script = [
    'until kprobe flows --group-by service | grep -q shop/mail; do sleep 0.2; done',
    'until kprobe flows --group-by endpoint | grep -q 10.244.0.12; do sleep 0.2; done',
    'until kprobe flows --service shop/search | grep -q none; do sleep 0.2; done',
    // A connection counts as unanswered 2 s after its SYN.
    "until kprobe why --from pod/shop/mail-a --to svc/shop/search | grep -q '^the rules'; do sleep 0.2; done",
    'until kprobe status | grep -q IMPAIRED; do sleep 0.2; done',
    // In a terminal, for the colors.
    ...SHOWN.map(
      ([, command]) =>
        `script -qec '${command}' /dev/null </dev/null || echo "exit code $?"; echo '${border}'`,
    ),
    `kprobe status --output=json; echo '${border}'`,
    hint,
  ].join('\n')
  const { status, stdout, stderr } = spawnSync('sh', [`${ROOT}deploy/demo/run.sh`, 'sh', '-c', script], {
    encoding: 'utf8',
    timeout: patientMs(120_000),
  })
  expect(status, stderr).toBe(0)
  const texts = stdout.split(`${border}\n`)
  return new Map(
    [...SHOWN.map(([name]) => name), 'status-json', 'hint'].map((name, at) => [name, texts[at] ?? '']),
  )
}

/** The table of `kubectl kprobe status`; the pods of two nodes answer `stdout`. */
async function statusOfNodes(stdout: string): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-demo-'))
  const pods = ['node-1', 'node-2'].map(nodeName => ({
    metadata: { name: `kprobe-${nodeName}` },
    spec: { nodeName },
    status: { conditions: [{ type: 'Ready', status: 'True' }] },
  }))
  tool('ip', 'link', 'set', 'lo', 'up')
  const server = await ExecServer.start({ pods, answer: () => ({ stdout, code: 3 }) })
  try {
    writeFileSync(join(folder, 'kubeconfig'), server.kubeconfig)
    const io = new FakeIo({ color: true })
    expect(await nodes.run(['status', `--kubeconfig=${join(folder, 'kubeconfig')}`], io)).toBe(3)
    return io.stdout
  } finally {
    await server.close()
    rmSync(folder, { recursive: true })
  }
}

/** Lines that depend on the moment: what conntrack says, and what a busy machine adds. */
const PASSING = /^\s*(?:conntrack:|sampled:|lost |the rate limit)/

/** The kinds of lines that a command prints: without numbers, widths of columns, and how often a kind comes. */
function kindsOf(lines: readonly string[]): readonly string[] {
  const kinds = lines
    .filter(line => line.trim() !== '' && !PASSING.test(line))
    .map(line =>
      line
        .replaceAll(/commit [0-9a-f]+(?:-dirty)?/g, 'commit N')
        .replaceAll(/\d[\d.:TZ-]*/g, 'N')
        // Either pod of a Service answers.
        .replaceAll(/\b(cart|search)-[ab]\b/g, '$1-x')
        .replaceAll(/\b(?:[KM]iB|B)\b/g, 'bytes')
        .replaceAll(/\bpackets?\b/g, 'packets')
        .replaceAll(/\bconnections?\b/g, 'connections')
        .replaceAll(/\s+/g, ' '),
    )
  return [...new Set(kinds)]
}

function showsToday(name: string, command: string, output: string): void {
  const file = `${ROOT}docs/picture/${name}.svg`
  if (process.env.KPROBE_PICTURES === '1') writeFileSync(file, drawTerminal(command, output))
  const printed = withoutColors(output).trimEnd().split('\n')
  expect(kindsOf(linesOf(readFileSync(file, 'utf8'))), name).toEqual(kindsOf(printed))
}

describe('the pictures of docs/look.md', () => {
  it('npm run demo shows real connections, and why one has no answer, as in the pictures', async () => {
    const texts = demo()
    const colored = (name: string) => texts.get(name) ?? ''
    const textOf = (name: string) => withoutColors(colored(name))
    expect(textOf('flows')).toMatch(/^shop\/cart:http +TCP +10\.244\.0\.1[12]:8080 +shop\/cart-[ab] +\d+ /m)
    expect(textOf('drops')).toContain(
      'shop/coming-soon:http (ClusterIP) from pod20: rejected: the Service has no usable endpoint',
    )
    expect(textOf('trace')).toMatch(
      /shop\/cart:http \(ClusterIP\) from pod20: goes to 10\.244\.0\.1[12]:8080 \(pod shop\/cart-[ab]\) by pod1[12]/,
    )
    expect(textOf('why')).toMatch(
      /^the rules send it to 2 endpoints; (\d+) of \1 connections? to 10\.244\.0\.16:8080 [\s\S]*\nexit code 3$/m,
    )
    expect(textOf('top')).toMatch(/^shop\/search:http .* \d+\/\d+ +\d+$/m)
    expect(textOf('hint')).toMatch(
      /shop\/cart:http .* NOT REACHED [\s\S]*\nshop\/cart:http .* 10\.244\.0\.11:8080 \(pod shop\/cart-a\), /,
    )
    for (const [name, command] of SHOWN) showsToday(name, command, colored(name))
    // The palette of four.
    const tones = SHOWN.flatMap(([name]) =>
      [...readFileSync(`${ROOT}docs/picture/${name}.svg`, 'utf8').matchAll(/tspan class="(\w+)"/g)].map(
        ([, tone]) => tone,
      ),
    )
    expect([...new Set(tones)].sort()).toEqual(['bad', 'dim', 'good', 'warning'])
    showsToday('nodes', 'kubectl kprobe status', await statusOfNodes(textOf('status-json')))
  })
})
