import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { runCommand } from '../../../src/commands.ts'
import { zshScript } from '../../../src/inspect/completion.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { adminSocket } from './admin-socket.ts'

const isHere = (shell: string) => spawnSync(shell, ['-c', 'exit 0']).status === 0
const SHELLS = ['bash', 'zsh', 'fish'] as const
type Shell = (typeof SHELLS)[number]

let folder: string

/** A shell finds this in place of kprobe: the daemon's answer, and another of the daemon at /x. */
const SERVICES = [
  'kprobe() {',
  '  [ "$1 $2 $3" = "completion services --" ] || return 1',
  '  case "$*" in *" --admin-socket = /x "*) echo shop/other ;; *) echo shop/cart; echo shop/checkout ;; esac',
  '}\n',
].join('\n')

const pathOf = (shell: Shell) => join(folder, `kprobe.${shell}`)

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'kprobe-completion-'))
  for (const shell of SHELLS) {
    const io = new FakeIo()
    expect(await runCommand(['completion', shell], io)).toBe(0)
    writeFileSync(pathOf(shell), io.stdout)
  }
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** Gives what bash proposes for the last of the words, which bash has split. */
function inBash(...words: readonly string[]): readonly string[] {
  const list = ['kprobe', ...words].map(word => `'${word}'`).join(' ')
  const script = [
    `source ${pathOf('bash')}`,
    SERVICES,
    `COMP_WORDS=(${list})`,
    `COMP_CWORD=${words.length}`,
    '_kprobe || :',
    `printf '%s\\n' "\${COMPREPLY[@]}"`,
  ].join('\n')
  const out = execFileSync('bash', ['--norc', '-euc', script], { encoding: 'utf8' })
  return out.split('\n').filter(line => line !== '')
}

describe.skipIf(!isHere('bash'))('bash', () => {
  it.each([
    ['ex', 'explain'],
    ['v', 'verify version'],
    ['dump ip', 'ipvs ipset iptables'],
    ['completion ', 'bash zsh fish services'],
    ['debug ', 'bundle'],
    ['why --fro', '--from'],
    ['why --from ', ''],
    ['why -o s', 'svg'],
    ['why --output =', 'text json yaml svg'],
    ['why --output = s', 'svg'],
    ['why --output=s', '--output=svg'],
    ['why --to shop/c', 'shop/cart shop/checkout'],
    ['dump --service ', 'shop/cart shop/checkout'],
    ['dump --admin-socket = /x --service ', 'shop/other'],
    ['dump --family = ', ''],
    ['run --proxy-mode ', 'nftables ipvs iptables userspace'],
    ['verify --proxy-mode = ip', 'ipvs iptables'],
    ['nothing --x', ''],
    ['why $(ls)', ''],
  ])('completes %j to %j', (line, expected) => {
    expect(inBash(...line.split(' ')).join(' ')).toBe(expected)
  })

  it('offers every flag of the help, and no hidden one', async () => {
    const io = new FakeIo()
    await runCommand(['run', '--help-all'], io)
    const inHelp = [...io.stdout.matchAll(/^ {2}(?:-\w, )?(--[\w-]+)/gm)].map(([, flag]) => flag)
    expect(
      inBash('run', '--')
        .filter(flag => flag.startsWith('--'))
        .toSorted(),
    ).toEqual(inHelp.filter(flag => flag !== '--help-all').toSorted())
  })

  it('is asked by bash for kprobe', () => {
    const script = `source ${pathOf('bash')}; complete -p kprobe`
    const out = execFileSync('bash', ['--norc', '-euc', script], { encoding: 'utf8' })
    expect(out).toBe('complete -o default -F _kprobe kprobe\n')
  })
})

it("escapes colons and brackets in zsh's specifications", () => {
  const flag = { name: 'at', kind: 'text', placeholder: 'IP[:PORT]', help: 'where [it] is: there' } as const
  const script = zshScript([{ name: 'run', summary: 'x', flags: [flag], words: [] }])
  expect(script).toContain(String.raw`'--at=[where \[it\] is]:IP\[\:PORT\]:_files'`)
})

describe.skipIf(!isHere('zsh'))('zsh', () => {
  it('reads the script', () => {
    execFileSync('zsh', ['-nf', pathOf('zsh')])
  })
})

describe.skipIf(!isHere('fish'))('fish', () => {
  it.each([
    ['kprobe ex', 'explain'],
    ['kprobe dump ip', 'ipset ipvs iptables'],
    ['kprobe why -o s', 'svg'],
    ['kprobe why --fro', '--from'],
    ['kprobe dump --admin-socket /x --service ', 'words-8'],
  ])('completes %j to %j', (line, expected) => {
    const daemon = 'function kprobe; echo words-(count $argv); end'
    const script = `source ${pathOf('fish')}; ${daemon}; complete -C '${line}'`
    const out = execFileSync('fish', ['--no-config', '-c', script], { encoding: 'utf8' })
    const words = out.split('\n').flatMap(each => each.split('\t')[0] ?? [])
    expect(words.filter(word => word !== '').toSorted()).toEqual(expected.split(' ').toSorted())
  })
})

describe('the command', () => {
  it('names the shells that there are', async () => {
    const io = new FakeIo()
    expect(await runCommand(['completion', 'tcsh'], io)).toBe(2)
    expect(io.stderr).toContain(
      'kprobe completion: "tcsh": no such argument; there are bash, zsh, fish, services\n',
    )
  })

  /** Gives what is printed while a daemon answers with `body`, or does not answer. */
  async function namesOf(
    body: string | undefined,
    flagsOf = (path: string) => [`--admin-socket=${path}`],
  ): Promise<FakeIo> {
    const path = await adminSocket(() => body)
    const io = new FakeIo()
    await runCommand(['completion', 'services', ...flagsOf(path)], io)
    return io
  }

  it('prints the names of Services that a shell may evaluate', async () => {
    const names = ['ns/b', 'ns/a', 'ns/$(reboot)', 'ns/a b', '`x`/y', 'ns/x;y', 'ns', 7, 'ns/\u001b[2J']
    expect(await namesOf(JSON.stringify(names))).toMatchObject({ stdout: 'ns/a\nns/b\n', stderr: '' })
    expect(await namesOf('{"names":1}')).toMatchObject({ stdout: '', stderr: '' })
    const many = Array.from({ length: 5_010 }, (_, index) => `ns/s${index}`)
    expect((await namesOf(JSON.stringify(many))).stdout.split('\n')).toHaveLength(5_001)
  })

  it.each([
    ['a word', (path: string) => ['--', 'why', `--admin-socket=${path}`, '--to']],
    ['two words', (path: string) => ['--', 'why', '--admin-socket', path, '--to']],
    [
      'three words, as bash splits them',
      (path: string) => ['--', 'why', '--admin-socket', '=', path, '--to'],
    ],
  ])('asks the daemon that the command line names by %s', async (_, flagsOf) => {
    expect(await namesOf('["ns/a"]', flagsOf)).toMatchObject({ stdout: 'ns/a\n', stderr: '' })
  })

  it('prints no Services when the daemon does not answer', async () => {
    expect(await namesOf(undefined)).toMatchObject({ stdout: '', stderr: '' })
    expect(await namesOf('no JSON')).toMatchObject({ stdout: '', stderr: '' })
  })

  it('prints no Services without a daemon', async () => {
    const io = new FakeIo()
    const socket = `--admin-socket=${join(folder, 'none.sock')}`
    expect(await runCommand(['completion', 'services', socket], io)).toBe(0)
    expect([io.stdout, io.stderr]).toEqual(['', ''])
  })
})
