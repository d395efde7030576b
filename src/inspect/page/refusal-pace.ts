import type { Clock } from '../../base/clock.ts'
import { clientName } from '../../base/shares.ts'
import type { Handler } from '../../http/connections.ts'
import { TokenBucket } from '../../telemetry/events.ts'

export class ClientBudgets {
  readonly #open: () => TokenBucket
  readonly #budgets = new Map<string, TokenBucket>()

  constructor(clock: Clock, options: { readonly size: number; readonly refillMs: number }) {
    this.#open = () => new TokenBucket({ ...options, nowMs: () => clock.nowMs() })
  }

  of(client: string | undefined): TokenBucket {
    const name = clientName(client)
    const known = this.#budgets.get(name)
    if (known !== undefined) return known
    const [oldest] = this.#budgets.keys()
    // More clients than connections; the oldest is forgotten.
    if (this.#budgets.size >= 64 && oldest !== undefined) this.#budgets.delete(oldest)
    const budget = this.#open()
    this.#budgets.set(name, budget)
    return budget
  }
}

/** Refusals that a client gets at once. Others come after DELAY_MS, so that a flood of refused requests costs little. */
const REFUSALS = { size: 20, refillMs: 200 } as const
const DELAY_MS = 1_000

export function slowedRefusals(clock: Clock): (handle: Handler) => Handler {
  const budgets = new ClientBudgets(clock, REFUSALS)
  return handle => async request => {
    const answer = await handle(request)
    if (answer.status >= 400 && !budgets.of(request.client).take())
      await new Promise<void>(resolve => clock.after(DELAY_MS, resolve))
    return answer
  }
}
