import { expect, it } from 'vitest'
import { logCrowd } from '../../../src/daemon/servers.ts'
import { recordedLog } from '../../support/recorded-log.ts'

it.each([
  [{ evicted: 3, refused: 0 }, 'closed the longest idle ones of the largest client'],
  [{ evicted: 0, refused: 2 }, 'refused new ones because the others are busy'],
  [
    { evicted: 3, refused: 2 },
    'closed the longest idle ones of the largest client; refused new ones because the others are busy',
  ],
])('F132: the log says whether connections were closed or refused: %j', (outcome, words) => {
  const { log, lines } = recordedLog()
  logCrowd(log, 'api', { client: 'loopback', service: undefined, full: 'all', ...outcome })
  expect(lines[0]).toMatchObject({
    msg: `api: too many connections; ${words}`,
    client: 'loopback',
    ...outcome,
  })
})
