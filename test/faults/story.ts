import { FakeClock } from '../support/fake-clock.ts'
import { FakeKernel } from '../support/fake-kernel/kernel.ts'
import { FaultyTransport, type TransportFaults } from '../support/faulty-transport.ts'
import { Rig } from '../support/rig.ts'
import { differences } from './kernel.ts'
import { services } from './objects.ts'

export interface Story {
  readonly rig: Rig
  readonly kernel: FakeKernel
  /** What the kernel lacks at the end of what it was to hold. */
  readonly differences: readonly string[]
}

/** More than 500 elements, so that they go by the thread pool. */
const MANY = services(130)
/** Longer than a conversation may take, and the resync period. */
const PATIENCE_MS = 60_000

/**
 * A life of the daemon's parts in simulated time, on a kernel in memory that holds something older: a start that adopts
 * it, an edit, damage that is repaired, and a large edit. `faults` are of its socket.
 */
export async function tell(faults: TransportFaults): Promise<Story> {
  const clock = new FakeClock()
  const kernel = new FakeKernel({ nowMs: () => clock.nowMs() })
  const earlier = new Rig({ transport: kernel.open(), clock })
  await earlier.sync(services(2), PATIENCE_MS)
  await earlier.close()
  const rig = new Rig({ transport: new FaultyTransport(kernel.open(), faults), clock })
  await rig.sync(services(3), PATIENCE_MS)
  await rig.sync(services(2), PATIENCE_MS)
  await damage(kernel, clock)
  await rig.wait(500)
  await rig.sync(MANY, PATIENCE_MS)
  await rig.wait(500)
  // Whatever was lost in the meantime is found by the full resync at the latest.
  if (rig.of('failed').length > 0) await rig.wait(31_000)
  await rig.close()
  return { rig, kernel, differences: await differences(MANY, {}, kernel.open()) }
}

/** Somebody removes one of two Services. */
async function damage(kernel: FakeKernel, clock: FakeClock): Promise<void> {
  const vandal = new Rig({ transport: kernel.open(), clock })
  await vandal.sync(services(1), PATIENCE_MS)
  await vandal.close()
}
