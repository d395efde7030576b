import { contains, hostCidr, type Ip, isLoopback, parseCidr, parseIp } from '../../../base/ip.ts'
import { ApiError } from '../api-client.ts'

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
    const secret = decoded(`${url.username}:${url.password}`, where)
    headers['proxy-authorization'] = `Basic ${Buffer.from(secret).toString('base64')}`
  }
  return {
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: url.port === '' ? 80 : Number(url.port),
    headers,
  }
}

function decoded(text: string, where: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    // The error of the platform names neither the variable nor the field.
    throw refused(where, 'holds a user name or password with a bad % escape; write % as %25')
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

export interface ServerAddress {
  /** `https://10.96.0.1:443` with its path, for messages. */
  readonly url: string
  readonly secure: boolean
  /** A DNS name or an address without brackets. */
  readonly host: string
  readonly port: number
  /** Host and port as HTTP names them; the port is left out where it is the scheme's own. */
  readonly authority: string
  /** The prefix of every request's path: empty, or `/k8s/clusters/c-1`. */
  readonly basePath: string
}

/**
 * Reads a server as kubeconfigs and --master give it. Without a scheme it is https where `secureByDefault`, and http
 * otherwise (client-go's DefaultServerURL). Throws ApiError 'credentials' that begins with `where`; a user name or
 * password in the URL is refused and not repeated.
 */
export function parseServer(text: string, where: string, secureByDefault: boolean): ServerAddress {
  const withScheme = /^[a-z][a-z0-9+.-]*:\/\//i.test(text)
    ? text
    : `${secureByDefault ? 'https' : 'http'}://${text}`
  if (!URL.canParse(withScheme)) throw refused(where, 'is not a URL; write it like https://192.0.2.1:6443')
  const url = new URL(withScheme)
  if (url.protocol !== 'https:' && url.protocol !== 'http:')
    throw refused(where, `has the scheme ${url.protocol} where only https and http are known`)
  if (url.username !== '' || url.password !== '')
    throw refused(where, 'holds a user name or password; they belong into the user entry')
  if (url.search !== '' || url.hash !== '') throw refused(where, 'holds a query or fragment')
  const secure = url.protocol === 'https:'
  const basePath = url.pathname.replace(/\/+$/, '')
  return {
    url: `${url.origin}${basePath}`,
    secure,
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: url.port === '' ? (secure ? 443 : 80) : Number(url.port),
    authority: url.host,
    basePath,
  }
}

/**
 * Tests whether the server's address is one of the ClusterIPs: on a node whose kernel is empty, the proxy that programs
 * these must not need them. A DNS name is none: it is resolved outside the cluster's network.
 */
export function dependsOnServices(serverHost: string, clusterIps: Iterable<Ip>): boolean {
  const host = parseIp(serverHost.replace(/^\[|\]$/g, ''))
  return host !== undefined && [...clusterIps].includes(host)
}

export function isLoopbackHost(host: string): boolean {
  if (host === 'localhost' || host.endsWith('.localhost')) return true
  const ip = parseIp(host)
  return ip !== undefined && isLoopback(ip)
}
