import { type Steps, SYNC_SHARE } from '../../src/base/clock.ts'
import type { FrontendTable } from '../../src/model/frontend.ts'
import type { Resolved } from '../../src/model/resolve.ts'
import { generationOf } from '../../src/reconcile/dataplane.ts'
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

interface Given {
  readonly resyncPeriodMs?: number
  readonly minIntervalMs?: number
  readonly doubts?: (held: FakePlane['kernel'], wanted: FakePlane['kernel']) => Promise<boolean>
}

export function bench(
  plane = new FakePlane(),
  { resyncPeriodMs = 600_000, minIntervalMs = 20, ...given }: Given = {},
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
    share: SYNC_SHARE,
    resyncPeriodMs,
    driftPollMs: 250,
    ...given,
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

/** The bench once its first state is in the kernel. */
export async function running(made: Bench): Promise<Bench> {
  made.offer({ a: '1' })
  await made.clock.advance(100)
  return made
}

/** Another program commits three times, which makes the reconciler subscribe. */
export async function disturb(
  { clock, plane }: Pick<Bench, 'clock' | 'plane'>,
  left: () => FakePlane['kernel'],
): Promise<void> {
  for (let time = 0; time < 3; time++) {
    plane.tamper(left())
    await clock.advance(300)
  }
}

/** The notification of the newest commit, as one by nft with the process ID 7. */
export function announce(plane: FakePlane, { touchesUs }: { readonly touchesUs: boolean }): void {
  const generation = generationOf(plane.generationNow)
  plane.writers?.({ generation, processId: 7, processName: 'nft', own: false, touchesUs })
}
