import { expect, it } from 'vitest'
import { ApiPublisher } from '../../../src/api/api-service.ts'
import type { ResolvedView } from '../../../src/api/next-state.ts'
import { systemClock } from '../../../src/base/clock.ts'
import { PersistentMap } from '../../../src/base/collections.ts'
import { createLog } from '../../../src/base/log.ts'
import { EMPTY_SNAPSHOT } from '../../../src/model/snapshot.ts'

it('publishes what was offered while the one before failed', async () => {
  const logged: string[] = []
  const publisher = new ApiPublisher({
    clock: systemClock,
    log: createLog({ format: 'text', verbosity: 0, destination: { write: line => void logged.push(line) } }),
    source: () => undefined,
  })
  const table = { services: PersistentMap.empty() }
  const good = { snapshot: EMPTY_SNAPSHOT, table } as ResolvedView
  publisher.offer({ ...good, table: {} } as ResolvedView)
  publisher.offer(good)
  await publisher.settled()
  expect(logged).toEqual([expect.stringContaining('cannot compute the API state; keeping the last one')])
  expect(publisher.feed.current?.number).toBe(1)
})
