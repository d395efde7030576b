import { textAt } from '../base/plain-data.ts'

/** No answer within this time means that the daemon is away. */
const TIMEOUT_MS = 10_000

/** The daemon does not answer, or something else does. */
export class DaemonAway extends Error {}

/** The daemon's answer is that there is none, such as for a Service that is gone. */
export class NoAnswer extends Error {}

/** There is no answer, or the viewer asks too often: the body says so. */
const HAS_REASON: ReadonlySet<number> = new Set([422, 429])

/** Reads a part of the page's data. */
export async function ask(page: string, query: Readonly<Record<string, string>> = {}): Promise<unknown> {
  const parameters = new URLSearchParams(query)
  const { status, body } = await answered(`data/${page}?${parameters}`)
  if (status === 200) return body
  if (HAS_REASON.has(status)) throw new NoAnswer(textAt(body, 'error'))
  throw new DaemonAway(`status ${status}`)
}

async function answered(url: string): Promise<{ readonly status: number; readonly body: unknown }> {
  try {
    const response = await fetch(url, { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) })
    const body: unknown = response.ok || HAS_REASON.has(response.status) ? await response.json() : undefined
    return { status: response.status, body }
  } catch (error) {
    throw new DaemonAway(error instanceof Error ? error.message : String(error))
  }
}
