import { once } from 'node:events'
import { createServer } from 'node:net'
import { expect } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { ServiceHealth } from '../../src/telemetry/service-health.ts'
import { forgotten } from '../scenarios/upstream/affinity.ts'
import { IP, NODE, type UpstreamStep, type UpstreamTest } from '../scenarios/upstream/parts.ts'
import type { Lab } from './lab/lab.ts'
import { eventually } from './patience.ts'
import type { MoreOfSteps } from './play-scenario.ts'
import { type Scenario, scenarioFrom } from './scenario.ts'

/** Gives the objects and packets of the test as a scenario. */
function scenarioOfUpstream({ title, steps }: UpstreamTest): Scenario {
  const [first, ...then] = steps.map(({ title, objects, remove, packets }) => {
    return { title, objects, remove, packets }
  })
  const { title: _, remove: __, ...start } = first ?? {}
  return scenarioFrom(title, { name: title, description: title, ...start, then })
}

export interface UpstreamOptions {
  readonly lab: Lab
  /** Plays the scenario in a mode, with what it has beside packets. */
  readonly play: (scenario: Scenario, more: MoreOfSteps) => Promise<void>
  /** Waits until the kernel, too, has forgotten clients whose time is over. */
  readonly settled?: () => Promise<void>
}

/** Plays one of upstream's tests, with its health checks and times. */
export async function playUpstream(
  test: UpstreamTest,
  { lab, play, settled }: UpstreamOptions,
): Promise<void> {
  const health = new ServiceHealth({
    clock: systemClock,
    healthy: () => true,
    listenersMax: 16,
    connectionsMax: 64,
    report: () => undefined,
  })
  const labels = new Map<string, string>()
  try {
    await play(scenarioOfUpstream(test), {
      labels,
      committed: async (index, { resolved }) => {
        health.update(resolved.table)
        const step = test.steps[index]
        if (step?.afterS !== undefined) {
          await new Promise(resolve => setTimeout(resolve, (step.afterS ?? 0) * 1_000))
          await settled?.()
        }
        await expectHealth(step)
        if (step?.hostPort !== undefined) await expectAtHostPort(lab, step.hostPort)
      },
    })
  } finally {
    health.close()
  }
  if (test.forgets === true) expect(forgotten(labels), 'clients whose endpoint was forgotten').not.toEqual([])
}

const CLIENT = '10.180.0.9'

/** The laboratory sees no packet that a pod sends to the node itself: a socket does. */
async function expectAtHostPort(lab: Lab, port: number): Promise<void> {
  const clients: (string | undefined)[] = []
  const server = createServer(socket => {
    clients.push(socket.remoteAddress)
    socket.on('error', () => undefined).end()
  })
  server.listen(port, NODE)
  await once(server, 'listening')
  const client = lab.client({ from: 'pod', source: CLIENT, destination: IP, port: 80, rate: 20 })
  try {
    await eventually(() => clients.length > 0, 'a connection at the port of the node')
    expect(new Set(clients)).toEqual(new Set([CLIENT]))
  } finally {
    await client.stop()
    server.close()
  }
}

async function expectHealth(step: UpstreamStep | undefined): Promise<void> {
  if (step?.health === undefined) return
  const [port, answer] = step.health
  let seen: unknown
  const isThere = async () => {
    seen = await answerAt(`http://${NODE}:${port}/`)
    return seen === answer
  }
  await eventually(isThere, { describe: () => `${step.title}: ${seen} instead of ${answer}` })
}

async function answerAt(url: string): Promise<number | string> {
  try {
    const { status } = await fetch(url, {
      headers: { connection: 'close' },
      signal: AbortSignal.timeout(3_000),
    })
    return status
  } catch (error) {
    return String(error instanceof Error && error.cause).includes('ECONNREFUSED') ? 'refused' : String(error)
  }
}
