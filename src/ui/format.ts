import { ageText } from '../base/duration.ts'

/** `12,345`. */
export function numberText(value: number | undefined): string {
  return value === undefined ? '' : Math.round(value).toLocaleString('en-US')
}

/** A figure, with a digit behind the point where it is small. */
export function rateText(value: number | undefined): string {
  if (value === undefined) return ''
  return value < 10 && !Number.isInteger(value) ? value.toFixed(1) : numberText(value)
}

/**
 * `2 min ago`. Both times are the daemon's, so that the clock of the browser does not matter; after a jump of the daemon's
 * clock a time may be in the future. Empty for a text that is no time.
 */
export function agoText(at: string, now: string): string {
  const ms = Date.parse(now) - Date.parse(at)
  if (Number.isNaN(ms)) return ''
  if (ms < -1_500) return `in ${ageText(-ms)}`
  return ms < 1_500 ? 'just now' : `${ageText(ms)} ago`
}

/** Shortens a name that no place is wide enough for, in the middle: both ends of a name distinguish it. */
export function shortText(text: string, charactersMax: number): string {
  const letters = [...text]
  if (letters.length <= charactersMax) return text
  const kept = Math.max(2, charactersMax - 1)
  return `${letters.slice(0, Math.ceil(kept / 2)).join('')}…${letters.slice(-Math.floor(kept / 2)).join('')}`
}

/** A view with its parts and parameters, as the fragment of the address names them: `#services/ns/name?filter=x`. */
export interface Place {
  readonly view: string
  readonly parts: readonly string[]
  readonly query: Readonly<Record<string, string>>
}

export function placeOf(hash: string): Place {
  const [path = '', query = ''] = hash.replace(/^#/, '').split('?', 2)
  const [view = '', ...parts] = path.split('/').map(decoded)
  return { view, parts, query: Object.fromEntries(new URLSearchParams(query)) }
}

export function hashOf(view: string, parts: readonly string[] = [], query: Place['query'] = {}): string {
  const chosen = Object.entries(query).filter(([, value]) => value !== '')
  const path = [view, ...parts.map(encodeURIComponent)].join('/')
  return `#${path}${chosen.length === 0 ? '' : `?${new URLSearchParams(chosen)}`}`
}

/** The view of a Service `namespace/name`. */
export function serviceHash(service: string): string {
  return hashOf('services', service.split('/'))
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}
