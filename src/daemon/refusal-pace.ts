import type { Clock } from '../base/clock.ts'
import { clientName } from '../base/shares.ts'
import type { Handler } from '../http/connections.ts'
import { TokenBucket } from '../telemetry/events.ts'

interface Client {
  readonly budget: TokenBucket
  /** Requests that are not answered yet. */
  open: number
}

/** Refusals that a client gets at once; one more each 200 ms. Others come after DELAY_MS. */
const BUDGET = { size: 20, refillMs: 200 } as const
const DELAY_MS = 1_000
/** A client has fewer connections (sharesOf), and browsers send one request at a time on each. */
const OPEN_MAX = 16
const CLIENTS_MAX = 64
const HANG_UP = { status: 0, headers: {}, body: '', hangsUp: true } as const

/** Slows clients that get many refusals, so that a flood of refused requests costs little time. */
export class RefusalPace {
  readonly #clock: Clock
  readonly #clients = new Map<string, Client>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  slowed(handle: Handler): Handler {
    return async request => {
      const client = this.#clientOf(clientName(request.client))
      if (client.open >= OPEN_MAX) return HANG_UP
      client.open++
      try {
        const answer = await handle(request)
        if (answer.status >= 400 && !client.budget.take())
          await new Promise<void>(resolve => this.#clock.after(DELAY_MS, resolve))
        return answer
      } finally {
        client.open--
      }
    }
  }

  #clientOf(name: string): Client {
    const known = this.#clients.get(name)
    if (known !== undefined) return known
    const nowMs = () => this.#clock.nowMs()
    const client = { budget: new TokenBucket({ ...BUDGET, nowMs }), open: 0 }
    const [oldest] = this.#clients.keys()
    if (this.#clients.size >= CLIENTS_MAX && oldest !== undefined) this.#clients.delete(oldest)
    this.#clients.set(name, client)
    return client
  }
}
