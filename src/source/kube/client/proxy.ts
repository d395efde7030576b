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
    const secret = `${decodeURIComponent(url.username)}:${decodeURIComponent(url.password)}`
    headers['proxy-authorization'] = `Basic ${Buffer.from(secret).toString('base64')}`
  }
  return {
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: url.port === '' ? 80 : Number(url.port),
    headers,
  }
}

function refused(where: string, why: string): ApiError {
  return new ApiError('credentials', `${where} ${why}`)
}
