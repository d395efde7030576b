import { setTimeout as sleep } from 'node:timers/promises'
import { expect } from 'vitest'
import type { Lab } from '../support/lab/lab.ts'
import type { TrafficClient, TrafficReport } from '../support/lab/traffic.ts'
import { patientMs } from '../support/patience.ts'
import { LastingConnection, type LastingReport, LEAST_SENT } from './lasting-connection.ts'

/** Of the one Service, both addresses on port 80. */
export const VIP = '172.30.0.11'
export const VIP6 = 'fd00:172:30::11'
export const NODE_ADDRESS = '192.168.0.2'
export const NODE_PORT = 30_080

/** How long clients work on between two steps. */
const PHASE_MS = 500
/** A SYN is repeated after a second (TCP_TIMEOUT_INIT); a machine that is twice as slow as an idle one may hold one back so long. */
const REPEATED_MS = 1_000
const BUSY_MS = 2 * REPEATED_MS
/** Of thousands; rules that are gone for 20 ms lose more. */
const REPEATED_WHEN_BUSY = 4

/** Clients of every kind, from before the first step to after the last; all of them are to be stopped. */
export class Clients {
  readonly #traffic: readonly TrafficClient[]
  readonly #lasting: readonly LastingConnection[]
  readonly #lab: Lab
  readonly #repeatedBefore: number
  #slowestMs = 0
  #stopped: Promise<Stopped> | undefined

  /** Resolves when all of them have work. */
  static async start(lab: Lab): Promise<Clients> {
    const clients = new Clients(lab)
    await Promise.all(clients.#lasting.map(connection => connection.connected))
    return clients
  }

  private constructor(lab: Lab) {
    this.#lab = lab
    this.#repeatedBefore = lab.repeatedSyns()
    const outside = { from: 'outside', source: '203.0.113.5' } as const
    this.#traffic = [
      lab.client({ ...outside, destination: VIP, port: 80, rate: 150 }),
      lab.client({ ...outside, destination: NODE_ADDRESS, port: NODE_PORT, rate: 50 }),
      lab.client({ from: 'outside', source: '2001:db8:5::5', destination: VIP6, port: 80, rate: 50 }),
      lab.client({ from: 'node', source: NODE_ADDRESS, destination: VIP, port: 80, rate: 50 }),
    ]
    this.#lasting = [
      new LastingConnection({ host: VIP, port: 80 }),
      new LastingConnection({ host: VIP6, port: 80 }),
      new LastingConnection({ pid: lab.topology.outside.pid, host: VIP, port: 80 }),
      new LastingConnection({ pid: lab.topology.outside.pid, host: NODE_ADDRESS, port: NODE_PORT }),
    ]
  }

  /** A while with nothing but traffic; longer on a machine that is too busy to make some. */
  async work(): Promise<void> {
    await Promise.all([sleep(PHASE_MS), ...this.#lasting.map(({ atWork }) => atWork)])
    this.#slowestMs = Math.max(this.#slowestMs, patientMs(REPEATED_MS))
  }

  /** Every request since the start was answered, without a lost SYN, and no connection broke. */
  async expectNothingNoticed(): Promise<void> {
    await this.expectNoFailure()
    const { repeatedSyns } = await this.stop()
    expect(repeatedSyns).toBeLessThanOrEqual(this.#slowestMs > BUSY_MS ? REPEATED_WHEN_BUSY : 0)
  }

  /** Every request since the start was answered, some perhaps at the second try, and no connection broke. */
  async expectNoFailure(): Promise<void> {
    const { reports, lasting } = await this.stop()
    for (const report of reports) {
      expect(report).toMatchObject({ refused: 0, timeouts: 0, other: 0 })
      expect(report.ok).toBeGreaterThan(50)
    }
    expectUnbroken(lasting)
  }

  /** Ends them all, once, and tells how it went. */
  stop(): Promise<Stopped> {
    this.#stopped ??= this.#stop()
    return this.#stopped
  }

  async #stop(): Promise<Stopped> {
    const lasting = await Promise.all(this.#lasting.map(connection => connection.stop()))
    const reports = await Promise.all(this.#traffic.map(client => client.stop()))
    return { lasting, reports, repeatedSyns: this.#lab.repeatedSyns() - this.#repeatedBefore }
  }
}

export interface Stopped {
  readonly lasting: readonly LastingReport[]
  readonly reports: readonly TrafficReport[]
  readonly repeatedSyns: number
}

function expectUnbroken(lasting: readonly LastingReport[]): void {
  for (const { sent, echoed, broken } of lasting) {
    expect(broken).toBe('')
    expect(sent).toBeGreaterThanOrEqual(LEAST_SENT)
    expect(echoed).toBe(sent)
  }
}

/** What clients noticed of a window, in words. */
export function windowText({ reports, lasting, repeatedSyns }: Stopped): string {
  const sum = (of: (report: TrafficReport) => number) =>
    reports.reduce((total, report) => total + of(report), 0)
  const broken = lasting.filter(each => each.broken !== '').length
  return (
    `${sum(report => report.ok)} requests answered, ${sum(report => report.refused)} refused, ` +
    `${sum(report => report.timeouts)} timed out, ${repeatedSyns} SYNs repeated; ` +
    `${broken} of ${lasting.length} lasting connections broke`
  )
}
