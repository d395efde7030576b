import { finish } from '../../src/base/clock.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { acceptFor } from '../../src/source/kube/wire/encodings.ts'
import { FaultScript } from '../support/apiserver/faults.ts'
import { MemoryNetwork } from '../support/apiserver/memory-network.ts'
import { createRandom, type Random } from '../support/apiserver/random.ts'
import { Semantics } from '../support/apiserver/semantics.ts'
import { metadataOf, Store } from '../support/apiserver/store.ts'
import { FakeClock, settle } from '../support/fake-clock.ts'
import { FakeKernel } from '../support/fake-kernel/kernel.ts'
import { change, compute, NODE_NAME, planeOn } from '../support/pipeline.ts'
import { damage, mishap } from './mishaps.ts'
import { NodeProcess } from './node-process.ts'
import { Objects } from './objects.ts'

interface Outcome {
  /** One line for whatever happened, with its time: the same for the same seed. */
  readonly trace: readonly string[]
  /** Invariants that did not hold; empty when all is well. */
  readonly complaints: readonly string[]
}

interface SimulationOptions {
  /** For tests of the judge: what nobody is to notice but him. */
  readonly beforeJudging?: (kernel: FakeKernel) => void
}

const STEPS_MIN = 6
const STEPS_MAX = 18
const CHECK_PERIOD_MS = 60_000
/**
 * A trouble of watches ends with a watch that lasts. Before it come a request that is found dead (a list after 75 s), back-offs, and
 * the list that replaces the watch. The longest Retry-After that is honored is 300 s, and is over by then.
 */
const LATE_TROUBLE_MS_MAX = 300_000
const HEAL_MS_MAX = 400_000
const HEAL_STEP_MS = 2_000
const QUIET_MS = 20_000
/** More requests than this in ten seconds are no back-off: the limit is 5 a second, and 10 at once. */
const REQUESTS_MAX = 60
const WINDOW_MS = 10_000
const START_VERSIONS = ['1', '100', '9007199254740990', '18446744073709551610', `1${'0'.repeat(37)}`] as const
/** Settling goes on for so many turns of the event loop when nothing says that it is over. */
const TURNS_MAX = 200

/** A cluster, its API server, the network and one node, all out of one seed; and then everything goes wrong. */
class Simulation {
  readonly #seed: number
  readonly #beforeJudging: (kernel: FakeKernel) => void
  readonly #random: Random
  readonly #clock = new FakeClock()
  readonly #kernel: FakeKernel
  readonly #semantics: Semantics
  readonly #faults = new FaultScript()
  readonly #network: MemoryNetwork
  readonly #objects: Objects
  readonly #accept: string
  readonly #trace: string[] = []
  readonly #complaints: string[] = []
  readonly #requestTimes: number[] = []
  #process: NodeProcess

