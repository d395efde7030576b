import type { EventWrite } from '../../../src/telemetry/event.ts'
import { EventRecorder, type PostResult } from '../../../src/telemetry/events.ts'
import { FakeClock } from '../../support/fake-clock.ts'

export const START_MS = Date.parse('2026-11-21T10:00:00.000Z')

/** A recorder, and an API server that answers as told; `taken` when not told. */
export function recorder() {
  const clock = new FakeClock()
  const writes: EventWrite[] = []
  const answers: PostResult[] = []
  const lost: string[] = []
  const uids = new Map<string, string>()
  const events = new EventRecorder({
    clock,
    wallMs: () => START_MS + clock.nowMs(),
    random: () => 0,
    nodeName: 'node-1',
    uidOf: service => uids.get(service) ?? '',
    post: write => {
      writes.push(write)
      return Promise.resolve(answers.shift() ?? 'taken')
    },
    lost: (why, regarding, reason) => lost.push(`${why}: ${regarding} ${reason}`),
  })
  return { clock, writes, answers, lost, uids, events }
}
