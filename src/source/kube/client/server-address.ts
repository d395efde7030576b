import { type Ip, isLoopback, parseIp } from '../../../base/ip.ts'
import { ApiError } from '../api-client.ts'

/** The address of an API server. */
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
 * Whether a server is reached through one of the ClusterIPs: on a node whose kernel is empty, the proxy that programs these
 * must not need them. A DNS name counts as reached by itself: it is looked up outside the cluster's network.
 */
export function dependsOnServices(serverHost: string, clusterIps: Iterable<Ip>): boolean {
  const host = parseIp(serverHost.replace(/^\[|\]$/g, ''))
  if (host === undefined) return false
  for (const clusterIp of clusterIps) if (clusterIp === host) return true
  return false
}

/** Loopback addresses and `localhost`. */
export function isLoopbackHost(host: string): boolean {
  if (host === 'localhost' || host.endsWith('.localhost')) return true
  const ip = parseIp(host)
  return ip !== undefined && isLoopback(ip)
}

function refused(where: string, why: string): ApiError {
  return new ApiError('credentials', `${where} ${why}`)
}
