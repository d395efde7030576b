import {
  DEFAULT_ADMIN_SOCKET,
  DEFAULT_API_ADDRESS,
  isPrivate,
  isZone,
  parseApiAddress,
  parseRelayAddress,
} from '../base/api-address.ts'
import { errorOf } from '../base/errors.ts'
import { type Cidr, isLoopback } from '../base/ip.ts'
import { nearest } from '../base/text.ts'
import { isDnsLabel } from '../model/fields.ts'
import type {
  ApiConfig,
  ApiTlsConfig,
  Config,
  ProxyMode,
  RelaySourceConfig,
  RelayTlsConfig,
  SourceConfig,
  UiConfig,
} from './config.ts'
import { type FlagReader, type FlagSpec, flag, quote, readCidrs } from './flag.ts'
import { readBindAddress } from './flag-text.ts'
import { API_TLS_FLAGS, RELAY_CLIENT_FLAGS, UI_FLAGS } from './flags.ts'
import { MODE_ROWS, rowOf } from './modes.ts'

/** Settings that only flags set. All but --master are kprobe's own. They have effect with --config, too. */
export type OwnSettings = Pick<
  Config,
  | 'backend'
  | 'source'
  | 'once'
  | 'serviceProxyName'
  | 'allowedExternalCidrs'
  | 'allowedLoadBalancerCidrs'
  | 'adminSocket'
  | 'connectionMetricsMax'
  | 'api'
  | 'ui'
> & {
  readonly conntrackLower: boolean
  readonly master: string
}

export function readOwnSettings(reader: FlagReader): OwnSettings {
  const serviceProxyName = readInstanceName(reader)
  return {
    backend: reader.oneOf('backend', ['netlink', 'dry-run'], 'netlink'),
    source: readSource(reader),
    once: reader.bool('once'),
    serviceProxyName,
    allowedExternalCidrs: cidrsOf(reader, 'allowed-external-cidrs'),
    allowedLoadBalancerCidrs: cidrsOf(reader, 'allowed-load-balancer-cidrs'),
    // An empty one switches it off.
    adminSocket: reader.given('admin-socket') ? readSocketPath(reader) : defaultAdminSocket(serviceProxyName),
    // More time series do not suit one scrape.
    connectionMetricsMax: reader.integer('connection-metrics-max', { min: 0, max: 1_000_000, fallback: 0 }),
    api: readApi(reader),
    ui: readUi(reader),
    conntrackLower: reader.bool('conntrack-lower'),
    master: reader.text('master') ?? '',
  }
}

function readSource(reader: FlagReader): SourceConfig {
  const text = reader.text('source') ?? 'kube'
  if (text.startsWith('relay:'))
    return { kind: 'kube', relay: readRelay(reader, text.slice('relay:'.length)) }
  refuseIdle(reader, [{ name: RELAY_FALLBACK }, ...RELAY_CLIENT_FLAGS], '--source=relay:ADDRESS')
  if (text === 'kube') return { kind: 'kube' }
  const path = text.startsWith('file:') ? text.slice('file:'.length) : ''
  if (path !== '') return { kind: 'file', path }
  if (text === 'file:') reader.fail('--source', 'file: needs a path')
  else {
    const near = nearSource(text)
    const hint = near === undefined ? '' : `; did you mean ${near}?`
    reader.fail('--source', `${quote(text)} is neither kube nor file:PATH nor relay:ADDRESS${hint}`)
  }
  return { kind: 'kube' }
}

/** Gives what was probably meant; undefined for a kind of source that resembles none. */
function nearSource(text: string): string | undefined {
  const border = text.indexOf(':')
  if (border < 0) return nearest(text, ['kube']) ?? `file:${text}`
  const kind = nearest(text.slice(0, border), ['file', 'relay'])
  return kind === undefined ? undefined : kind + text.slice(border)
}

const RELAY_FALLBACK = 'relay-fallback'

function readRelay(reader: FlagReader, text: string): RelaySourceConfig {
  const fallsBack = reader.oneOf(RELAY_FALLBACK, ['', 'kube'], '') === 'kube'
  const zone = reader.text('relay-zone') ?? ''
  if (zone !== '' && !isZone(zone)) reader.fail('--relay-zone', `${quote(zone)} is not a label value`)
  return { ...readRelays(reader, 'source', text.split(',')), zone, fallsBack }
}

