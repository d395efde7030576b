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

/** A rate covers about a minute or two, because scrapes may be early or late; six totals at most are that young. */
const [RATE_MIN_MS, RATE_MAX_MS, KEPT_EACH_MS] = [50_000, 125_000, 25_000]

/** Reads what kprobe's rules refused, when the metrics are scraped, and remembers totals for the rates. */
export class RefusedPackets {
  readonly #io: RefusedIo
  readonly #config: Pick<Config, 'backend' | 'serviceProxyName'>
  /** The newest first. */
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
      const counts = await readRefused(connection, this.#config.serviceProxyName)
      this.#keep(counts)
      return counts
    } catch (err) {
      log.debug({ err }, 'cannot read the counters of rejected and dropped packets')
      return []
    } finally {
      await connection?.close()
    }
  }

  /** Gives the totals of about one to two minutes ago, and how old they are; undefined where nothing was read then. */
  get before() {
    const nowMs = this.#io.clock.nowMs()
    const found = this.#kept.find(({ atMs }) => nowMs - atMs >= RATE_MIN_MS && nowMs - atMs <= RATE_MAX_MS)
    return found && { rejected: found.rejected, dropped: found.dropped, ageMs: nowMs - found.atMs }
  }

  #keep(counts: readonly RefusedCount[]): void {
    const atMs = this.#io.clock.nowMs()
    const [last] = this.#kept
    if (last !== undefined && atMs - last.atMs < KEPT_EACH_MS) return
    const sumOf = (its: RefusedCount['verdict']) =>
      counts.reduce((sum, { verdict, packets }) => sum + (verdict === its ? packets : 0), 0)
    const totals = { atMs, rejected: sumOf('reject'), dropped: sumOf('drop') }
    this.#kept = [totals, ...this.#kept.filter(kept => atMs - kept.atMs <= RATE_MAX_MS)]
  }
}
