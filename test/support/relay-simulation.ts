import { isDeepStrictEqual } from 'node:util'
import { createRandom, type Random } from './apiserver/random.ts'
import type { Follower } from './follower.ts'
import { type MemoryRelay, RelayWorld } from './relay.ts'

interface RelayOutcome {
  readonly seed: number
  readonly trace: readonly string[]
  readonly complaints: readonly string[]
}

const STEPS_MIN = 8
const STEPS_MAX = 24
/** The longest rest of a relay and of a reflector, a dead peer, and the time until relays count as stale. */
const HEAL_MS_MAX = 600_000
const HEAL_STEP_MS = 5_000

/** A cluster, its API server, relays and nodes out of one seed. Then everything goes wrong, and at last right again. */
export class RelaySimulation {
  readonly #seed: number
  readonly #random: Random
  readonly #world: RelayWorld
  readonly #direct: Follower
  readonly #nodes: Follower[] = []
  readonly #trace: string[] = []

  constructor(seed: number) {
    const random = createRandom(seed)
    this.#seed = seed
    this.#random = random
    this.#world = new RelayWorld({
      seed: random.int(0, 1 << 30),
      relays: random.int(1, 3),
      fallsBack: random.chance(0.5),
      bookmarkEveryMs: random.pick([5_000, 60_000]),
      ...(random.chance(0.3) ? { historyBytesMax: random.int(0, 4_000) } : {}),
    })
    this.#direct = this.#world.direct()
  }

  async run(): Promise<RelayOutcome> {
    const { clock, relays } = this.#world
    for (const relay of relays) if (this.#random.chance(0.8)) relay.start()
    await this.#direct.start()
    for (let index = 0; index < this.#random.int(1, 3); index++) {
      const node = this.#world.node(`node-${index % 3}`)
      await node.start()
      this.#nodes.push(node)
    }
    const steps = this.#random.int(STEPS_MIN, STEPS_MAX)
    for (let step = 0; step < steps; step++) {
      await this.#step()
      await clock.advance(this.#random.pick([1, 20, 300, 3_000, 40_000, 200_000]))
    }
    const complaints = await this.#heal()
    return { seed: this.#seed, trace: this.#trace, complaints }
  }

  async #step(): Promise<void> {
    const random = this.#random
    const relay = random.pick(this.#world.relays)
    const name = `relay ${this.#world.relays.indexOf(relay)}`
    const what = random.int(0, 15)
    if (what <= 4) this.#change(random.int(1, 12))
    else if (what === 5) await this.#killOrStart(relay, name)
    else if (what === 6) this.#say(`${name} stopped`, () => relay.stop())
    else if (what === 7) this.#say(`${name} continued`, () => relay.continue())
    else if (what === 8) this.#say(`${name} cut`, () => relay.cut())
    else if (what === 9) this.#say(`${name} without its source`, () => relay.network.refuse())
    else if (what === 10) this.#say(`${name} with its source`, () => relay.network.heal())
    else if (what === 11) this.#say('API server refuses nodes', () => this.#world.kube.refuse())
    else if (what === 12) this.#say('API server serves nodes', () => this.#world.kube.heal())
    else if (what === 13) this.#say(`${name} partitioned from its source`, () => relay.network.die())
    else if (what === 14) {
      const ms = random.pick([1_000, 90_000, 3_600_000])
      this.#say(`the clock of ${name} leaps by ${ms} ms`, () => relay.clock.leap(ms))
    } else this.#say('history compacted', () => this.#world.store.compact())
  }

  #say(what: string, act: () => void): void {
    this.#trace.push(`${this.#world.clock.nowMs()} ${what}`)
    act()
  }

  #change(times: number): void {
    this.#say(`${times} changes`, () => {
      for (let time = 0; time < times; time++) this.#world.change()
    })
  }

  async #killOrStart(relay: MemoryRelay, name: string): Promise<void> {
    this.#trace.push(`${this.#world.clock.nowMs()} ${name} ${relay.isUp ? 'killed' : 'started'}`)
    if (relay.isUp) await relay.kill()
    else relay.start()
  }

  async #heal(): Promise<readonly string[]> {
    const { relays, kube, clock } = this.#world
    kube.heal()
    for (const relay of relays) {
      relay.network.heal()
      relay.continue()
      if (!relay.isUp) relay.start()
    }
    this.#change(2)
    await clock.advance(HEAL_STEP_MS)
    for (let ms = 0; ms < HEAL_MS_MAX && !this.#nodes.every(node => this.#isHealed(node)); ms += HEAL_STEP_MS)
      await clock.advance(HEAL_STEP_MS)
    this.#trace.push(
      ...relays.flatMap(({ problems }, index) => problems.map(text => `relay ${index}: ${text}`)),
      ...this.#world.said.map(text => `said: ${text}`),
      ...this.#nodes.flatMap(({ problems, lists }) => [...problems, ...lists]),
    )
    // What comes afterwards must not take anything back.
    await clock.advance(20_000)
    return this.#nodes.flatMap((node, index) => [
      ...(node.synced === 1 ? [] : [`node ${index} has synced ${node.synced} times`]),
      ...(this.#isHealed(node) ? [] : [`node ${index} is not where a direct watcher is`]),
      ...node.spurious.map(what => `node ${index} heard of ${what}, which had not changed`),
    ])
  }

  #isHealed(node: Follower): boolean {
    const [its, ours] = [node.snapshot, this.#direct.snapshot]
    return (
      its.services.size === ours.services.size &&
      isDeepStrictEqual(withoutNode(node.known), withoutNode(this.#direct.known))
    )
  }
}

/** Each node has its own Node. */
function withoutNode(known: unknown): unknown {
  return { ...Object(known), node: undefined }
}
