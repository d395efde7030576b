import { expect, it } from 'vitest'
import {
  type ForwarderCounts,
  forwarderMetrics,
} from '../../../../../src/modes/common/forwarder/forwarder-set.ts'
import { createMetrics } from '../../../../support/metrics.ts'

it('says what userspace mode relays, and nothing of it in another mode', async () => {
  let numbers: ForwarderCounts | undefined
  const metrics = createMetrics({
    ofMode: () => Promise.resolve(numbers === undefined ? {} : forwarderMetrics(numbers)),
  })
  const values = async () =>
    (await metrics.text()).split('\n').filter(line => line.startsWith('kprobe_relay_'))
  expect(await values()).toEqual([])
  numbers = { listeners: 3, tcp: { held: 2, refused: 7 }, udp: { held: 1, refused: 5 }, loops: 4 }
  const lines = await values()
  expect(lines.toSorted()).toEqual([
    'kprobe_relay_connections{protocol="TCP"} 2',
    'kprobe_relay_connections{protocol="UDP"} 1',
    'kprobe_relay_listeners 3',
    'kprobe_relay_loops_total 4',
    'kprobe_relay_refused_total{protocol="TCP"} 7',
    'kprobe_relay_refused_total{protocol="UDP"} 5',
  ])
  expect(await values()).toEqual(lines)
  numbers = undefined
  expect(await values()).toEqual([])
})
