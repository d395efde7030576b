import { textAt } from '../base/plain-data.ts'

/** One part of the page. It is made when it is opened, and forgotten when another is. */
export interface View {
  readonly node: HTMLElement
  /** Time between two refreshes; undefined to refresh once. */
  readonly everyMs: number | undefined
  /** Reads its data and shows them. Rejects with a DaemonAway or NoAnswer. */
  refresh(): Promise<void>
}

/** `12,345`. */
export function numberText(value: number | undefined): string {
  return value === undefined ? '' : Math.round(value).toLocaleString('en-US')
}

/** A rate, with a digit behind the point where it is small. */
export function rateText(value: number | undefined): string {
  if (value === undefined) return ''
  return value > 0 && value < 10 ? value.toFixed(1) : numberText(value)
}

/** `2 min 5 s`. */
export function ageText(ms: number | undefined): string {
  if (ms === undefined) return ''
  const seconds = Math.round(ms / 1000)
  if (seconds < 60) return `${seconds} s`
  const minutes = Math.floor(seconds / 60)
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`
  return `${numberText(Math.floor(minutes / 60))} h ${minutes % 60} min`
}

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
