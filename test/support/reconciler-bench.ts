import type { Steps } from '../../src/base/clock.ts'
import type { FrontendTable } from '../../src/model/frontend.ts'
import type { Resolved } from '../../src/model/resolve.ts'
import type { ReconcilerEvent } from '../../src/reconcile/pass.ts'
import { Reconciler } from '../../src/reconcile/reconciler.ts'
import { FakeClock } from './fake-clock.ts'
import { FakePlane } from './fake-plane.ts'
import { NO_MEMO, snapshotOf, tableOf } from './tables.ts'

/** A reconciler over a plane and a clock of the test's own. */
export interface Bench {
  readonly clock: FakeClock
  readonly plane: FakePlane
  readonly events: ReconcilerEvent[]
  readonly reconciler: Reconciler<ReadonlyMap<string, string>, Awaited<FakePlane['commits'][number]>>
  offer(services: Readonly<Record<string, string>>): void
  kinds(): string[]
}

interface Periods {
  readonly healPeriodMs?: number
  readonly minIntervalMs?: number
}

export function bench(
  plane = new FakePlane(),
  { healPeriodMs = 600_000, minIntervalMs = 20 }: Periods = {},
): Bench {
  const clock = new FakeClock()
  const events: ReconcilerEvent[] = []
  const tables = new Map<number, FrontendTable>()
  let number = 0
  const reconciler = new Reconciler({
    plane,
    *resolve(_previous, snapshot): Steps<Resolved> {
      yield
      const table = tables.get(snapshot.number)
      if (table === undefined) throw new Error('no such table')
      return { snapshot, table, memo: NO_MEMO }
    },
    clock,
    random: () => 0.5,
    minIntervalMs,
    healPeriodMs,
    driftPollMs: 250,
    report: event => events.push(event),
  })
  return {
    clock,
    plane,
    events,
    reconciler,
    offer(services) {
      number++
      tables.set(number, tableOf(number, services))
      reconciler.offer(snapshotOf(number))
    },
    kinds: () => events.map(event => event.kind),
  }
}

/** The same with a plane that watches its generation. */
export function watchedBench(...[plane = new FakePlane(), ...rest]: Parameters<typeof bench>): Bench {
  const made = bench(plane, ...rest)
  plane.watchedBy = made.clock
  return made
}
