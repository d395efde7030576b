import { parseIp, whyNotIp } from '../base/ip.ts'
import type { BindAddress } from './config.ts'
import { parseBool, quote } from './flag.ts'

/* Texts of flags that do not stand for themselves. */

/**
 * Reads the text of a flag into that of its field; undefined leaves the field as it is. `fail` gets the reason why the
 * text is invalid.
 */
export type FlagText = (text: string, fail: (message: string) => void) => string | undefined

/** Reads an IP address. An empty text keeps the default, as kube-proxy does in contrast to its help. */
export const ipOf: FlagText = (text, fail) => {
  if (text === '') return undefined
  if (parseIp(text) !== undefined) return text
  fail(`${quote(text)} is ${whyNotIp(text)}`)
  return undefined
}

/** Reads an IP address with or without a port. An empty text keeps the default. */
export const listenAddress: FlagText = (text, fail) => {
  const parts = splitHostPort(text)
  if (parts === undefined)
    return ipOf(text, () => fail(`${quote(text)} is ${whyNotIp(text)}, with or without :PORT`))
  if (parseIp(parts.host) !== undefined) return text
  fail(`${quote(parts.host)} is ${whyNotIp(parts.host)}`)
  return undefined
}

/** Reads the name of a Node. An empty text keeps the name in the file. */
export const hostName: FlagText = (text, fail) => {
  if (text === '') return undefined
  const name = text.trim().toLowerCase()
  if (name === '') fail('is blank')
  return name
}

/** Reads a flag that stands for `on` if it has no value of its own, and for `off` if it is false. */
export function onOrOff(on: string, off: string): FlagText {
  return text => {
    const isOn = parseBool(text)
    return isOn === undefined ? text : isOn ? on : off
  }
}

/**
 * Splits `192.0.2.1:80` or `[2001:db8::1]:80` as Go's net.SplitHostPort does; undefined if the text has another form.
 */
function splitHostPort(text: string): { readonly host: string; readonly port: string } | undefined {
  const match = /^(?:\[([^[\]]*)\]|([^[\]:]*)):([^[\]:]*)$/.exec(text)
  return match === null ? undefined : { host: match[1] ?? match[2] ?? '', port: match[3] ?? '' }
}

/** Adds a port to an address without one. An invalid text passes unchanged, for a later check to refuse. */
export function withPort(text: string, port: number): string {
  if (splitHostPort(text) !== undefined || parseIp(text) === undefined) return text
  return text.includes(':') ? `[${text}]:${port}` : `${text}:${port}`
}

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
