import type { Config } from '../config/config.ts'
import { type RefusedCount, readRefused } from '../modes/refused.ts'
import { Connection } from '../netlink/connection.ts'
import type { DaemonIo } from './io.ts'

type RefusedIo = Pick<DaemonIo, 'clock' | 'log' | 'openTransport'>

/** The packets that the rules had refused at one time. */
interface Totals {
  readonly atMs: number
  readonly rejected: number
  readonly dropped: number
}

/** Readings within the first time are one, so that twelve are kept at most; a rate is of the second time at least. */
const [STEP_MS, MINUTE_MS, KEPT_MS] = [10_000, 55_000, 120_000]

/** Reads what kprobe's rules refused, when the metrics are scraped, and remembers the totals of the last two minutes. */
export class RefusedPackets {
  readonly #io: RefusedIo
  readonly #config: Pick<Config, 'backend' | 'serviceProxyName'>
  #kept: readonly Totals[] = []

  constructor(config: Pick<Config, 'backend' | 'serviceProxyName'>, io: RefusedIo) {
    this.#config = config
    this.#io = io
  }

  /** Finds nothing while the kernel cannot be read. */
  async read(): Promise<readonly RefusedCount[]> {
    const { clock, log, openTransport } = this.#io
    if (this.#config.backend !== 'netlink') return []
    let connection: Connection | undefined
    try {
      connection = new Connection({ transport: openTransport(), clock })
      const counts = await readRefused({ connection, clock }, this.#config.serviceProxyName)
      this.#keep(counts)
      return counts
    } catch (err) {
      log.debug({ err }, 'cannot read the counters of rejected and dropped packets')
      return []
    } finally {
      await connection?.close()
    }
  }

  /** Gives the totals of a minute ago, and how old they are; undefined where nothing was read then. */
  get before() {
    const nowMs = this.#io.clock.nowMs()
    const found = this.#kept.findLast(({ atMs }) => nowMs - atMs >= MINUTE_MS && nowMs - atMs <= KEPT_MS)
    return found && { rejected: found.rejected, dropped: found.dropped, ageMs: nowMs - found.atMs }
  }

  #keep(counts: readonly RefusedCount[]): void {
    const atMs = this.#io.clock.nowMs()
    if (atMs - (this.#kept.at(-1)?.atMs ?? -STEP_MS) < STEP_MS) return
    const sumOf = (its: RefusedCount['verdict']) =>
      counts.reduce((sum, { verdict, packets }) => sum + (verdict === its ? packets : 0), 0)
    const totals = { atMs, rejected: sumOf('reject'), dropped: sumOf('drop') }
    this.#kept = [...this.#kept.filter(each => atMs - each.atMs <= KEPT_MS), totals]
  }
}
