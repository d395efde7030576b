import type { IpsetEntry } from './state.ts'

/** Returns a map key for an entry of a set. entryText in print.ts is the readable form. */
export function entryKey(setName: string, { ip, protocol, port, ip2, prefix2 }: IpsetEntry): string {
  // Each number takes one UTF-16 unit, and 0xffff stands for an absent one, so the text after the NUL is unambiguous.
  const numbers = String.fromCharCode(
    (ip?.length ?? 0) | ((ip2?.length ?? 0) << 8),
    protocol ?? 0xffff,
    prefix2 ?? 0xffff,
    port === undefined ? 0 : 1,
    port ?? 0,
  )
  return `${setName}\0${numbers}${ip ?? ''}${ip2 ?? ''}`
}
