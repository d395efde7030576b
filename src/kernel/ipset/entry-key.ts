import type { IpsetEntry } from './state.ts'

/**
 * An entry of a set as a map's key: equal for equal entries of one set, and for no others. Not for human eyes; see
 * entryText in print.ts.
 */
export function entryKey(setName: string, { ip, protocol, port, ip2, prefix2 }: IpsetEntry): string {
  // One UTF-16 unit a number, and 0xffff for none: what follows the NUL has but one reading.
  const numbers = String.fromCharCode(
    (ip?.length ?? 0) | ((ip2?.length ?? 0) << 8),
    protocol ?? 0xffff,
    prefix2 ?? 0xffff,
    port === undefined ? 0 : 1,
    port ?? 0,
  )
  return `${setName}\0${numbers}${ip ?? ''}${ip2 ?? ''}`
}