  constructor(seed: number, { beforeJudging = () => undefined }: SimulationOptions = {}) {
    this.#seed = seed
    this.#beforeJudging = beforeJudging
    const random = createRandom(seed)
    this.#random = random
    const clock = this.#clock
    this.#kernel = new FakeKernel({ nowMs: () => clock.nowMs() })
    const now = () => new Date(Date.UTC(2026, 0, 1) + clock.nowMs())
    this.#semantics = new Semantics({
      store: new Store({ startVersion: random.pick(START_VERSIONS), now }),
      clock,
      random: random.fork(),
      watchList: random.chance(0.7),
      expiredAsStatus: random.chance(0.3),
      limitAlways: random.chance(0.3),
      bookmarkEveryMs: random.pick([0, 5_000, 60_000]),
      groupsOff: random.chance(0.1) ? ['networking.k8s.io'] : [],
    })
    this.#network = new MemoryNetwork({ clock, random: random.fork() })
    this.#objects = new Objects(this.#semantics.store, random.fork())
    this.#accept = acceptFor(random.chance(0.5) ? 'application/vnd.kubernetes.protobuf' : 'application/json')
    this.#process = this.#born()
  }

  async run(): Promise<Outcome> {
    await this.#process.start()
    const steps = this.#random.int(STEPS_MIN, STEPS_MAX)
    for (let step = 0; step < steps; step++) {
      await this.#step()
      await this.#pass(this.#random.pick([0, 10, 100, 1_000, 5_000, 30_000]))
    }
    await this.#heal()
    this.#beforeJudging(this.#kernel)
    await this.#judge()
    await this.#end()
    this.#checkRate()
    return { trace: this.#trace, complaints: this.#complaints }
  }

  async #step(): Promise<void> {
    const random = this.#random
    const dice = random.int(0, 99)
    if (dice < 50) for (let count = random.int(1, 6); count > 0; count--) this.#change()
    else if (dice < 72) this.#goWrong()
    else if (dice < 84) this.#breakNetwork()
    else if (dice < 89) this.#compact()
    else if (dice < 95) this.#tell(damage(this.#kernel, random))
    else await this.#restart()
  }

  #goWrong(): void {
    const { name, rule } = mishap(this.#random)
    this.#tell(`fault ${name}`)
    this.#faults.add(rule)
    if (rule.faults.some(({ kind }) => kind === 'reverse')) this.#process.excused = true
    // Watches that live are out of its reach: new ones are needed.
    if (!this.#random.chance(0.6)) return
    this.#tell('network: cut')
    this.#network.cut()
  }

  #breakNetwork(): void {
    const how = this.#random.pick(['cut', 'cut', 'refuse', 'die'] as const)
    this.#tell(`network: ${how}`)
    this.#network[how]()
    if (how !== 'cut')
      this.#clock.after(this.#random.pick([100, 10_000, 60_000]), () => {
        this.#tell('network: up')
        this.#network.heal()
      })
  }

  #compact(): void {
    const { store } = this.#semantics
    // Half of the time somebody still needs what is forgotten.
    if (this.#random.chance(0.5)) {
      this.#network.cut()
      for (let count = this.#random.int(1, 4); count > 0; count--) this.#change()
    }
    if (this.#random.chance(0.5)) store.skip(BigInt(this.#random.int(1, 1_000)))
    this.#tell(`compact ${store.version}`)
    store.compact()
  }

  #change(): void {
    this.#tell(this.#objects.change())
  }

  async #restart(): Promise<void> {
    const isCrash = this.#random.chance(0.5)
    this.#tell(isCrash ? 'crash' : 'restart')
    if (isCrash) this.#network.cut()
    await this.#stop()
    await this.#pass(this.#random.pick([0, 1_000, 20_000]))
    const { excused } = this.#process
    this.#process = this.#born()
    this.#process.excused = excused
    await this.#process.start()
  }

  /** Everything works again, until the kernel shows it. */
  async #heal(): Promise<void> {
    this.#tell('heal')
    this.#faults.clear()
    this.#network.heal()
    this.#kernel.forced.length = 0
    const healedAtMs = this.#clock.nowMs()
    for (let lookMs = HEAL_STEP_MS; this.#clock.nowMs() - healedAtMs < HEAL_MS_MAX; ) {
      await this.#pass(HEAL_STEP_MS)
      if (!this.#isWell() || this.#clock.nowMs() - healedAtMs < lookMs) continue
      if ((await this.#differences()).length === 0) return
      lookMs *= 2
    }
  }

  async #judge(): Promise<void> {
    const { status } = this.#process.source
    if (status.missing.length > 0) this.#complain(`never listed: ${status.missing}`)
    for (const difference of await this.#differences()) this.#complain(`INV-3: ${difference}`)
    const { commits } = this.#process
    await this.#pass(QUIET_MS)
    if (this.#process.commits > commits) this.#complain('INV-9: a commit though nothing happens')
    // What was asked before the network healed may be found dead only now, and is asked again after a while.
    for (let passedMs = 0; !this.#isWell() && passedMs < LATE_TROUBLE_MS_MAX; passedMs += HEAL_STEP_MS)
      await this.#pass(HEAL_STEP_MS)
    if (!this.#isWell()) this.#complain(`still in trouble: ${this.#process.source.status.trouble}`)
  }

  /** Nothing waits to be programmed, and nothing is wrong but what the server simply does not have. */
  #isWell(): boolean {
    const { trouble } = this.#process.source.status
    return this.#process.settled && (trouble === undefined || trouble.includes('continuing without it'))
  }

  async #end(): Promise<void> {
    await this.#stop()
    await this.#pass(1_000)
    if (this.#process.openRequests > 0) this.#complain('INV-8: requests are left open')
    if (this.#network.busy > 0) this.#complain('INV-8: something is left on the network')
  }

  /** INV-8: what is sent stays under a bound in every window. */
  #checkRate(): void {
    const times = this.#requestTimes
    for (let from = 0; from + REQUESTS_MAX < times.length; from++) {
      const spanMs = (times[from + REQUESTS_MAX] ?? 0) - (times[from] ?? 0)
      if (spanMs >= WINDOW_MS) continue
      this.#complain(`INV-8: ${REQUESTS_MAX} requests within ${spanMs} ms at ${times[from]} ms`)
      return
    }
  }

  #born(): NodeProcess {
    return new NodeProcess({
      backend: { semantics: this.#semantics, faults: this.#faults },
      network: this.#network,
      kernel: this.#kernel,
      clock: this.#clock,
      random: this.#random.fork(),
      accept: this.#accept,
      checkPeriodMs: CHECK_PERIOD_MS,
      tell: text => this.#tell(text),
      complain: text => this.#complain(text),
      requested: () => this.#requestTimes.push(this.#clock.nowMs()),
    })
  }

  /** What would have to be done for the kernel to hold what the objects ask for; empty when it does (INV-3). */
  async #lacking(): Promise<readonly string[]> {
    const { store, groupsOff } = this.#semantics
    const client = createNftClient({ transport: this.#kernel.open(), clock: this.#clock })
    const plane = planeOn(client, {})
    try {
      const { state } = await plane.observe()
      const node = store.list('nodes').filter(object => metadataOf(object).name === NODE_NAME)
      const cidrs = groupsOff.has('networking.k8s.io') ? [] : store.list('servicecidrs')
      const objects = [...node, ...cidrs, ...store.list('services'), ...store.list('endpointslices')]
      const { table } = change(compute({}, []), { objects }).resolved
      const wanted = finish(plane.render(table, { base: state, without: new Set() }))
      const plan = finish(plane.diff(state, wanted))
      return [...plan.describe()].map(
        ({ verb, object, service }) => `${verb} ${object} (${service ?? 'all'})`,
      )
    } finally {
      await client.close()
    }
  }

  #differences(): Promise<readonly string[]> {
    return this.#driven(this.#lacking())
  }

  async #stop(): Promise<void> {
    await this.#driven(this.#process.stop())
  }

  async #pass(ms: number): Promise<void> {
    await this.#clock.advance(ms)
  }

  /** Time goes by until the work is done. */
  async #driven<T>(work: Promise<T>): Promise<T> {
    let over = false
    const done = () => {
      over = true
    }
    work.then(done, done)
    for (let turn = 0; turn < TURNS_MAX && !over; turn++) await settle()
    for (let turn = 0; turn < TURNS_MAX && !over; turn++) await this.#pass(100)
    if (!over) throw new Error(`seed ${this.#seed}: something never ends`)
    return work
  }

  #tell(text: string): void {
    this.#trace.push(`${this.#clock.nowMs()} ${text}`)
  }

  #complain(text: string): void {
    this.#tell(`COMPLAINT ${text}`)
    this.#complaints.push(text)
  }
}

export function runSeed(seed: number, options?: SimulationOptions): Promise<Outcome> {
  return new Simulation(seed, options).run()
}
