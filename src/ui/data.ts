import { useLayoutEffect, useState } from 'preact/hooks'
import { textAt } from '../base/plain-data.ts'
import { oneLine } from '../base/text.ts'

/** No answer within this time means that the daemon is away. */
const TIMEOUT_MS = 10_000

/** The daemon does not answer, or something else does. */
export class DaemonAway extends Error {}

/** The daemon's answer is that there is none, such as for a Service that is gone. */
export class NoAnswer extends Error {}

/** The daemon limits this viewer: what is on show stays, and the next question waits. */
export class TooOften extends NoAnswer {}

/** Reads a page of data. Texts of objects come with their control and direction characters escaped. */
export async function ask(page: string, query: Readonly<Record<string, string>> = {}): Promise<unknown> {
  const { status, text } = await answered(`data/${page}?${new URLSearchParams(query)}`)
  if (status !== 200 && status !== 422 && status !== 429) throw new DaemonAway(`status ${status}`)
  const body: unknown = parsed(text)
  if (status === 429) throw new TooOften(textAt(body, 'error'))
  if (status === 422) throw new NoAnswer(textAt(body, 'error'))
  return body
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text, (_, value: unknown) => (typeof value === 'string' ? oneLine(value) : value))
  } catch {
    throw new DaemonAway('the answer is not JSON')
  }
}

async function answered(url: string): Promise<{ readonly status: number; readonly text: string }> {
  try {
    const response = await fetch(url, { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) })
    return { status: response.status, text: await response.text() }
  } catch (error) {
    throw new DaemonAway(error instanceof Error ? error.message : String(error))
  }
}

interface Shown {
  /** The question that `data` answers: rows never stand under the heading of another one. */
  readonly query: Readonly<Record<string, string>>
  readonly data: unknown
  /** Why there is no newer answer; undefined where there is. */
  readonly error?: Error
}

/**
 * Asks for a page of data, again after each change of the question and every `everyMs` while the window is visible.
 * Undefined before the first answer. One question is under way at a time; the answer to an older one is not shown.
 */
export function useData(
  page: string,
  query: Readonly<Record<string, string>>,
  everyMs = Number.POSITIVE_INFINITY,
): Shown | undefined {
  const [shown, show] = useState<Shown>()
  const question = new URLSearchParams(query).toString()
  // Before the next paint: a filter is asked for with the key that changes it.
  useLayoutEffect(() => {
    const ending = new AbortController()
    void follow(ending.signal, async () => {
      try {
        const data = await ask(page, query)
        if (!ending.signal.aborted) show({ query, data })
        return everyMs
      } catch (thrown) {
        const error = thrown instanceof Error ? thrown : new Error(String(thrown))
        if (!ending.signal.aborted) show(before => errorShown(before, query, error))
        // What is limited, or away, is asked for again soon.
        return thrown instanceof NoAnswer && !(thrown instanceof TooOften) ? everyMs : RETRY_MS
      }
    })
    return () => ending.abort()
  }, [page, question, everyMs])
  return shown
}

/** Time until a daemon that was away, or that limits this viewer, is asked again. */
const RETRY_MS = 2_000

function errorShown(before: Shown | undefined, query: Shown['query'], error: Error): Shown {
  // A daemon that limits this viewer has said nothing about the data.
  return error instanceof TooOften && before !== undefined
    ? { ...before, error }
    : { query, data: undefined, error }
}

/** Runs until the signal aborts, in the distance that each run gives, and only while the window is visible. */
export async function follow(signal: AbortSignal, run: () => Promise<number>): Promise<void> {
  while (!signal.aborted) {
    const restMs = document.hidden ? Number.POSITIVE_INFINITY : await run()
    await rest(restMs, signal)
  }
}

/** Waits; an abort, or a page that can be seen again, ends it. */
function rest(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const end = () => {
      window.clearTimeout(timer)
      document.removeEventListener('visibilitychange', end)
      resolve()
    }
    const timer = Number.isFinite(ms) ? window.setTimeout(end, ms) : 0
    signal.addEventListener('abort', end, { once: true })
    document.addEventListener('visibilitychange', end)
    if (signal.aborted) end()
  })
}
