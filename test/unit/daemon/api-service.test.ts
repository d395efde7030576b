import { expect, it } from 'vitest'
import type { ResolvedView } from '../../../src/api/next-state.ts'
import { systemClock } from '../../../src/base/clock.ts'
import { PersistentMap } from '../../../src/base/collections.ts'
import { ApiPublisher } from '../../../src/daemon/api-service.ts'
import { EMPTY_SNAPSHOT } from '../../../src/model/snapshot.ts'

it('publishes what was offered while the one before failed', async () => {
  const errors: unknown[] = []
  const publisher = new ApiPublisher({
    clock: systemClock,
    source: () => undefined,
    failed: error => errors.push(error),
  })
  const table = { services: PersistentMap.empty() }
  const good = { snapshot: EMPTY_SNAPSHOT, table } as ResolvedView
  publisher.offer({ ...good, table: {} } as ResolvedView)
  publisher.offer(good)
  await publisher.settled()
  expect(errors).toHaveLength(1)
  expect(publisher.feed.current?.number).toBe(1)
})
