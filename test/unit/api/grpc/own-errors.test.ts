import { expect, it } from 'vitest'
import { apiRig } from '../../../support/api/rig.ts'
import { EMPTY, feedOf, nextState, serviceObject } from '../../../support/api/states.ts'
import { statusOf, WatchClient } from '../../../support/api/watch-client.ts'
import { eventually } from '../../../support/patience.ts'

it('an error of ours in telling a change ends the calls that it meets, and the next state is served', async () => {
  const feed = feedOf(EMPTY)
  const rig = await apiRig(feed)
  try {
    const client = new WatchClient(rig.client())
    await client.ask()
    const status = statusOf(client.stream)
    void client.ask()
    await eventually(() => rig.server.counts().waiting === 1, 'it waits')
    const object = serviceObject('default/a', 80)
    const broken = nextState(EMPTY, { services: [['default/a', { ...object, memory: undefined } as never]] })
    feed.offer(broken)
    expect(await status).toMatchObject({ code: 13 })
    expect(rig.errors).toHaveLength(1)
    feed.offer(nextState(broken, { services: [['default/a', object]] }))
    const next = new WatchClient(rig.client())
    await next.ask()
    expect(next.store.services.size).toBe(1)
  } finally {
    await rig.end()
  }
})
