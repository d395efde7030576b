import { readFile } from 'node:fs/promises'
import { type ApiAddress, parseApiAddress } from '../api/grpc/address.ts'
import { expiryOf } from '../api/grpc/http-server.ts'
import type { Clock } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import type { ApiClient } from '../source/kube/api-client.ts'
import { RelayClient } from './client.ts'
import { Http2Link, type RelayTlsPems } from './connection.ts'

interface OpenRelayOptions {
  readonly addresses: readonly string[]
  readonly fallsBack: boolean
  /** Paths of PEM files, which are read for each connection. */
  readonly tls: { readonly caFile: string; readonly certFile: string; readonly keyFile: string } | undefined
  readonly nodeName: string
  readonly proxyName: string
  readonly kube: ApiClient
  readonly clock: Clock
  readonly say: (text: string) => void
}

/** A client of these relays. It connects when it is asked. */
export function openRelayClient({ addresses, tls, clock, ...options }: OpenRelayOptions): RelayClient {
  const { say } = options
  let saidOf = ''
  const expired = (cert: string, validTo: string): void => {
    if (saidOf !== cert)
      say(`--relay-tls-cert: the certificate in ${tls?.certFile} expired at ${validTo}; relays refuse it`)
    saidOf = cert
  }
  return new RelayClient({
    ...options,
    clock,
    random: Math.random,
    startedMs: Date.now(),
    relays: addresses.map(parseApiAddress),
    link: address => openLink(address, tls, clock, expired),
  })
}

/** Hears of a certificate that is shown to relays and has expired. */
type Expired = (cert: string, validTo: string) => void

/** A connection to a relay, made at the first call. */
export function openLink(
  address: ApiAddress,
  tls: OpenRelayOptions['tls'],
  clock: Clock,
  expired: Expired = () => undefined,
): Http2Link {
  const isSecured = tls !== undefined && address.kind !== 'unix'
  return new Http2Link({ address, tls: isSecured ? () => readPems(tls, expired) : undefined, clock })
}

/** A relay that refuses a certificate only closes the connection, so the node says itself that its own has expired. */
async function readPems(
  { caFile, certFile, keyFile }: NonNullable<OpenRelayOptions['tls']>,
  expired: Expired,
): Promise<RelayTlsPems> {
  const [ca, cert, key] = await Promise.all([
    read('--relay-tls-ca', caFile),
    read('--relay-tls-cert', certFile),
    read('--relay-tls-key', keyFile),
  ])
  if (expiryOf({ cert }) < Date.now()) expired(cert, new Date(expiryOf({ cert })).toISOString())
  return { ca, cert, key }
}

async function read(flag: string, path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (thrown) {
    throw new Error(`${flag}: ${errorOf(thrown).message}`)
  }
}
