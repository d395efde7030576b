import { contains, hostCidr, parseCidr } from '../../../base/cidr.ts'
import { parseIp } from '../../../base/ip.ts'
import { ApiError } from '../api-client.ts'
import { isLoopbackHost, type ServerAddress } from './server-address.ts'

/** A plain HTTP proxy. The headers may hold a password: never to be printed. */
export interface HttpProxy {
  readonly host: string
  readonly port: number
  readonly headers: Readonly<Record<string, string>>
}

/** Reads a kubeconfig's proxy-url. Throws ApiError 'credentials' that begins with `where` and does not repeat the URL. */
export function parseProxy(text: string, where: string): HttpProxy {
  if (!URL.canParse(text)) throw refused(where, 'is not a URL')
  const url = new URL(text)
  if (url.protocol !== 'http:')
    throw refused(where, `has the scheme ${url.protocol} where only plain http proxies (CONNECT) are known`)
  const headers: Record<string, string> = {}
  if (url.username !== '') {
    const secret = `${decodeURIComponent(url.username)}:${decodeURIComponent(url.password)}`
    headers['proxy-authorization'] = `Basic ${Buffer.from(secret).toString('base64')}`
  }
  return {
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: url.port === '' ? 80 : Number(url.port),
    headers,
  }
}

/**
 * The proxy that HTTPS_PROXY (HTTP_PROXY for plain servers) and NO_PROXY name, in either case, as Go's programs read
 * them: kubeadm passes its own on to kube-proxy. Nothing on this machine is reached through a proxy.
 */
export function proxyFromEnvironment(
  env: Readonly<Record<string, string | undefined>>,
  server: ServerAddress,
): HttpProxy | undefined {
  const name = server.secure ? 'HTTPS_PROXY' : 'HTTP_PROXY'
  const url = env[name] || env[name.toLowerCase()] || ''
  if (url === '' || isLoopbackHost(server.host)) return undefined
  const exceptions = (env.NO_PROXY || env.no_proxy || '').split(',')
  if (exceptions.some(exception => covers(exception.trim().toLowerCase(), server))) return undefined
  return parseProxy(url.includes('://') ? url : `http://${url}`, name)
}

/** One entry of NO_PROXY: `*`, a prefix, an address or a domain, these two with a port or without. */
function covers(exception: string, { host, port }: ServerAddress): boolean {
  if (exception === '*') return true
  const ip = parseIp(host)
  const cidr = parseCidr(exception)
  if (cidr !== undefined) return ip !== undefined && contains(cidr, ip)
  const [, name = '', only] = /^\[?(.*?)\]?(?::(\d+))?$/.exec(withBrackets(exception)) ?? []
  if (name === '' || (only !== undefined && Number(only) !== port)) return false
  const address = parseIp(name)
  if (address !== undefined) return ip !== undefined && contains(hostCidr(address), ip)
  const domain = name.replace(/^\*/, '')
  const lower = host.toLowerCase()
  return domain.startsWith('.') ? lower.endsWith(domain) : lower === domain || lower.endsWith(`.${domain}`)
}

/** An IPv6 address without brackets has no port. */
function withBrackets(text: string): string {
  return parseIp(text) === undefined ? text : `[${text}]`
}

function refused(where: string, why: string): ApiError {
  return new ApiError('credentials', `${where} ${why}`)
}
