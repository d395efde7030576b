import { onTestFinished } from 'vitest'
import { formatIp } from '../../src/base/ip.ts'
import type { Refusal } from '../../src/model/fields.ts'
import { parserOf } from '../../src/model/parse.ts'
import type { SourceEvent } from '../../src/model/snapshot.ts'
import { watchedResources } from '../../src/source/kube/api-client.ts'
import { Exchange } from '../../src/source/kube/exchange.ts'
import type { Failure } from '../../src/source/kube/failure.ts'
import { Batcher } from '../../src/source/kube/kube-source.ts'
import { Reflector } from '../../src/source/kube/reflector.ts'
import type { Trouble } from '../../src/source/kube/reflector-state.ts'
import { deletion, type ParseObject } from '../../src/source/kube/resource-changes.ts'
import type { SourceObservation } from '../../src/source/source.ts'
import { FakeClock, settle } from './fake-clock.ts'
import { type Asked, ScriptedApi, type ScriptedWatch, type Written } from './scripted-api.ts'

export interface RigOptions {
  readonly resource?: string
  readonly random?: () => number
  readonly checkPeriodMs?: number
  readonly partsMax?: number
  readonly parse?: ParseObject
  /** False for a server that refuses to stream lists. */
  readonly streaming?: boolean
}

const NEVER_MS = 1e12

/** A reflector with an API server in memory, a clock that is moved by hand, and what it told. It ends with the test. */
export class ReflectorRig {
  readonly api = new ScriptedApi()
  readonly clock = new FakeClock()
  readonly reflector: Reflector
  readonly batches: (readonly SourceEvent[])[] = []
  /** What follows from all that was told: the first address of each Service, of others the key. */
  readonly known = new Map<string, string>()
  readonly troubles: (Trouble | undefined)[] = []
  readonly observations: SourceObservation[] = []
  readonly checks: (Failure | undefined)[] = []
  refusals: readonly Refusal[] = []
  listed = 0
  onListed = (): void => undefined
  /** What taking a batch waits for. */
  take: (batch: readonly SourceEvent[]) => Promise<void> = async () => undefined

  constructor(options: RigOptions = {}) {
    const { api, clock } = this
    const { resource: name = 'services', random = () => 0, checkPeriodMs = NEVER_MS, partsMax } = options
    const resource = watchedResources({ nodeName: 'n1', serviceProxyName: undefined }).find(
      each => each.name === name,
    )
    if (resource === undefined) throw new Error(`no resource ${name}`)
    const batcher = new Batcher<SourceEvent>(clock)
    batcher.start(batch => this.#takeBatch(batch))
    const exchange = new Exchange({ client: api, clock, accept: 'application/json' })
    exchange.traits.streamsLists = options.streaming ?? false
    this.reflector = new Reflector({
      resource,
      clock,
      random,
      checkPeriodMs,
      partsMax,
      parseObject: options.parse ?? parserOf(),
      deletion,
      exchange,
      sink: {
        events: batcher.put,
        refusals: list => {
          this.refusals = list
        },
        listed: () => {
          this.listed++
          this.onListed()
        },
        trouble: trouble => this.troubles.push(trouble),
        checked: failure => this.checks.push(failure),
        observed: observation => this.observations.push(observation),
      },
    })
    onTestFinished(() => this.reflector.stop())
  }

  async start(): Promise<this> {
    this.reflector.start()
    await settle()
    return this
  }

  /** Starts, lists these, and watches. */
  async watching(objects: readonly Written[], resourceVersion: string | number): Promise<ScriptedWatch> {
    await this.start()
    this.api.take().list(objects, String(resourceVersion))
    await settle()
    const watch = this.api.take().watch()
    // Watches that end sooner count as failed.
    await this.clock.advance(2_000)
    return watch
  }

  /** Answers the next request with a list. */
  async list(objects: readonly Written[], resourceVersion: string, token?: string): Promise<void> {
    this.api.take().list(objects, resourceVersion, token)
    await settle()
  }

  /** Answers the next request with a Status. */
  async status(...status: Parameters<Asked['status']>): Promise<void> {
    this.api.take().status(...status)
    await settle()
  }

  /** `namespace/name=address` of what is known, sorted. */
  get state(): string[] {
    return [...this.known].map(([key, value]) => `${key.replace('ns/', '')}=${value}`).sort()
  }

  /** Forms and parameters of all requests, without metadata lists. */
  get requests(): string[] {
    return this.api.asked.map(({ text }) => text)
  }

  get trouble(): string | undefined {
    return this.troubles.at(-1)?.text
  }

  skipped(reason: string): number {
    return this.observations.filter(each => each.kind === 'skipped' && each.reason === reason).length
  }

  reasons(): string[] {
    return this.observations.flatMap(each => (each.kind === 'listed' ? [each.reason] : []))
  }

  async #takeBatch(batch: readonly SourceEvent[]): Promise<void> {
    if (batch.length === 0) return
    await this.take(batch)
    this.batches.push(batch)
    for (const event of batch) {
      if (event.kind === 'LocalIps') continue
      if (event.value === undefined) this.known.delete(event.key)
      else this.known.set(event.key, event.kind === 'Service' ? addressOf(event.value) : event.key)
    }
  }
}

function addressOf(value: object): string {
  const { clusterIps } = Object(value)
  return Array.isArray(clusterIps) ? formatIp(clusterIps[0]) : ''
}
