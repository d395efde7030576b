import { type ChildProcess, spawn } from 'node:child_process'
import { readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterEach, describe, expect, test } from 'vitest'
import { eventually } from '../support/patience.ts'
import { findPrograms } from './binaries.ts'
import { siteOf } from './cluster.ts'
import { leftoversOf } from './leftovers.ts'
import { Namespaces } from './namespaces.ts'
import { nameOfProcess } from './site.ts'

/*
 * A cluster leaves nothing behind, however it and whoever started it end. It is one of its own name, so that it does not
 * meet another one; its folder is gone when it is.
 */
const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const NAME = nameOfProcess('down')
const CLUSTER = ['--name', NAME, '--nodes', '2', '--net', '91']
const KINDS = ['net', 'mnt', 'pid', 'uts', 'ipc'] as const

const { obstacle } = findPrograms(ROOT)
if (obstacle !== undefined) console.log(`skipped: ${obstacle}`)

interface Started {
  readonly child: ChildProcess
  readonly output: () => string
  readonly ended: Promise<number | null>
}

const started: Started[] = []

function run(...args: readonly string[]): Started {
  const child = spawn(process.execPath, ['test/cluster/run.mjs', ...args], { cwd: ROOT })
  let output = ''
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', chunk => {
      output += chunk
    })
  const ended = new Promise<number | null>(resolve => child.on('close', resolve))
  const one = { child, output: () => output, ended }
  started.push(one)
  return one
}

async function says({ output, child }: Started, words: RegExp): Promise<void> {
  await eventually(
    () => {
      if (child.exitCode !== null && !words.test(output())) throw new Error(`it ended: ${output()}`)
      return words.test(output())
    },
    { limitMs: 300_000, progress: output, describe: output },
  )
}

/** What a cluster consists of while it runs: its processes, each with the time it began at, and its namespaces. */
interface Seen {
  readonly processes: readonly string[]
  readonly namespaces: readonly string[]
}

function look(): Seen {
  const site = siteOf(NAME)
  const namespaces = Namespaces.open(site.folder)
  if (namespaces === undefined) throw new Error('there is no cluster')
  const places = [namespaces.controlPlane, ...site.nodes.map(({ name }) => namespaces.node(name))]
  const own = namespacesOfProcess('self')
  const names = places
    .flatMap(({ pid }) => namespacesOfProcess(String(pid)))
    .filter(name => !own.includes(name))
  return {
    processes: processes()
      .filter(({ pid }) => isIn(pid, names))
      .map(identityOf),
    namespaces: names,
  }
}

function isIn(pid: string, names: readonly string[]): boolean {
  return namespacesOfProcess(pid).some(name => names.includes(name))
}

function namespacesOfProcess(pid: string): readonly string[] {
  return KINDS.flatMap(kind => {
    try {
      return [readlinkSync(`/proc/${pid}/ns/${kind}`)]
    } catch {
      return []
    }
  })
}

interface Process {
  readonly pid: string
  readonly started: string
}

function processes(): readonly Process[] {
  return readdirSync('/proc')
    .filter(name => /^\d+$/.test(name))
    .flatMap(pid => {
      try {
        const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
        return [{ pid, started: stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '' }]
      } catch {
        return []
      }
    })
}

function identityOf({ pid, started }: Process): string {
  return `process ${pid}, begun at ${started}`
}

/** What is there of it. A namespace without processes is there only if a mount keeps it; its number may be another's soon. */
function stillThere({ processes: before, namespaces }: Seen): readonly string[] {
  const now = new Set(processes().map(identityOf))
  const mounts = readFileSync('/proc/self/mountinfo', 'utf8')
  return [...before.filter(one => now.has(one)), ...namespaces.filter(name => mounts.includes(name))]
}

async function expectNothing(seen: Seen): Promise<void> {
  expect(seen.namespaces.length).toBeGreaterThan(2 * KINDS.length)
  expect(seen.processes.length).toBeGreaterThan(2 * KINDS.length)
  const down = run('down', '--name', NAME)
  expect(await down.ended, down.output()).toBe(0)
  expect(leftoversOf(siteOf(NAME))).toEqual([])
  expect(stillThere(seen)).toEqual([])
}

afterEach(async () => {
  for (const { child } of started.splice(0)) child.kill('SIGKILL')
  await run('down', '--name', NAME).ended
})

describe.skipIf(obstacle !== undefined)('down', () => {
  test('removes a cluster that is up, and says that there is none the second time', async () => {
    const up = run('up', ...CLUSTER)
    expect(await up.ended, up.output()).toBe(0)
    const site = siteOf(NAME)
    expect(leftoversOf(site).filter(each => each.startsWith('cgroup')).length).toBeGreaterThan(0)
    await expectNothing(look())
    const again = run('down', '--name', NAME)
    expect(await again.ended).toBe(0)
    expect(again.output()).toContain(`there is no cluster ${NAME}`)
  })

  test('removes what an up that was killed had started', async () => {
    const up = run('up', ...CLUSTER)
    await says(up, /nodes run/)
    up.child.kill('SIGKILL')
    await up.ended
    await expectNothing(look())
  })
})

describe.skipIf(obstacle !== undefined)('all', () => {
  test('removes its cluster when it is interrupted, and keeps the logs', async () => {
    const all = run('all', ...CLUSTER)
    await says(all, /all nodes are ready/)
    const seen = look()
    all.child.kill('SIGINT')
    expect(await all.ended, all.output()).toBe(130)
    expect(all.output()).toMatch(/interrupted by SIGINT[\s\S]*its logs are in /)
    expect(leftoversOf(siteOf(NAME))).toEqual([])
    expect(stillThere(seen)).toEqual([])
  })

  test('ends its cluster when it is killed', async () => {
    const all = run('all', ...CLUSTER)
    await says(all, /all nodes are ready/)
    const seen = look()
    all.child.kill('SIGKILL')
    await all.ended
    await eventually(() => stillThere(seen).length === 0, 'the namespaces end')
    await expectNothing(seen)
  })
})
