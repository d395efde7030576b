import type { Clock } from '../base/clock.ts'
import type { Connection } from './connection.ts'
import type { Burst, BurstReplies } from './conversation.ts'
import { OutcomeUnknownError } from './errors.ts'
import { SystemError } from './transport.ts'

/** Failures of sendmsg that may pass: nothing was sent, so that sending again is safe. */
export const PASSING: ReadonlySet<string> = new Set(['EINTR', 'EAGAIN', 'ENOBUFS', 'ENOMEM'])
const SEND_ATTEMPTS = 4
const SEND_RETRY_DELAY_MS = 5

/**
 * Sends a burst, again where that may help. Gives the SystemError of a send that failed for good: then nothing was
 * sent. A deadline that passed is a loss.
 */
export async function patientBurst(
  { connection, clock }: { readonly connection: Connection; readonly clock: Clock },
  burst: Burst,
  options: { readonly pool: boolean; readonly object: string },
): Promise<BurstReplies | SystemError> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await connection.burst(burst, options)
    } catch (error) {
      if (error instanceof OutcomeUnknownError) return { errors: [], acknowledged: 0, loss: error }
      if (!(error instanceof SystemError)) throw error
      if (!PASSING.has(error.code) || attempt === SEND_ATTEMPTS) return error
    }
    await new Promise<void>(resolve => clock.after(SEND_RETRY_DELAY_MS * attempt, resolve))
  }
}
