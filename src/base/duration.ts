/** Nanoseconds in each unit of Go's durations. The expressions below spell both signs in ASCII: see deploy/build.mjs. */
const UNIT_NS: Readonly<Record<string, bigint>> = {
  ns: 1n,
  us: 1_000n,
  µs: 1_000n,
  μs: 1_000n,
  ms: 1_000_000n,
  s: 1_000_000_000n,
  m: 60_000_000_000n,
  h: 3_600_000_000_000n,
}

/** The longest delay a timer of Node takes; longer ones would fire at once. */
export const TIMER_MS_MAX = 2 ** 31 - 1

/** A duration as Go's time.ParseDuration reads it, in nanoseconds; undefined when it is none. */
export function parseGoDuration(text: string): bigint | undefined {
  const negative = text.startsWith('-')
  const rest = text.replace(/^[-+]/, '')
  if (rest === '0') return 0n
  if (!/^((\d+(\.\d*)?|\.\d+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h))+$/.test(rest)) return undefined
  let total = 0n
  for (const [, whole = '', fraction = '', unit = ''] of rest.matchAll(
    /(\d*)\.?(\d*)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)/g,
  ))
    total += inNanoseconds(whole, fraction, UNIT_NS[unit] ?? 0n)
  // A Go int64 holds no more: 292 years.
  if (total >= 2n ** 63n) return undefined
  return negative ? -total : total
}

/** Cuts off parts of a nanosecond. */
function inNanoseconds(whole: string, fraction: string, unitNs: bigint): bigint {
  const digits = fraction.slice(0, 18)
  return BigInt(whole || '0') * unitNs + (BigInt(digits || '0') * unitNs) / 10n ** BigInt(digits.length)
}

/** Formats a duration as Go prints a time.Duration: `24h0m0s`, `1m30s`, `1.5s`, `20ms`, `0s`. */
export function formatGoDuration(ns: bigint): string {
  if (ns === 0n) return '0s'
  const sign = ns < 0n ? '-' : ''
  const size = ns < 0n ? -ns : ns
  if (size < 1_000n) return `${sign}${size}ns`
  if (size < 1_000_000n) return `${sign}${decimal(size, 1_000n)}µs`
  if (size < 1_000_000_000n) return `${sign}${decimal(size, 1_000_000n)}ms`
  const minutes = size / 60_000_000_000n
  const seconds = `${decimal(size % 60_000_000_000n, 1_000_000_000n)}s`
  if (minutes === 0n) return `${sign}${seconds}`
  if (minutes < 60n) return `${sign}${minutes}m${seconds}`
  return `${sign}${minutes / 60n}h${minutes % 60n}m${seconds}`
}

function decimal(value: bigint, unit: bigint): string {
  const digits = `${unit}`.length - 1
  const rest = `${value % unit}`.padStart(digits, '0').replace(/0+$/, '')
  return rest === '' ? `${value / unit}` : `${value / unit}.${rest}`
}

/** Parses a Go duration to milliseconds, which may have a fraction. Undefined for invalid text. */
export function parseDurationMs(text: string): number | undefined {
  const ns = parseGoDuration(text)
  return ns === undefined ? undefined : nsToMs(ns)
}

export function nsToMs(ns: bigint): number {
  return Number(ns) / 1_000_000
}

/** `0.350s`, `12.3s`, `4m10s`. */
export function secondsText(ms: number): string {
  if (ms < 10_000) return `${(ms / 1000).toFixed(ms < 1000 ? 3 : 1)}s`
  const seconds = Math.round(ms / 1000)
  if (seconds < 60) return `${seconds}s`
  if (seconds < 3_600) return `${Math.floor(seconds / 60)}m${seconds % 60}s`
  return `${Math.floor(seconds / 3_600)}h${Math.floor((seconds % 3_600) / 60)}m`
}

/** `5 s`, `12 min`, `7 h`, `9 d`: what a reader needs of an age. */
export function ageText(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1_000))
  if (seconds < 120) return `${seconds} s`
  if (seconds < 7_200) return `${Math.round(seconds / 60)} min`
  return seconds < 172_800 ? `${Math.round(seconds / 3_600)} h` : `${Math.round(seconds / 86_400)} d`
}
