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
