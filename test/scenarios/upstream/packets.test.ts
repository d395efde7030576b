import { readFileSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openIptablesPlane } from '../../support/iptables-plane.ts'
import { Lab } from '../../support/lab/lab.ts'
import { IPTABLES, NFTABLES, openPlane } from '../../support/pipeline.ts'
import { type MoreOfSteps, playSteps } from '../../support/play-scenario.ts'
import { playUpstream } from '../../support/play-upstream.ts'
import { playInUserspace } from '../../support/play-userspace.ts'
import type { Scenario } from '../../support/scenario.ts'
import { UPSTREAM_SERVICES } from './services.ts'

/* Upstream's tests of Services with real packets; in IPVS mode: test/vm/upstream-ipvs.test.ts. */

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start()
  writeFileSync('/proc/sys/net/ipv4/conf/all/route_localnet', '1')
})

afterAll(async () => {
  await lab.close()
})

const MODES: Readonly<Record<string, (scenario: Scenario, more: MoreOfSteps) => Promise<void>>> = {
  nftables: async (scenario, more) => {
    const { client, plane } = openPlane(scenario.config)
    try {
      await plane.cleanup()
      await playSteps(scenario, { mode: NFTABLES, plane, lab, more })
    } finally {
      await plane.cleanup()
      await client.close()
    }
  },
  iptables: async (scenario, more) => {
    const { client, plane } = openIptablesPlane(scenario.config)
    try {
      await plane.cleanup()
      const { state: before } = await plane.observe()
      await playSteps(scenario, { mode: IPTABLES, plane, before, lab, more })
    } finally {
      await plane.cleanup()
      await client.close()
    }
  },
  userspace: (scenario, more) => playInUserspace(scenario, lab, more),
}

test('the table has each test of the set, and a reason for each that is not played', () => {
  const baseline = new URL('../../cluster/baseline/kube-proxy-nftables-services.json', import.meta.url)
  const { tests }: { tests: object } = JSON.parse(readFileSync(baseline, 'utf8'))
  const titles = UPSTREAM_SERVICES.map(({ title }) => `[sig-network] Services ${title}`)
  expect(titles.toSorted()).toEqual(Object.keys(tests).toSorted())
  for (const { title, steps, unplayed } of UPSTREAM_SERVICES)
    expect(steps.length > 0, title).toBe(unplayed === undefined)
})

describe.each(Object.entries(MODES))('in %s mode', (name, play) => {
  const played = UPSTREAM_SERVICES.filter(
    ({ unplayed, notInUserspace }) =>
      unplayed === undefined && (name !== 'userspace' || notInUserspace === undefined),
  )
  test.each(played.map(its => [its.title, its] as const))('%s', (_, its) => playUpstream(its, { lab, play }))
})