/** Reads the addresses of relays that a flag names, and how to connect to them. */
export function readRelays(
  reader: FlagReader,
  flag: string,
  texts: readonly string[],
): Pick<RelaySourceConfig, 'addresses' | 'tls' | 'tokenFile'> {
  const addresses = [...new Set(texts.map(address => address.trim()))]
  const tls = readRelayTls(reader)
  const fail = (message: string): void => reader.fail(`--${flag}`, message)
  if (addresses.length > 64) fail(`names ${addresses.length} relays; the limit is 64`)
  for (const address of addresses)
    try {
      const its = parseRelayAddress(address)
      if (tls === undefined && !('address' in its && isPrivate(its.address)))
        fail(
          `${address} needs TLS: give --relay-tls-ca, and --relay-token-file or --relay-tls-cert and --relay-tls-key`,
        )
      if ('address' in its && its.address.kind === 'tcp' && its.address.port === 0)
        fail(`${address} has no port`)
    } catch (error) {
      fail(`relay: ${errorOf(error).message}`)
    }
  return { addresses, tls, tokenFile: reader.text(RELAY_TOKEN_FILE) ?? '' }
}

const RELAY_TOKEN_FILE = 'relay-token-file'

function readRelayTls(reader: FlagReader): RelayTlsConfig | undefined {
  const text = (name: string): string => reader.text(`relay-tls-${name}`) ?? ''
  const tls = {
    caFile: text('ca'),
    serverName: text('server-name'),
    certFile: text('cert'),
    keyFile: text('key'),
  }
  const { caFile, certFile, keyFile } = tls
  if (Object.values(tls).every(value => value === '')) return undefined
  if (caFile === '') reader.fail('--relay-tls-ca', 'is missing: TLS needs the CA of relays')
  const hasToken = (reader.text(RELAY_TOKEN_FILE) ?? '') !== ''
  if ((certFile === '') !== (keyFile === '') || (certFile === '' && !hasToken))
    reader.fail(
      certFile === '' ? '--relay-tls-cert' : '--relay-tls-key',
      'is missing: a node needs a certificate and its key, or --relay-token-file',
    )
  return tls
}

/** Refuses flags that mean nothing without another one. */
function refuseIdle(reader: FlagReader, flags: readonly Pick<FlagSpec, 'name'>[], needed: string): void {
  for (const { name } of flags)
    if ((reader.text(name) ?? '') !== '') reader.fail(`--${name}`, `needs ${needed}`)
}

/** An absolute path that a socket can have; empty if the flag is. */
export function readSocketPath(reader: FlagReader): string {
  const path = reader.text('admin-socket') ?? ''
  if (path !== '' && !path.startsWith('/'))
    reader.fail('--admin-socket', `${quote(path)} is not an absolute path`)
  // The size of sun_path without the final zero.
  else if (Buffer.byteLength(path) > 107)
    reader.fail('--admin-socket', "is longer than the 107 bytes that a socket's name may have")
  return path
}

function cidrsOf(reader: FlagReader, flag: string): readonly Cidr[] {
  return readCidrs(reader.list(flag), (index, message) => reader.fail(`--${flag}[${index}]`, message))
}

/** Reads where the web page is served. At an address that other machines reach, it has to demand something of them. */
function readUi(reader: FlagReader): UiConfig | undefined {
  const text = reader.text('ui-address') ?? ''
  const tokenFile = reader.text('ui-token-file') ?? ''
  const tls = readTls(reader, 'ui')
  if (text === '') {
    refuseIdle(reader, UI_FLAGS, '--ui-address, which is not given')
    return undefined
  }
  const read = readBindAddress(/^\d+$/.test(text) ? `127.0.0.1:${text}` : text)
  if ('problem' in read) {
    reader.fail('--ui-address', `${read.problem}; give PORT, IP:PORT or [IP]:PORT`)
    return undefined
  }
  const { address: at } = read
  if (!isLoopback(at.ip) && tokenFile === '' && tls === undefined)
    reader.fail(
      '--ui-address',
      `other machines reach ${quote(text)}: give --ui-token-file, or --ui-tls-cert, --ui-tls-key and --ui-tls-client-ca`,
    )
  return { at, tokenFile, tls }
}

