/** The years 0 to 9999, which RFC 3339 can write, in seconds from 1970. */
const FIRST_S = -62_167_219_200
const LAST_S = 253_402_300_799

const MINUS = 0x2d
const COLON = 0x3a
const T = 0x54
const Z = 0x5a

/**
 * A time as the API writes it, `2026-01-02T03:04:05Z`; undefined where RFC 3339 has no text. Every object has one or
 * more: this takes a third of the time that toISOString and a cut do.
 */
export function rfc3339(seconds: number): string | undefined {
  if (!(seconds >= FIRST_S && seconds <= LAST_S)) return undefined
  const date = new Date(seconds * 1000)
  const year = date.getUTCFullYear()
  const month = date.getUTCMonth() + 1
  const day = date.getUTCDate()
  const hour = date.getUTCHours()
  const minute = date.getUTCMinutes()
  const second = date.getUTCSeconds()
  // biome-ignore format: as the text stands
  return String.fromCharCode(
    digit(year, 1000), digit(year, 100), digit(year, 10), digit(year, 1), MINUS,
    digit(month, 10), digit(month, 1), MINUS, digit(day, 10), digit(day, 1), T,
    digit(hour, 10), digit(hour, 1), COLON, digit(minute, 10), digit(minute, 1), COLON,
    digit(second, 10), digit(second, 1), Z,
  )
}

function digit(number: number, place: number): number {
  return 0x30 + (Math.floor(number / place) % 10)
}
