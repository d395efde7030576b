import { execFileSync } from 'node:child_process'
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest'
import { Lab } from '../support/lab/lab.ts'

const RULES = `
table ip oracle {
  chain rules {
    ip daddr 172.30.0.1 tcp dport 80 dnat to numgen inc mod 2 map { 0 : 10.0.1.1 . 8080, 1 : 10.0.1.2 . 8081 }
    ip daddr 172.30.0.3 reject
  }
  chain pre { type nat hook prerouting priority -100; jump rules; }
  chain out { type nat hook output priority -100; jump rules; }
}
table ip6 oracle {
  chain rules { ip6 daddr fd00:172::1 tcp dport 80 dnat to [fd00:10::1:1]:8080; }
  chain pre { type nat hook prerouting priority -100; jump rules; }
  chain out { type nat hook output priority -100; jump rules; }
}
`

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start()
  execFileSync('nft', ['-f', '-'], { input: RULES })
})

afterAll(async () => {
  await lab.close()
})

test.each([
  ['outside', '203.0.113.5'],
  ['node', '192.168.0.2'],
] as const)(
  'connections from %s are answered by the endpoints, and the failed are counted',
  async (from, source) => {
    const servers = await lab.servers(['10.0.1.1:8080', '10.0.1.2:8081'])
    onTestFinished(() => servers.close())
    const repeated = lab.repeatedSyns()
    const good = lab.client({ from, source, destination: '172.30.0.1', port: 80, rate: 500 })
    await expect.poll(async () => (await good.report()).ok).toBeGreaterThan(20)
    const report = await good.stop()
    expect(report).toMatchObject({ refused: 0, timeouts: 0, other: 0 })
    expect([...report.endpoints.keys()].sort()).toEqual(['10.0.1.1:8080', '10.0.1.2:8081'])
    expect([...report.endpoints.values()].reduce((sum, n) => sum + n, 0)).toBe(report.ok)
    expect(lab.repeatedSyns()).toBe(repeated)
    const bad = lab.client({ from, source, destination: '172.30.0.3', port: 80, rate: 50 })
    await expect.poll(async () => (await bad.report()).refused).toBeGreaterThan(3)
    expect(await bad.stop()).toMatchObject({ ok: 0, other: 0 })
  },
)
