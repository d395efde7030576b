import { existsSync, mkdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import { ask, Cluster, metric } from '../../faults/cluster.ts'
import { shiftedClock } from '../../faults/cluster-process.ts'
import { Removals } from '../../faults/cluster-removals.ts'
import { frontendNames } from '../../faults/kernel.ts'
import { nameOf, service, services } from '../../faults/objects.ts'
import { createRandom } from '../../support/apiserver/random.ts'
import { Daemons } from '../../support/daemon.ts'
import { eventually } from '../../support/patience.ts'
import { many, rounds, SEED, Tally } from '../attack.ts'

const DAY_MS = 86_400_000
const JUMPS = many(4, 40)
/** So many at once are posted at least: a limit of the recorder. */
const EVENTS = 20
/** Back an hour, a month forward and back, beyond 2038, before the objects were made, to 1970. */
const SHIFTS_MS = [
  -3_600_000,
  1_000,
  30 * DAY_MS,
  -30 * DAY_MS,
  20 * 365 * DAY_MS,
  -10 * 365 * DAY_MS,
  0,
] as const

const cluster = Cluster.ofEachTest()

beforeEach(() => cluster.open({ objects: services(5) }))

/** A credential plugin that goes by the daemon's clock: its tokens last an hour. Each run adds a line to the file. */
function plugin(shiftFile: string): { readonly command: string; runs(): number } {
  const [command, runs] = [cluster.file('plugin'), cluster.file('runs')]
  writeFileSync(
    command,
    `#!/bin/sh
echo run >>'${runs}'
until=$(date -u -d "@$(( $(date +%s) + $(cat '${shiftFile}') / 1000 + 3600 ))" +%Y-%m-%dT%H:%M:%SZ)
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'
echo '"status":{"token":"token","expirationTimestamp":"'$until'"}}'
`,
    { mode: 0o755 },
  )
  return {
    command,
    runs: () => (existsSync(runs) ? readFileSync(runs, 'utf8').split('\n').length - 1 : 0),
  }
}

/** An address that is refused, which is an event. */
function refused(round: number): object {
  const [object] = service(30 + round)
  return { ...object, spec: { ...Object(object).spec, externalIPs: ['127.0.0.1'] } }
}

describe('a clock that jumps', () => {
  it('F94, F146: forward and back, by hours, months and years: rules, health, events and credentials go on', async ({
    task,
  }) => {
    const tally = new Tally(task)
    const random = createRandom(SEED)
    const wall = shiftedClock(name => cluster.file(name))
    const { command, runs } = plugin(wall.file)
    cluster.server.semantics.access.tokens.set('token', { name: 'kprobe' })
    cluster.configure({ exec: { command } })
    const daemon = await cluster.running({ nodeArgs: wall.nodeArgs })
    const removals = await Removals.begin()
    let jumps = 0
    for (const round of rounds('clock', JUMPS)) {
      jumps++
      wall.set(random.pick(SHIFTS_MS))
      if (random.chance(0.3)) cluster.server.cut()
      cluster.put(...service(5, { endpoints: [`10.9.5.${round + 1}:8080`] }), refused(round))
      await cluster.converged()
      expect(await ask('/healthz')).toMatchObject({ code: 200 })
      expect(await ask('/livez')).toMatchObject({ code: 200 })
      tally.add('jumps of the wall clock')
    }
    await eventually(() => cluster.server.store.list('events').length >= Math.min(jumps, EVENTS))
    expect((await metric('kubeproxy_network_programming_duration_seconds_sum')) ?? 0).toBeGreaterThanOrEqual(
      0,
    )
    // Endpoints that are replaced leave; nothing else does.
    expect(removals.lines.filter(line => line.includes(' frontends '))).toEqual([])
    expect(runs()).toBe(1)
    await daemon.caughtUp()
    expect(daemon.said('fault')).toEqual([])
    expect(daemon.hasExited).toBe(false)
  })

  it('F146: in a time namespace that is up for 30 days more, the daemon works', async ({ task }) => {
    const offsets = ['--monotonic', String(30 * 86_400), '--boottime', String(30 * 86_400)]
    await cluster.running({ wrapper: ['unshare', '-T', ...offsets] })
    cluster.put(...service(6))
    await cluster.converged()
    expect(await ask('/healthz')).toMatchObject({ code: 200 })
    new Tally(task).add('time namespaces')
  })

  it('F146: files with times from tomorrow and from 1970 are read, and followed', async ({ task }) => {
    const daemons = new Daemons()
    try {
      const folder = join(daemons.folder(), 'objects')
      mkdirSync(folder)
      const write = (number: number, seconds: number) => {
        const file = join(folder, `s${number}.json`)
        writeFileSync(
          file,
          service(number)
            .map(object => JSON.stringify(object))
            .join('\n'),
        )
        utimesSync(file, seconds, seconds)
      }
      const nowS = Date.now() / 1_000
      write(1, nowS + 30 * 86_400)
      write(2, 0)
      const tally = new Tally(task)
      await daemons.running({ source: folder })
      for (const [index, seconds] of [nowS + 86_400, 0, nowS - 30 * 86_400].entries()) {
        write(10 + index, seconds)
        await eventually(() => frontendNames().has(nameOf(10 + index)))
        tally.add('files')
      }
      expect([1, 2].every(number => frontendNames().has(nameOf(number)))).toBe(true)
    } finally {
      await daemons.end()
    }
  })
})
