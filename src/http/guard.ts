import { createHash, timingSafeEqual } from 'node:crypto'
import { parseIp } from '../base/ip.ts'
import { type HttpAnswer, PLAIN } from './connections.ts'

/**
 * Tests whether a Host header names this server: by an address, as `localhost`, or by one of `names`. A page of another
 * site that has its own name resolve to this server (DNS rebinding) sends that name.
 */
export function isOwnHost(host: string | undefined, names: readonly string[]): boolean {
  const [, bracketed, plain = ''] = /^(?:\[([^\]]*)\]|([^:[\]]*))(?::\d{1,5})?$/.exec(host ?? '') ?? []
  if (bracketed !== undefined) return parseIp(bracketed)?.length === 16
  const name = plain.toLowerCase()
  return name !== '' && (parseIp(name) !== undefined || name === 'localhost' || names.includes(name))
}

/** Answers a request under the name of another site. */
export function misdirected(host: string | undefined): HttpAnswer {
  const body = `421 misdirected request: ${JSON.stringify(host ?? '')} is not this daemon; use its address, localhost or the name of its Node\n`
  return { status: 421, headers: PLAIN, body }
}

/** Tests whether an Authorization header has the token: as a bearer token, or as the password of any user. */
export function hasToken(authorization: string | undefined, token: string): boolean {
  const [, scheme = '', value = ''] = /^(bearer|basic) +(\S+)$/i.exec(authorization ?? '') ?? []
  const given =
    scheme.toLowerCase() === 'basic'
      ? Buffer.from(value, 'base64')
          .toString('utf8')
          .replace(/^[^:]*:/, '')
      : value
  return token !== '' && timingSafeEqual(digest(given), digest(token))
}

/** Equal lengths: the time of the comparison says nothing about the token. */
function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}
