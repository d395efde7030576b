import { formatIp, type Ip, isLoopback, parseIp } from './ip.ts'

/** The address of the API: `unix:///run/kprobe/api.sock`, `tcp://127.0.0.1:12090` or `tcp://[::1]:12090`. */
export type ApiAddress =
  | { readonly kind: 'unix'; readonly path: string }
  | { readonly kind: 'tcp'; readonly ip: Ip; readonly port: number }

/** The folder of the sockets that kprobe names itself. */
export const RUN_FOLDER = '/run/kprobe'
export const DEFAULT_API_ADDRESS = `unix://${RUN_FOLDER}/api.sock`
/** The admin socket of the unnamed proxy: the daemon listens there by default, and the commands query it. */
export const DEFAULT_ADMIN_SOCKET = `${RUN_FOLDER}/admin.sock`
/** Limit of sockaddr_un (unix(7)), less room for the name under which the socket is made. */
const UNIX_PATH_BYTES_MAX = 100

/** Port 0 lets the kernel choose. Throws an Error that names what is wrong with the text. */
export function parseApiAddress(text: string): ApiAddress {
  const [, scheme, rest = ''] = /^(unix|tcp):\/\/(.*)$/.exec(text) ?? []
  if (scheme === 'unix') return { kind: 'unix', path: unixPath(text, rest) }
  if (scheme === 'tcp') return tcpAddress(text, rest)
  throw new Error(`${JSON.stringify(text)}: not an address; write unix:///PATH or tcp://IP:PORT`)
}

/** An address of a relay, and its zone; empty if none is given. */
export interface RelayAddress {
  readonly address: ApiAddress
  readonly zone: string
  /** The DNS name that the address is from; absent where it was given. */
  readonly name?: string
}

export interface RelayName {
  readonly name: string
  readonly port: number
  readonly zone: string
}

/** The value of a label. */
const ZONE = /^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$/
const DNS_NAME = /^([a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?\.)*[a-z]([-a-z0-9]{0,61}[a-z0-9])?\.?$/i

/** `tcp://IP:PORT@ZONE`, `dns:///NAME:PORT@ZONE`, or one without a zone. The path of a unix socket may have an @. */
export function parseRelayAddress(text: string): RelayAddress | RelayName {
  const at = /^(tcp|dns):/.test(text) ? text.indexOf('@') : -1
  const zone = at < 0 ? '' : text.slice(at + 1)
  if (at >= 0 && !isZone(zone))
    throw new Error(`${JSON.stringify(text)}: ${JSON.stringify(zone)} is not a zone`)
  const place = at < 0 ? text : text.slice(0, at)
  return place.startsWith('dns:') ? { ...dnsName(place), zone } : { address: parseApiAddress(place), zone }
}

function dnsName(text: string): Omit<RelayName, 'zone'> {
  const [, name = '', digits = ''] = /^dns:\/\/\/([^:/]*):(\d{1,5})$/.exec(text) ?? []
  const port = Number(digits)
  if (!DNS_NAME.test(name) || name.length > 253 || port === 0 || port > 65_535)
    throw new Error(`${JSON.stringify(text)}: not a DNS name; write dns:///NAME:PORT`)
  return { name, port }
}

export function isZone(text: string): boolean {
  return ZONE.test(text)
}

/** A peer at any other address of ours has to show a certificate. */
export function isPrivate(address: ApiAddress): boolean {
  return address.kind === 'unix' || isLoopback(address.ip)
}

export function formatApiAddress(address: ApiAddress): string {
  if (address.kind === 'unix') return `unix://${address.path}`
  const ip = formatIp(address.ip)
  return `tcp://${address.ip.length === 16 ? `[${ip}]` : ip}:${address.port}`
}

function unixPath(text: string, path: string): string {
  if (!path.startsWith('/') || path.endsWith('/') || path.includes('\0'))
    throw new Error(`${JSON.stringify(text)}: the path of a unix socket must be absolute: unix:///PATH`)
  if (Buffer.byteLength(path) > UNIX_PATH_BYTES_MAX)
    throw new Error(
      `${JSON.stringify(text)}: the path of a unix socket has at most ${UNIX_PATH_BYTES_MAX} bytes`,
    )
  return path
}

function tcpAddress(text: string, rest: string): ApiAddress {
  const [, inBrackets, bare, digits = ''] = /^(?:\[([^\]]*)\]|([^:]*)):(\d{1,5})$/.exec(rest) ?? []
  const ip = parseIp(inBrackets ?? bare ?? '')
  const port = Number(digits)
  if (ip === undefined || port > 65_535 || (ip.length === 16) !== (inBrackets !== undefined))
    throw new Error(
      `${JSON.stringify(text)}: not a TCP address; write tcp://IP:PORT, or tcp://[IP]:PORT for IPv6`,
    )
  return { kind: 'tcp', ip, port }
}