function readApi(reader: FlagReader): ApiConfig | undefined {
  const tls = readApiTls(reader)
  const address = readApiAddress(reader, 'api')
  return address === undefined ? undefined : { address, tls }
}

/** Reports API flags of `kprobe run` that would have no effect. */
export function refuseIdleApi(
  reader: FlagReader,
  { api, ui, once }: Pick<Config, 'api' | 'ui' | 'once'>,
): void {
  if (api !== undefined && once)
    reader.fail('--api', 'cannot be combined with --once, which exits before a client can connect')
  if (ui !== undefined && once)
    reader.fail('--ui-address', 'cannot be combined with --once, which exits before a browser can connect')
  if (api === undefined) refuseIdle(reader, API_TLS_FLAGS, '--api, which is not given')
}

export function defaultApiAddress(serviceProxyName: string | undefined): string {
  return named(DEFAULT_API_ADDRESS, serviceProxyName)
}

/** Gives the admin socket of the daemon of a name, where no flag names another. */
export function defaultAdminSocket(serviceProxyName: string | undefined): string {
  return named(DEFAULT_ADMIN_SOCKET, serviceProxyName)
}

function named(socket: string, serviceProxyName: string | undefined): string {
  return serviceProxyName === undefined ? socket : socket.replace(/\.sock$/, `-${serviceProxyName}.sock`)
}

export function readApiAddress(reader: FlagReader, flag: string): string | undefined {
  const text = reader.text(flag) ?? ''
  if (text === '') return undefined
  try {
    parseApiAddress(text)
  } catch (error) {
    reader.fail(`--${flag}`, errorOf(error).message)
  }
  return text
}

/** Reads the three files of TLS, all or none of which must be set; a relay that takes tokens needs no client CA. */
export function readApiTls(reader: FlagReader): ApiTlsConfig | undefined {
  return readTls(reader, 'api', reader.given('token-service-accounts'))
}

function readTls(reader: FlagReader, server: 'api' | 'ui', takesTokens = false): ApiTlsConfig | undefined {
  const names = ['cert', 'key', 'client-ca'].map(part => `${server}-tls-${part}`)
  const files = names.map(name => reader.text(name) ?? '')
  const [certFile = '', keyFile = '', clientCaFile = ''] = files
  if (files.every(file => file === '')) return undefined
  for (const [index, name] of names.entries())
    if (files[index] === '' && !(takesTokens && name === CLIENT_CA))
      reader.fail(`--${name}`, 'is missing: TLS needs certificate, key and client CA')
  return { certFile, keyFile, clientCaFile }
}

const CLIENT_CA = 'api-tls-client-ca'

const FLAG = 'service-proxy-name'

/** The flag of commands that read only the kernel. */
export const INSTANCE_FLAG = flag(
  `--${FLAG} NAME`,
  'only the objects of the proxy of this name; unset: those of the unnamed proxy',
)

/** Reads --service-proxy-name; undefined for the unnamed proxy. An invalid name is an error of the reader. */
export function readInstanceName(reader: FlagReader): string | undefined {
  const name = reader.text(FLAG) ?? ''
  if (name !== '' && !isDnsLabel(name))
    reader.fail(
      `--${FLAG}`,
      `${quote(name)} is not a DNS label: 1 to 63 lower-case letters, digits and inner hyphens`,
    )
  return name === '' ? undefined : name
}

/** Gives the reason why a named proxy cannot use a mode; undefined if it can. */
export function whyNotInstance(name: string, mode: ProxyMode): string | undefined {
  if (isReserved(name)) return `${quote(name)} is reserved: a table of the unnamed proxy has this name`
  const { notNamed, title } = rowOf(mode)
  if (notNamed === undefined) return undefined
  const others = MODE_ROWS.filter(each => each.notNamed === undefined).map(each => each.title)
  const modes = `${others.slice(0, -1).join(', ')} or ${others.at(-1)}`
  return `cannot be used in ${title} mode: ${notNamed}; use ${modes} mode`
}

/** Tests whether a table of this proxy would have the name of a table of the unnamed proxy. */
function isReserved(name: string): boolean {
  const unnamed = new Set(MODE_ROWS.map(({ tableName }) => tableName(undefined)))
  return MODE_ROWS.some(({ tableName }) => unnamed.has(tableName(name) ?? ''))
}
