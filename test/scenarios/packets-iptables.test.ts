import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { assert } from '../../src/base/errors.ts'
import { formatIp } from '../../src/base/ip.ts'
import type { IptablesState } from '../../src/modes/iptables/state.ts'
import { type DynamicElements, RECENT_ENTRIES_MAX } from '../../src/proof/evaluate/single.ts'
import type { TracePacket } from '../../src/proof/evaluate/trace.ts'
import { foreignLines, savedLines, writeForeignRules } from '../support/foreign-rules.ts'
import { openIptablesPlane } from '../support/iptables-plane.ts'
import { Lab } from '../support/lab/lab.ts'
import { PROTOCOL_NUMBER } from '../support/lab/probe.ts'
import { loadDifferences, withDifferences } from '../support/mode-differences.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { change, commitAll, computeIn, IPTABLES, IPTABLES_OPTIMIZED, ip } from '../support/pipeline.ts'
import { playSteps } from '../support/play-scenario.ts'
import { LOCAL_IPS, loadScenarios, type Scenario } from '../support/scenario.ts'
import { createIptablesTracer } from '../support/tracers.ts'

/* Every scenario of this folder with real packets through chains of iptables, among those of other agents. */

let lab: Lab
let foreign: readonly string[]

beforeAll(async () => {
  lab = await Lab.start({ alsoLocal: ['192.168.99.22'] })
  // The daemon's part: it makes NodePorts at 127.0.0.1 possible.
  writeFileSync('/proc/sys/net/ipv4/conf/all/route_localnet', '1')
  writeForeignRules()
  foreign = foreignLines()
})

afterAll(async () => {
  await lab.close()
})

async function play(scenario: Scenario): Promise<void> {
  const { client, plane } = openIptablesPlane(scenario.config)
  try {
    await plane.cleanup()
    expect(savedLines(), 'before and between scenarios').toEqual(foreign)
    // Some of it is kubelet's as much as ours.
    const { state: before } = await plane.observe()
    await playSteps(scenario, { mode: IPTABLES, plane, before, lab })
    expect(foreignLines(), 'beside our chains').toEqual(foreign)
  } finally {
    await client.close()
  }
}

/** From what the scenario before left, as a daemon that starts again with other Services. */
async function playOptimized(scenario: Scenario): Promise<void> {
  const { client, plane } = openIptablesPlane(scenario.config, { optimize: true })
  try {
    const { state: before } = await plane.observe()
    await playSteps(scenario, { mode: IPTABLES_OPTIMIZED, plane, before, lab })
    expect(foreignLines(), 'beside our chains').toEqual(foreign)
  } finally {
    await client.close()
  }
}

const differences = loadDifferences('iptables')
const scenarios = loadScenarios().map(
  scenario => [`${scenario.file}: ${scenario.name}`, withDifferences(scenario, differences)] as const,
)

describe('in the chains of kube-proxy', () => {
  test.each(scenarios)('real packets end where they should: %s', (_, scenario) => play(scenario))
})

describe('with --iptables-optimize', () => {
  test.each(scenarios)('real packets end where they should: %s', (_, scenario) => playOptimized(scenario))
})

describe('session affinity', () => {
  const clients = Array.from({ length: RECENT_ENTRIES_MAX + 20 }, (_, index) => `203.0.113.${index + 1}`)
  const objects = [
    serviceOf('web', '172.30.0.41', { sessionAffinity: 'ClientIP' }),
    sliceOf('web', ['10.180.0.1'], { ports: [{ name: 'http', port: 80, protocol: 'TCP' }] }),
  ]

  /** By the kernel: clients in its only list, which says nothing of their order. */
  function remembered(): readonly string[] {
    const folder = '/proc/thread-self/net/xt_recent'
    return readdirSync(folder)
      .flatMap(list => readFileSync(`${folder}/${list}`, 'utf8').match(/(?<=^src=)\S+/gm) ?? [])
      .sort()
  }

  function traced(state: IptablesState): readonly string[] {
    assert(state.kind === 'rendered', 'nothing was rendered')
    const tracer = createIptablesTracer(state)
    let dynamic: DynamicElements = new Map()
    for (const client of clients) {
      const packet: TracePacket = {
        origin: 'interface',
        protocol: PROTOCOL_NUMBER.TCP,
        source: ip(client),
        sourcePort: 40_000,
        destination: ip('172.30.0.41'),
        destinationPort: 80,
      }
      dynamic = tracer.trace(packet, { localIps: new Set(), random: () => 0, dynamic }).dynamic
    }
    return [...dynamic.values()].flatMap(list => [...list.keys()].map(formatIp)).sort()
  }

  test('forgets who was not seen for longest, a hundred clients on, as the tracer says', async () => {
    const { client, plane } = openIptablesPlane({})
    try {
      await plane.cleanup()
      const { state: before } = await plane.observe()
      const { state } = change(computeIn(IPTABLES, {}, LOCAL_IPS), { objects })
      await commitAll(plane, before, state)
      const flows = clients.map(source => {
        return {
          from: 'outside',
          source,
          protocol: 'TCP',
          destination: '172.30.0.41',
          port: 80,
          tries: 1,
        } as const
      })
      const outcomes = await lab.trace(flows)
      expect(outcomes.map(({ verdict }) => verdict)).toEqual(clients.map(() => 'DNAT'))
      expect(remembered()).toEqual(traced(state))
      expect(remembered()).toEqual(clients.slice(-RECENT_ENTRIES_MAX).sort())
    } finally {
      await client.close()
    }
  })
})
