import { execFileSync, spawnSync } from 'node:child_process'
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { beforeEach, describe, expect, it } from 'vitest'
import { COMMAND } from '../support/daemon.ts'
import { Cluster } from './cluster.ts'
import { listRuleset } from './kernel.ts'
import { service, services } from './objects.ts'

const TOP = fileURLToPath(new URL('../..', import.meta.url))
const cluster = Cluster.ofEachTest()

beforeEach(() => cluster.open({ objects: services(4) }))

/** The command with another addon beside it. */
function commandWith(addon: (path: string) => void): string {
  const folder = cluster.file('dist')
  cpSync(dirname(COMMAND), folder, { recursive: true })
  addon(join(folder, 'kprobe.node'))
  return join(folder, 'kprobe.mjs')
}

describe('a dependency', () => {
  /** The command by which every build installs, as deploy/prepare.sh has it. */
  function install(folder: string, cache: string) {
    const words = /' npm (ci [^\n]*)/.exec(readFileSync(join(TOP, 'deploy/prepare.sh'), 'utf8'))?.[1] ?? ''
    expect(words).toContain('--ignore-scripts')
    return spawnSync('npm', [...words.split(' '), '--offline', `--cache=${cluster.file(cache)}`], {
      cwd: folder,
      encoding: 'utf8',
    })
  }

  /** A package in a file, packed with this content. */
  function pack(folder: string, text: string): void {
    const source = join(folder, 'source')
    mkdirSync(source, { recursive: true })
    const scripts = { install: 'touch ../../ran' }
    writeFileSync(join(source, 'package.json'), JSON.stringify({ name: 'dep', version: '1.0.0', scripts }))
    writeFileSync(join(source, 'index.js'), text)
    execFileSync('npm', ['pack', '--pack-destination', folder], { cwd: source, stdio: 'ignore' })
  }

  it('F115: that is not what the lock says is refused, and none gets to run anything', () => {
    const folder = cluster.file('project')
    pack(folder, 'good')
    const dependencies = { dep: 'file:dep-1.0.0.tgz' }
    writeFileSync(
      join(folder, 'package.json'),
      JSON.stringify({ name: 'project', version: '1.0.0', dependencies }),
    )
    execFileSync('npm', ['install', '--package-lock-only', '--offline', '--ignore-scripts'], {
      cwd: folder,
      stdio: 'ignore',
    })
    expect(install(folder, 'cache')).toMatchObject({ status: 0 })
    expect(existsSync(join(folder, 'ran'))).toBe(false)
    pack(folder, 'evil')
    // Nor is what an earlier build may have left taken for it.
    const refused = install(folder, 'empty')
    expect(refused.status).not.toBe(0)
    expect(refused.stderr).toContain('EINTEGRITY')
  })

  it('F115: is locked by its hash, each of them', () => {
    const { packages } = JSON.parse(readFileSync(join(TOP, 'package-lock.json'), 'utf8'))
    const unlocked = Object.entries<{ integrity?: string; link?: boolean }>(packages)
      .filter(
        ([path, { integrity, link }]) => path !== '' && link !== true && !/^sha512-/.test(integrity ?? ''),
      )
      .map(([path]) => path)
    expect(Object.keys(packages).length).toBeGreaterThan(1)
    expect(unlocked).toEqual([])
  })
})

describe('the addon', () => {
  /** Some addon that Node can load and that is not ours. */
  function foreignAddon(): string {
    const found = readdirSync(join(TOP, 'node_modules'), { recursive: true })
      .map(String)
      .find(name => /ffi-rs.*\.node$/.test(name))
    if (found === undefined) throw new Error('no other addon is installed')
    return join(TOP, 'node_modules', found)
  }

  it.each<readonly [string, (path: string) => void, string]>([
    ['of somebody else', path => copyFileSync(foreignAddon(), path), 'was built from other sources'],
    ['that is no library', path => writeFileSync(path, 'x'.repeat(5_000)), 'cannot load'],
  ])('F116: %s ends the start with a reason, and no rule is touched', async (_, swap, reason) => {
    await cluster.programmedBefore()
    const before = listRuleset()
    const daemon = cluster.daemon({ command: commandWith(swap) })
    expect((await daemon.ended()).code).toBe(1)
    expect(JSON.stringify(daemon.records)).toContain(reason)
    expect(listRuleset()).toBe(before)
  })
})

it('F116: an addon cut short ends the start, if only by a signal of the loader, and no rule is touched', async () => {
  await cluster.programmedBefore()
  const before = listRuleset()
  const command = commandWith(path => writeFileSync(path, readFileSync(path).subarray(0, 5_000)))
  expect(await cluster.daemon({ command }).ended()).not.toMatchObject({ code: 0 })
  expect(listRuleset()).toBe(before)
})

describe('the environment', () => {
  /** Ports at which somebody listens in this namespace. */
  function listening(): readonly string[] {
    const text = execFileSync('ss', ['-tlnH'], { encoding: 'utf8' })
    return [...text.matchAll(/:(\d+)\s+\S+:\*/g)].map(([, port]) => port ?? '')
  }

  it('F117: SIGUSR1 opens no debugger', async () => {
    const daemon = await cluster.running()
    daemon.kill('SIGUSR1')
    cluster.put(...service(9))
    await cluster.converged()
    expect(listening()).not.toContain('9229')
    await daemon.caughtUp()
    expect(daemon.strayLines).toEqual([])
  })

  it('F117: a debugger that NODE_OPTIONS asks for is closed, and that is told', async () => {
    const daemon = cluster.daemon({ env: { NODE_OPTIONS: '--inspect=127.0.0.1:9229' } })
    await daemon.synced()
    expect(listening()).not.toContain('9229')
    await daemon.caughtUp()
    expect(daemon.strayLines.join('\n')).toContain('closed the debugger that --inspect opened')
  })

  it('F117: NODE_TLS_REJECT_UNAUTHORIZED=0 is told of, and the server is verified all the same', async () => {
    const certificate = cluster.server.authority?.issue({ names: ['elsewhere.test'] })
    if (certificate === undefined) throw new Error('the server has no authority')
    await cluster.replaceServer({ certificate })
    const daemon = cluster.daemon({ env: { NODE_TLS_REJECT_UNAUTHORIZED: '0' } })
    await daemon.logged('certificate is refused')
    expect(await daemon.logged('NODE_TLS_REJECT_UNAUTHORIZED=0 is ignored')).toHaveLength(1)
    expect(cluster.server.log).toEqual([])
    await cluster.replaceServer()
    await cluster.converged()
  })
})
