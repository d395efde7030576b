import { expect } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { DEFAULT_LIMITS, type ForwarderLimits } from '../../src/modes/common/forwarder/context.ts'
import { UserspacePlane } from '../../src/modes/userspace/plane.ts'
import type { UserspaceState } from '../../src/modes/userspace/state.ts'
import { parseEndpoint } from './lab/address.ts'
import type { Lab, Outcome } from './lab/lab.ts'
import { loadDifferences } from './mode-differences.ts'
import { eventually } from './patience.ts'
import { change, commitAll, computeIn, openClient } from './pipeline.ts'
import type { MoreOfSteps } from './play-scenario.ts'
import { LOCAL_IPS, type PacketRow, type Scenario } from './scenario.ts'
import { expectedLine, flowInTurns, type Labels, seenLine } from './scenario-outcome.ts'
import { inUserspace, USERSPACE, userspaceOptionsOf } from './userspace-mode.ts'

/** The event loop has had its turn often enough for a datagram to go through the relay. */
async function relayed(): Promise<void> {
  for (let turns = 0; turns < 10; turns++) await new Promise(resolve => setTimeout(resolve, 2))
}

/**
 * The relay accepts TCP connections itself, so that a first packet alone reaches nobody: rows that lead to endpoints are
 * played with whole connections. All other rows are packets, as in every mode.
 */
function isConnection({ protocol, expected }: PacketRow): boolean {
  return protocol === 'TCP' && expected.verdict === 'DNAT'
}

/** Answers find the way back to those alone who are where their addresses are. */
function canBeAnswered({ from, source }: PacketRow): boolean {
  const isPod = /^(10\.|fd00:10:)/.test(source)
  return from === 'node' || isPod === (from === 'pod')
}

const RATE = 250
/** All endpoints answer, on a busy machine later than the 250 ms after which a client is sent to another one. */
const PATIENT: ForwarderLimits = { ...DEFAULT_LIMITS, connectTimeoutsMs: [60_000] }

/** The laboratory sees what this node sends to itself: a connection on its way to a listener has not arrived. */
function beyondRelay(outcome: Outcome, { expected }: PacketRow): Outcome {
  const isEnd = (endpoint: string) =>
    !LOCAL_IPS.includes(parseEndpoint(endpoint).address) ||
    (expected.verdict === 'DNAT' && expected.endpoints.includes(endpoint))
  const sourcesAt = new Map([...outcome.sourcesAt].filter(([endpoint]) => isEnd(endpoint)))
  const sources = new Set([...sourcesAt.values()].flatMap(one => [...one]))
  // A socket leaves the checksum of what it sends to the device, and veth leaves it open.
  return { ...outcome, sourcesAt, sources, badChecksums: 0 }
}

async function connections(
  lab: Lab,
  row: PacketRow,
): Promise<{ readonly endpoints: readonly string[]; readonly failed: number }> {
  const { from, source, destination, port } = row
  const client = lab.client({ from, source, destination, port, rate: RATE })
  const wanted = flowInTurns(row).tries ?? 0
  const isAnswered = async () => {
    const { ok, refused } = await client.report()
    return ok >= wanted || refused > 0
  }
  await eventually(isAnswered, { stepMs: 20, describe: () => row.text })
  const { endpoints, refused, timeouts, other } = await client.stop()
  return { endpoints: [...endpoints.keys()].sort(), failed: refused + timeouts + other }
}

async function playConnections(lab: Lab, rows: readonly PacketRow[], labels: Labels): Promise<void> {
  for (const row of rows) {
    const { endpoints, failed } = await connections(lab, row)
    expect(failed, row.text).toBe(0)
    if (row.expected.verdict !== 'DNAT') continue
    const { sticky, endpoints: possible } = row.expected
    if (sticky === undefined) expect(endpoints, row.text).toEqual(possible)
    else {
      const meant = labels.get(sticky) ?? endpoints[0] ?? ''
      labels.set(sticky, meant)
      expect(endpoints, `${row.text}: ${sticky}`).toEqual([meant])
      expect(possible, row.text).toContain(meant)
    }
  }
}

function endpointsOf({ steps }: Scenario): readonly string[] {
  const rows = steps.flatMap(({ rows }) => rows.filter(isConnection))
  return [...new Set(rows.flatMap(({ expected }) => (expected.verdict === 'DNAT' ? expected.endpoints : [])))]
}

/** Plays a scenario in userspace mode in the lab, and leaves nothing behind. */
export async function playInUserspace(scenario: Scenario, lab: Lab, more?: MoreOfSteps): Promise<void> {
  const client = openClient()
  const options = { ...userspaceOptionsOf(scenario.config), limits: PATIENT }
  const plane = new UserspacePlane({ client, clock: systemClock, options })
  plane.startForwarding()
  const endpoints = endpointsOf(scenario)
  const servers = endpoints.length > 0 ? await lab.servers(endpoints) : undefined
  try {
    await plane.cleanup()
    await play(inUserspace(scenario, loadDifferences('userspace')), { lab, plane, more })
  } finally {
    await servers?.close()
    await plane.cleanup()
    plane.destroy()
    await client.close()
  }
}

interface Playing {
  readonly lab: Lab
  readonly plane: UserspacePlane
  readonly more: MoreOfSteps | undefined
}

async function play(scenario: Scenario, { lab, plane, more }: Playing): Promise<void> {
  let held: UserspaceState = plane.empty
  let computed = computeIn(USERSPACE, scenario.config, LOCAL_IPS)
  const labels: Labels = more?.labels ?? new Map()
  for (const [index, step] of scenario.steps.entries()) {
    computed = change(computed, step)
    held = await commitAll(plane, held, computed.state)
    await more?.committed(index, computed)
    const packets = step.rows.filter(row => !isConnection(row))
    const outcomes = await lab.trace(packets.map(flowInTurns), { settled: relayed })
    const seen = packets.map((row, index) => {
      const outcome = outcomes[index]
      return outcome === undefined ? '' : seenLine(row, beyondRelay(outcome, row), labels)
    })
    expect(seen, step.title).toEqual(packets.map(expectedLine))
    await playConnections(
      lab,
      step.rows.filter(row => isConnection(row) && canBeAnswered(row)),
      labels,
    )
  }
}
