import { parseIp, whyNotIp } from '../base/ip.ts'
import type { BindAddress } from './config.ts'
import { quote } from './flag-reader.ts'

/**
 * Splits `192.0.2.1:80` or `[2001:db8::1]:80` as Go's net.SplitHostPort does; undefined if the text has another form.
 */
export function splitHostPort(text: string): { readonly host: string; readonly port: string } | undefined {
  const match = /^(?:\[([^[\]]*)\]|([^[\]:]*)):([^[\]:]*)$/.exec(text)
  return match === null ? undefined : { host: match[1] ?? match[2] ?? '', port: match[3] ?? '' }
}

/** Adds a port to an address without one. An invalid text passes unchanged, for a later check to refuse. */
export function withPort(text: string, port: number): string {
  if (splitHostPort(text) !== undefined || parseIp(text) === undefined) return text
  return text.includes(':') ? `[${text}]:${port}` : `${text}:${port}`
}

/** Reads an address to listen at, or gives the reason why it is invalid. */
export function readBindAddress(
  text: string,
): { readonly address: BindAddress } | { readonly problem: string } {
  const parts = splitHostPort(text)
  if (parts === undefined) return { problem: `${quote(text)} is not written IP:PORT or [IP]:PORT` }
  const ip = parseIp(parts.host)
  if (ip === undefined) return { problem: `${quote(parts.host)} is ${whyNotIp(parts.host)}` }
  const port = /^\d{1,5}$/.test(parts.port) ? Number(parts.port) : 0
  if (port < 1 || port > 65_535) return { problem: `${quote(parts.port)} is not a port from 1 to 65535` }
  return { address: { ip, port } }
}
