import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest'
import { createRandom } from '../support/apiserver/random.ts'
import { type Daemon, Daemons } from '../support/daemon.ts'
import { Lab } from '../support/lab/lab.ts'
import type { Servers, TrafficClient, TrafficReport } from '../support/lab/traffic.ts'
import { runs } from '../support/runs.ts'
import { differences, generation, isAtRest, listRuleset } from './kernel.ts'
import { clusterIp, service, services, writeObjects } from './objects.ts'

const ENDPOINTS = ['10.0.1.1:8080', '10.0.1.2:8080', '10.0.1.3:8080', '10.0.1.4:8080', '10.0.1.5:8080']
/** The Service whose clients must not notice anything. */
const UNDER_TRAFFIC = 1
const SEED = 20261121

const daemons = new Daemons()
let lab: Lab
let servers: Servers

beforeAll(async () => {
  lab = await Lab.start()
  servers = await lab.servers(ENDPOINTS)
})

afterEach(() => daemons.end())

afterAll(async () => {
  await servers.close()
  await lab.close()
})

/** Any one to five of the live endpoints for the Service under traffic, and any number of other Services. */
function anyVersion(random: () => number): readonly object[] {
  const count = 1 + Math.floor(random() * ENDPOINTS.length)
  const first = Math.floor(random() * ENDPOINTS.length)
  const endpoints = [...ENDPOINTS, ...ENDPOINTS].slice(first, first + count)
  const others = services(30).slice(4, 4 + 2 * Math.floor(random() * 26))
  return [...service(UNDER_TRAFFIC, { endpoints }), ...others]
}

function clients(): readonly TrafficClient[] {
  const destination = { destination: clusterIp(UNDER_TRAFFIC), port: 80 }
  return [
    lab.client({ from: 'outside', source: '203.0.113.5', ...destination, rate: 200 }),
    lab.client({ from: 'node', source: '192.168.0.2', ...destination, rate: 100 }),
  ]
}

/** Stops the clients and expects that each of their requests was answered, without a SYN that was lost. */
async function expectNoFailure(traffic: readonly TrafficClient[], requestsMin: number): Promise<void> {
  const reports: TrafficReport[] = await Promise.all(traffic.map(client => client.stop()))
  expect(lab.repeatedSyns()).toBe(0)
  for (const report of reports) {
    expect(report).toMatchObject({ refused: 0, timeouts: 0, other: 0 })
    expect(report.ok).toBeGreaterThan(requestsMin)
    expect([...report.endpoints.keys()].filter(endpoint => !ENDPOINTS.includes(endpoint))).toEqual([])
  }
}

async function synced(folder: string): Promise<Daemon> {
  return await daemons.running({ source: folder })
}

/** How many times longer than on an idle machine the start took. */
async function startedAndKilled(folder: string): Promise<number> {
  const daemon = daemons.start({ source: folder })
  const tookMs = await daemon.synced()
  await daemon.stop('SIGKILL')
  return tookMs / START_MS
}

const KILLS = runs(200, 1 / 20)
const CRASHES = Math.ceil(KILLS / 4)
/** Kills of each kind that have to leave the state of before, and that of after. */
const OF_EACH = Math.ceil(KILLS / 20)
/** What a start takes on an idle machine: kills come as many times later as it takes longer here. */
const START_MS = 300

/** Moments that come later after each kill that was too early to change anything, and earlier after each other one. */
class Moments {
  readonly #random: () => number
  #scale = 1

  constructor(random: () => number) {
    this.#random = random
  }

  /** Of this many milliseconds on an idle machine. */
  within(ms: number): number {
    return this.#random() * ms * this.#scale
  }

  wasLate(late: boolean): void {
    this.#scale *= late ? 0.6 : 1.8
  }
}
/** What a start logs: the banner, the missing Node object, where it listens, settings it may not change, the first sync. */
const LINES_A_START = 7

it('F83: kills at any instant fail no request, leave the state of before or after, and the next start converges', async () => {
  const random = createRandom(SEED)
  const folder = daemons.folder()
  let before = anyVersion(random)
  writeObjects(folder, before)
  let slowness = await startedAndKilled(folder)
  const traffic = clients()
  const seen = { before: 0, after: 0 }
  const [starting, editing] = [new Moments(random), new Moments(random)]
  for (
    let kill = 1;
    kill <= KILLS || (Math.min(seen.before, seen.after) < OF_EACH && kill <= 10 * KILLS);
    kill++
  ) {
    const after = anyVersion(random)
    const duringStart = kill % 2 === 0
    if (duringStart) {
      writeObjects(folder, after)
      const daemon = daemons.start({ source: folder })
      await delay((80 + starting.within(250)) * slowness)
      await daemon.stop('SIGKILL')
    } else {
      writeObjects(folder, before)
      const daemon = daemons.start({ source: folder })
      slowness = (await daemon.synced()) / START_MS
      expect(await isAtRest([before]), `start after kill ${kill - 1}`).toBe(true)
      writeObjects(folder, after)
      await delay(editing.within(200) * slowness)
      await daemon.stop('SIGKILL')
    }
    expect(await isAtRest([before, after]), `kill ${kill}`).toBe(true)
    const isAfter = await isAtRest([after])
    if (isAfter) before = after
    ;(duringStart ? starting : editing).wasLate(isAfter)
    seen[isAfter ? 'after' : 'before']++
  }
  // Both kinds happened, or the kills came at the wrong time.
  expect(Math.min(seen.before, seen.after)).toBeGreaterThanOrEqual(OF_EACH)
  writeObjects(folder, before)
  await synced(folder)
  expect(await differences(before)).toEqual([])
  await expectNoFailure(traffic, KILLS * 10)
})

it('F85: crashes in a row change nothing in the kernel, fail no request and fill no log', async () => {
  const folder = daemons.folder()
  writeObjects(folder, [...service(UNDER_TRAFFIC, { endpoints: ENDPOINTS }), ...services(30).slice(4)])
  await (await synced(folder)).stop('SIGKILL')
  const traffic = clients()
  const [rules, number] = [listRuleset(), await generation()]
  for (let crash = 0; crash < CRASHES; crash++) {
    const daemon = await synced(folder)
    await daemon.stop('SIGKILL')
    // The banner, the missing Node object and where it listens: nothing that a crash adds to.
    expect(daemon.records.filter(({ level }) => level !== 'info')).toEqual(daemon.said('no Node object'))
    expect(daemon.records.length).toBeLessThanOrEqual(LINES_A_START)
    expect(daemon.strayLines).toEqual([])
  }
  expect(await generation()).toBe(number)
  expect(listRuleset()).toBe(rules)
  await expectNoFailure(traffic, CRASHES * 10)
})
