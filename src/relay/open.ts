import { lookup } from 'node:dns/promises'
import { readFile } from 'node:fs/promises'
import { expiryOf } from '../api/grpc/http-server.ts'
import { type ApiAddress, formatApiAddress, parseRelayAddress } from '../base/api-address.ts'
import type { Clock } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import type { ApiClient } from '../source/kube/api-client.ts'
import { RelayClient } from './client.ts'
import { Http2Link, type RelayTlsPems } from './connection.ts'
import { ipsIn, RelayNames } from './names.ts'

interface OpenRelayOptions {
  /** `tcp://IP:PORT@ZONE`, `dns:///NAME:PORT@ZONE`. */
  readonly addresses: readonly string[]
  readonly zone: string
  readonly fallsBack: boolean
  /** Paths of PEM files, which are read for each connection. */
  readonly tls: TlsFiles | undefined
  /** Path of a token, which is read for each call; empty for none. */
  readonly tokenFile: string
  readonly nodeName: string
  readonly proxyName: string
  readonly kube: ApiClient
  readonly clock: Clock
  readonly say: (text: string) => void
}

interface TlsFiles {
  readonly caFile: string
  readonly serverName: string
  readonly certFile: string
  readonly keyFile: string
}

/** A client of these relays. It connects when it is asked. */
export function openRelayClient({
  addresses,
  tls,
  tokenFile,
  clock,
  ...options
}: OpenRelayOptions): RelayClient {
  const { say } = options
  let saidOf = ''
  const expired = (cert: string, validTo: string): void => {
    if (saidOf !== cert)
      say(`--relay-tls-cert: the certificate in ${tls?.certFile} expired at ${validTo}; relays refuse it`)
    saidOf = cert
  }
  const places = addresses.map(parseRelayAddress)
  const names = places.filter(its => 'port' in its)
  const random = Math.random
  return new RelayClient({
    ...options,
    clock,
    random,
    startedMs: Date.now(),
    relays: places.filter(its => 'address' in its),
    names:
      names.length === 0 ? undefined : new RelayNames({ names, lookup: addressesOf, clock, random, say }),
    link: (address, name) => openLink(address, { tls, tokenFile, expired, name }, clock),
  })
}

/** Resolves with the resolver of this machine, /etc/hosts included. */
async function addressesOf(name: string): Promise<readonly string[]> {
  return (await lookup(name, { all: true, verbatim: true })).map(({ address }) => address)
}

/** Connections to all relays that an address or a name leads to. Rejects for a name that cannot be resolved. */
export async function openLinks(
  text: string,
  options: Pick<OpenRelayOptions, 'tls' | 'tokenFile'>,
  clock: Clock,
  resolve = addressesOf,
): Promise<readonly { readonly address: string; readonly link: Http2Link }[]> {
  const place = parseRelayAddress(text)
  if ('address' in place) return [{ address: text, link: openLink(place.address, options, clock) }]
  const { name, port } = place
  return ipsIn(await resolve(name)).map(ip => {
    const address = { kind: 'tcp', ip, port } as const
    return { address: formatApiAddress(address), link: openLink(address, { ...options, name }, clock) }
  })
}

/** Hears of a certificate that is shown to relays and has expired. */
type Expired = (cert: string, validTo: string) => void

interface LinkFacts {
  readonly expired?: Expired
  /** The DNS name that the certificate of the relay has, unless a flag gives another one. */
  readonly name?: string | undefined
}

/** A connection to a relay, made at the first call. */
export function openLink(
  address: ApiAddress,
  {
    tls,
    tokenFile,
    expired = () => undefined,
    name,
  }: Pick<OpenRelayOptions, 'tls' | 'tokenFile'> & LinkFacts,
  clock: Clock,
): Http2Link {
  return new Http2Link({
    address,
    tls: tls === undefined || address.kind === 'unix' ? undefined : () => readPems(tls, { expired, name }),
    token: tokenFile === '' ? undefined : () => readToken(tokenFile),
    clock,
  })
}

/** A relay that refuses a certificate only closes the connection, so the node itself reports that its own has expired. */
async function readPems(
  { caFile, serverName, certFile, keyFile }: TlsFiles,
  { expired = () => undefined, name }: LinkFacts,
): Promise<RelayTlsPems> {
  const hasCertificate = certFile !== ''
  const [ca, cert, key] = await Promise.all([
    read('--relay-tls-ca', caFile),
    hasCertificate ? read('--relay-tls-cert', certFile) : undefined,
    hasCertificate ? read('--relay-tls-key', keyFile) : undefined,
  ])
  const expiresMs = cert === undefined ? Infinity : expiryOf({ cert })
  if (cert !== undefined && expiresMs < Date.now()) expired(cert, new Date(expiresMs).toISOString())
  return { ca, cert, key, servername: serverName === '' ? name : serverName }
}

/** The characters of RFC 6750. */
const TOKEN = /^[-A-Za-z0-9._~+/]+=*$/

async function readToken(path: string): Promise<string> {
  const token = (await read('--relay-token-file', path)).trim()
  if (!TOKEN.test(token)) throw new Error(`--relay-token-file: there is no token in ${path}`)
  return token
}

async function read(flag: string, path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (thrown) {
    throw new Error(`${flag}: ${errorOf(thrown).message}`)
  }
}
