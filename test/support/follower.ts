import { isDeepStrictEqual } from 'node:util'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot, type SourceEvent } from '../../src/model/snapshot.ts'
import type { Source } from '../../src/source/source.ts'

/** What a source has told, and whether any of it was no news. */
export class Follower {
  snapshot: Snapshot = EMPTY_SNAPSHOT
  readonly source: Source
  /** Changes that changed nothing. */
  readonly spurious: string[] = []
  readonly problems: string[] = []
  changes = 0
  /** Why the source has listed: resource and reason. */
  readonly lists: string[] = []
  synced = 0

  constructor(source: Source) {
    this.source = source
  }

  async start(): Promise<this> {
    await this.source.start({
      events: async batch => this.#take(batch),
      synced: () => this.synced++,
      refusals: () => undefined,
      problem: ({ text }) => void this.problems.push(text),
      observed: news => {
        if (news.kind === 'listed') this.lists.push(`${news.resource} ${news.reason}`)
      },
    })
    return this
  }

  /** All that it knows, for comparison. */
  get known(): unknown {
    const { services, sliceByKey, serviceCidrs, node } = this.snapshot
    return {
      services: [...services.entries()].sort(byKey),
      slices: [...sliceByKey.entries()].sort(byKey),
      cidrs: [...serviceCidrs.entries()].sort(byKey),
      node,
    }
  }

  #take(batch: readonly SourceEvent[]): void {
    for (const event of batch) {
      this.changes++
      const before = this.#valueOf(event)
      if (event.kind !== 'LocalIps' && isDeepStrictEqual(before, event.value))
        this.spurious.push(`${event.kind} ${event.key}`)
      this.snapshot = applyEvents(this.snapshot, [event])
    }
  }

  #valueOf(event: SourceEvent): unknown {
    const { services, sliceByKey, serviceCidrs, node } = this.snapshot
    if (event.kind === 'Service') return services.get(event.key)
    if (event.kind === 'EndpointSlice') return sliceByKey.get(event.key)
    return event.kind === 'ServiceCIDR' ? serviceCidrs.get(event.key) : node
  }
}

function byKey(a: readonly [string, unknown], b: readonly [string, unknown]): number {
  return a[0] < b[0] ? -1 : 1
}
