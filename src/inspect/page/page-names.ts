import { type Clock, restMs } from '../../base/clock.ts'
import type { PageSource } from '../../daemon/optional-parts.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { type PodNames, podNames, podPlaces } from '../../model/pod-names.ts'
import { namesOfPorts, serviceOfFlow } from '../../modes/common/service-names.ts'
import type { FlowNames } from '../live/flow-reading.ts'
import type { TopNames } from '../live/top-sampler.ts'

/** The part of the time that naming the frontends of a large cluster may take. */
const PACE = { share: 0.01, minMs: 2_000 } as const

/** Names the Service of a connection by the daemon's own table, without the way over its socket that commands take. */
export class TableNames implements TopNames {
  readonly socket = undefined
  readonly notice = undefined
  readonly #clock: Clock
  readonly #held: PageSource['held']
  #named: FrontendTable | undefined
  #names = namesOfPorts([])
  #pods: PodNames = () => undefined
  #version = 0
  #dueMs = Number.NEGATIVE_INFINITY

  constructor({ clock, held }: Pick<PageSource, 'clock' | 'held'>) {
    this.#clock = clock
    this.#held = held
  }

  get version(): number {
    return this.#version
  }

  readonly serviceOf: FlowNames['serviceOf'] = (...destination) => serviceOfFlow(this.#names, ...destination)

  readonly podAt: FlowNames['podAt'] = endpoint => (endpoint === undefined ? undefined : this.#pods(endpoint))

  async refresh(): Promise<void> {
    const { table, snapshot } = this.#held() ?? {}
    const startMs = this.#clock.nowMs()
    if (table === undefined || snapshot === undefined || table === this.#named || startMs < this.#dueMs)
      return
    this.#names = namesOfPorts(table.services.values().flatMap(({ ports }) => ports))
    this.#pods = podNames(podPlaces(snapshot.sliceByKey.values()))
    this.#named = table
    this.#version++
    const endMs = this.#clock.nowMs()
    this.#dueMs = endMs + restMs(endMs - startMs, PACE)
  }

  async noticesAbout(): Promise<readonly string[]> {
    return []
  }
}
