import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { systemClock } from '../../src/base/clock.ts'
import { openRelayClient } from '../../src/relay/open.ts'
import { openApiClient } from '../../src/source/kube/client/http-client.ts'
import { KubeSource } from '../../src/source/kube/kube-source.ts'

interface Task {
  readonly kind: 'open' | 'changes' | 'arrivals' | 'end'
  readonly count: number
  readonly kubeconfig: string
  /** Undefined for nodes that watch the API server themselves. */
  readonly relay: string | undefined
}

/** Of `open`, bytes of the lists of all; of `changes`, the CPU of all; of `arrivals`, when each node had read the change. */
interface Answer {
  readonly listBytes: number
  readonly cpuMs: number
  readonly arrivalsMs: readonly number[]
}

/** Of all processes of the machine: clock_gettime(2), CLOCK_MONOTONIC. */
export function monotonicMs(): number {
  return Number(process.hrtime.bigint()) / 1e6
}

/** Many nodes in this process. */
class Nodes {
  readonly #ends: (() => Promise<unknown>)[] = []
  #changes = 0
  #listBytes = 0
  #synced = 0
  #arrivalsMs: number[] = []

  async open({ count, kubeconfig, relay }: Task): Promise<Answer> {
    const before = process.cpuUsage()
    for (let index = 0; index < count; index++) await this.#start(index, kubeconfig, relay)
    while (this.#synced < count) await sleep(20)
    this.#changes = 0
    return { listBytes: this.#listBytes, cpuMs: cpuMs(before), arrivalsMs: [] }
  }

  async changes(expected: number): Promise<Answer> {
    const before = process.cpuUsage()
    process.send?.('listening')
    while (this.#changes < expected) await sleep(20)
    return { listBytes: 0, cpuMs: cpuMs(before), arrivalsMs: [] }
  }

  async arrivals(expected: number): Promise<Answer> {
    const before = process.cpuUsage()
    this.#arrivalsMs = []
    process.send?.('listening')
    while (this.#arrivalsMs.length < expected) await sleep(20)
    return { listBytes: 0, cpuMs: cpuMs(before), arrivalsMs: this.#arrivalsMs }
  }

  async end(): Promise<void> {
    await Promise.all(this.#ends.map(end => end()))
  }

  async #start(index: number, kubeconfig: string, relay: string | undefined): Promise<void> {
    const warn = (text: string): void => console.error(text)
    const nodeName = `node-${index}`
    const common = { clock: systemClock, env: {}, warn }
    const kube = await openApiClient({ ...common, kubeconfig, master: '', qps: 0, burst: 10 })
    const client =
      relay === undefined
        ? kube
        : openRelayClient({
            addresses: [relay],
            zone: '',
            fallsBack: false,
            tls: undefined,
            tokenFile: '',
            nodeName,
            proxyName: '',
            kube,
            clock: systemClock,
            say: warn,
          })
    const accept = 'application/vnd.kubernetes.protobuf'
    const clock = systemClock
    const source = new KubeSource({
      client,
      clock,
      random: Math.random,
      nodeName,
      serviceProxyName: undefined,
      accept,
    })
    await source.start({
      events: async batch => {
        const changes = batch.filter(({ kind }) => kind === 'EndpointSlice').length
        this.#changes += changes
        if (changes > 0) this.#arrivalsMs.push(monotonicMs())
      },
      synced: () => this.#synced++,
      refusals: () => undefined,
      problem: ({ text }) => warn(text),
      observed: news => {
        if (news.kind === 'listed') this.#listBytes += news.bytes
      },
    })
    this.#ends.push(async () => {
      await source.stop()
      await client.close()
    })
  }
}

function cpuMs(before: NodeJS.CpuUsage): number {
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1_000
}

/** What the process of the nodes does. */
export function beNodes(): void {
  const nodes = new Nodes()
  process.on('message', async ({ kind, ...task }: Task) => {
    if (kind === 'open') process.send?.(await nodes.open({ kind, ...task }))
    else if (kind === 'changes') process.send?.(await nodes.changes(task.count))
    else if (kind === 'arrivals') process.send?.(await nodes.arrivals(task.count))
    else await nodes.end().finally(() => process.exit(0))
  })
  process.send?.('ready')
}

/** Nodes of kprobe, in a process of their own. */
export class NodeReaders {
  readonly #child = fork(process.argv[1] ?? '', ['nodes'], { execArgv: process.execArgv })
  readonly #ready = once(this.#child, 'message')
  readonly #task: Omit<Task, 'kind'>

  constructor(task: Omit<Task, 'kind'>) {
    this.#task = task
  }

  /** Resolves once all have the whole state, with the bytes of all lists. */
  async open(): Promise<number> {
    await this.#ready
    return (await ask(this.#child, { ...this.#task, kind: 'open' })).listBytes
  }

  /** Resolves once all together have read so many changes, with the milliseconds of processor time for that. */
  async changes(count: number): Promise<number> {
    return (await ask(this.#child, { ...this.#task, kind: 'changes', count })).cpuMs
  }

  /** Gives when each of so many nodes has read the next change, once all listen. */
  async arrivals(count: number): Promise<{ readonly all: Promise<readonly number[]> }> {
    const listening = once(this.#child, 'message')
    const all = ask(this.#child, { ...this.#task, kind: 'arrivals', count })
    await listening
    return { all: all.then(({ arrivalsMs }) => arrivalsMs) }
  }

  async end(): Promise<void> {
    this.#child.send({ ...this.#task, kind: 'end' } satisfies Task)
    await once(this.#child, 'exit')
  }
}

async function ask(child: ChildProcess, task: Task): Promise<Answer> {
  child.send(task)
  for (;;) {
    const [answer] = await once(child, 'message')
    if (answer !== 'listening') return answer
  }
}
