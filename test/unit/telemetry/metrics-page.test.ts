import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { API } from '../../../src/api/metrics.ts'
import { leftoversMetric } from '../../../src/daemon/retirement.ts'
import { forwarderMetrics } from '../../../src/modes/common/forwarder/forwarder-set.ts'
import { balanceMetrics } from '../../../src/modes/nftables/metrics.ts'
import { RELAY } from '../../../src/relay/metrics.ts'
import { createMetrics } from '../../support/metrics.ts'

const PAGE = readFileSync(new URL('../../../docs/metrics.md', import.meta.url), 'utf8')

/** `name meaning` of all metrics of kprobe's own. */
async function ownMetrics(): Promise<readonly string[]> {
  const read = () => Promise.resolve([])
  const connections = { seriesMax: 1, read, nowMs: () => 0, failed: () => undefined }
  const text = await createMetrics({ connections }).text()
  const found = [...text.matchAll(/^# HELP (kprobe_\S+ .*)$/gm)]
  const relayed = forwarderMetrics({ listeners: 0, tcp: NONE, udp: NONE, loops: 0 })
  const others = [API, RELAY, relayed, leftoversMetric(undefined), balanceMetrics(BALANCED as never)].flatMap(
    table => Object.entries(table).map(([name, { help }]) => `${name} ${help}`),
  )
  return [...new Set([...found.map(([, line = '']) => line), ...others])]
}

const BALANCED = { frontends: { services: new Map([['', { ports: [{ balance: { policy: 'maglev' } }] }]]) } }
const NONE = { held: 0, refused: 0 }

it("docs/metrics.md lists kprobe's metrics with their meaning, all of them and no other", async () => {
  const rows = [...PAGE.matchAll(/^\| `(kprobe_\w+)` \|.*\| (.*) \|$/gm)].map(
    ([, name = '', meaning = '']) => `${name} ${meaning}`,
  )
  expect([...rows].sort()).toEqual([...(await ownMetrics())].sort())
})
