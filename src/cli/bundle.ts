import { mkdtemp, open, readFile, rename, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { constants, gunzipSync, gzipSync } from 'node:zlib'
import { buildInfo, buildText } from '../base/build-info.ts'
import { systemClock } from '../base/clock.ts'
import { codeOf, errorOf, failureText } from '../base/errors.ts'
import { FAMILIES, formatIp, type Ip, parseIp } from '../base/ip.ts'
import { readTar, tarEnd, tarHeader, tarPadding } from '../base/tar.ts'
import { bytesText } from '../base/text.ts'
import { networkNamespace } from '../daemon/instance-lock.ts'
import { KERNEL } from '../daemon/open.ts'
import type { HttpServer } from '../http/server.ts'
import { BITMAP_ELEMENTS_MAX, type IpsetEntry, setTypeOf } from '../kernel/ipset/state.ts'
import type { HeldIpset, HeldServer, IpvsHeld } from '../kernel/ipvs/state.ts'
import type { Listener } from '../kernel/socket/listeners.ts'
import { isJson, type Json } from '../model/fields.ts'
import { MODE_DEVICE } from '../modes/registry.ts'
import { type OutsideHeld, readIpvs, withOutside } from '../proof/kernel-rules.ts'
import { openAdminServer } from '../telemetry/admin-server.ts'
import { type Io, lent } from './io.ts'
import { readListeners } from './programmed.ts'

/** Grows with every change that an older `kprobe replay` would read wrongly. */
export const BUNDLE_FORMAT = 1
/** Maximum bytes of one file of a bundle; a longer one is left out. */
export const FILE_BYTES_MAX = 64 * 1024 * 1024
/** Maximum bytes of all files of a bundle, unpacked; files beyond it are left out. */
export const BUNDLE_BYTES_MAX = 192 * 1024 * 1024
/** Room for headers and for the manifest. */
const OVERHEAD_BYTES = 1024 * 1024
const FOLDER = 'kprobe-bundle'
const MANIFEST = 'manifest.json'
export const RULES_FILE = 'nf_tables.bin'

export interface BundleFile {
  readonly name: string
  /** What it is, for the reader of the manifest. */
  readonly about: string
  readonly data: Buffer
}

/** A file that a bundle lacks. */
export interface Missing {
  readonly name: string
  readonly why: string
}

/** Facts about a bundle as a whole. */
export interface BundleFacts {
  /** The build that wrote it. */
  readonly kprobe: string
  readonly [fact: string]: unknown
}

interface BundleContent {
  readonly facts: BundleFacts
  readonly files: readonly BundleFile[]
  readonly missing: readonly Missing[]
}

/** Encodes a bundle, and leaves out what exceeds the bounds: the first files are the most important. */
export function encodeBundle({ facts, files, missing }: BundleContent): {
  readonly bytes: Buffer
  readonly missing: readonly Missing[]
} {
  const kept: BundleFile[] = []
  const without = [...missing]
  let bytes = 0
  for (const file of files) {
    const { length } = file.data
    const bound = length > FILE_BYTES_MAX ? FILE_BYTES_MAX : BUNDLE_BYTES_MAX
    const isFitting = length <= FILE_BYTES_MAX && bytes + length <= BUNDLE_BYTES_MAX
    if (isFitting) {
      kept.push(file)
      bytes += length
    } else
      without.push({ name: file.name, why: `${bytesText(length)} exceed the bound of ${bytesText(bound)}` })
  }
  const manifest = {
    format: BUNDLE_FORMAT,
    ...facts,
    bounds: { fileBytesMax: FILE_BYTES_MAX, bundleBytesMax: BUNDLE_BYTES_MAX },
    files: kept.map(({ name, about, data }) => ({ name, bytes: data.length, about })),
    missing: without,
  }
  const text = Buffer.from(`${JSON.stringify(manifest, undefined, 2)}\n`)
  const parts = [{ name: MANIFEST, data: text }, ...kept].flatMap(({ name, data }) => [
    tarHeader({ kind: 'file', path: `${FOLDER}/${name}`, mode: 0o600, size: data.length }),
    data,
    tarPadding(data.length),
  ])
  const tar = Buffer.concat([...parts, tarEnd()])
  return { bytes: gzipSync(tar, { level: constants.Z_DEFAULT_COMPRESSION }), missing: without }
}

/** Replaces a file as a whole; only its owner may read it. Writes to a device or a pipe as it is. Throws an Error that names the file. */
export async function writeBundle(path: string, bytes: Buffer, processId: number): Promise<void> {
  const draft = `${path}.${processId}.tmp`
  const found = await stat(path).catch(() => undefined)
  const isReplaced = found === undefined || found.isFile()
  try {
    await lent(await (isReplaced ? open(draft, 'wx', 0o600) : open(path, 'w')), async file => {
      await file.writeFile(bytes)
      if (isReplaced) await file.sync()
    })
    if (isReplaced) await rename(draft, path)
  } catch (error) {
    if (isReplaced) await rm(draft, { force: true })
    // Without the cause, whose message has the name of the draft.
    throw new Error(`cannot write ${path} (${codeOf(error)})`)
  }
}

/** A bundle that was read, in memory. */
export interface Bundle {
  readonly manifest: Readonly<Record<string, unknown>>
  /** By name. */
  readonly files: ReadonlyMap<string, Buffer>
}

/** Reads a bundle that anybody may have made. Writes nothing. Throws an Error that says what is wrong with it. */
export async function readBundle(path: string): Promise<Bundle> {
  const found = await stat(path)
  if (!found.isFile()) throw new Error('is not a regular file')
  const max = BUNDLE_BYTES_MAX + OVERHEAD_BYTES
  if (found.size > max) throw new Error(`is longer than ${bytesText(max)}`)
  return decodeBundle(await readFile(path))
}

/** Decodes a bundle; pure. Throws an Error that says what is wrong with it. */
export function decodeBundle(bytes: Buffer): Bundle {
  const files = new Map<string, Buffer>()
  for (const { path, data } of readTar(unpacked(bytes))) {
    const name = nameIn(path)
    if (files.has(name)) throw new Error(`has two files ${JSON.stringify(name)}`)
    files.set(name, data)
  }
  const text = files.get(MANIFEST)
  if (text === undefined) throw new Error(`is not a kprobe bundle: it lacks ${FOLDER}/${MANIFEST}`)
  if (text.length > OVERHEAD_BYTES) throw new Error(`has a ${MANIFEST} of ${bytesText(text.length)}`)
  const manifest = parsed(text, MANIFEST)
  if (!isJson(manifest) || typeof manifest.format !== 'number' || !Array.isArray(manifest.files))
    throw new Error(`is not a kprobe bundle: ${MANIFEST} has no format`)
  if (manifest.format > BUNDLE_FORMAT)
    throw new Error(
      `has format ${manifest.format}, and this kprobe reads ${BUNDLE_FORMAT}: use kprobe ${String(manifest.kprobe)}, which wrote it`,
    )
  for (const { name, bytes } of manifest.files.filter(isJson)) {
    const length = files.get(String(name))?.length
    if (length !== bytes) throw new Error(`lacks ${String(name)}, or a part of it: the archive is damaged`)
  }
  return { manifest, files }
}

function unpacked(bytes: Buffer): Buffer {
  const maxOutputLength = BUNDLE_BYTES_MAX + OVERHEAD_BYTES
  try {
    return gunzipSync(bytes, { maxOutputLength })
  } catch (thrown) {
    const error = errorOf(thrown)
    const isTooLong = 'code' in error && error.code === 'ERR_BUFFER_TOO_LARGE'
    throw new Error(
      isTooLong
        ? `is larger than ${bytesText(maxOutputLength)} unpacked, the maximum of a bundle`
        : `is not a complete gzip file: ${error.message}`,
    )
  }
}

/** Files lie in one folder; another path is none of ours, wherever it leads. */
function nameIn(path: string): string {
  const [, name] = /^(?:\.\/)?kprobe-bundle\/([a-z0-9_-]+\.[a-z]+)$/.exec(path) ?? []
  if (name === undefined)
    throw new Error(`is not a kprobe bundle: it has ${JSON.stringify(path.slice(0, 200))}`)
  return name
}

/** Parses a JSON file of a bundle; undefined for one that it lacks. Throws an Error with its name. */
export function jsonIn({ files }: Pick<Bundle, 'files'>, name: string): unknown {
  const data = files.get(name)
  return data === undefined ? undefined : parsed(data, name)
}

/** Values of one JSON file: those of 32,000 Services of ten endpoints. A short text of many values takes 40 times its bytes. */
const VALUES_MAX = 3 * 1024 * 1024
const [COMMA, BRACE, BRACKET] = [0x2c, 0x7b, 0x5b]

function parsed(data: Buffer, name: string): unknown {
  let values = 0
  for (const byte of data) if (byte === COMMA || byte === BRACE || byte === BRACKET) values++
  if (values > VALUES_MAX) throw new Error(`has a ${name} of more than ${VALUES_MAX} values`)
  try {
    return JSON.parse(data.toString('utf8'))
  } catch (error) {
    throw new Error(`has a ${name} that is not JSON: ${errorOf(error).message}`)
  }
}

/* kernel.json of a bundle: what decides about packets outside of nf_tables. */

export const KERNEL_FILE = 'kernel.json'

/** Reads the file. What this kernel lacks is named in it. */
export async function kernelText(): Promise<string> {
  return await withOutside(KERNEL, { clock: systemClock, device: MODE_DEVICE }, async clients => {
    let held: OutsideHeld | undefined
    let lacking: string | undefined
    try {
      held = await readIpvs(clients)
    } catch (error) {
      lacking = failureText(error)
    }
    const ownAddresses = held?.ownAddresses ?? (await clients.ownAddresses.read())
    return JSON.stringify({
      addresses: (held?.addresses ?? ownAddresses).map(formatIp),
      ownAddresses: ownAddresses.map(formatIp),
      listeners: readListeners()?.map(({ protocol, ip, port }) => ({ protocol, ip: formatIp(ip), port })),
      ...(lacking === undefined ? {} : { lacking }),
      ...(held && { ipsets: held.ipsets.map(its => ipsetJson(its, clients.names.indexOf(its.set.name))) }),
      ...(held && { servers: held.servers.map(serverJson) }),
    })
  })
}

function ipsetJson({ set: { name, ...set }, entries }: HeldIpset, index: number | undefined): Json {
  return {
    set: name,
    index,
    ...set,
    entries: entries.map(({ ip, ip2, ...rest }) => ({
      ...rest,
      ...(ip === undefined ? {} : { ip: formatIp(ip) }),
      ...(ip2 === undefined ? {} : { ip2: formatIp(ip2) }),
    })),
  }
}

function serverJson({ server, destinations }: HeldServer): Json {
  return {
    ...server,
    ip: formatIp(server.ip),
    destinations: destinations.map(its => ({ ...its, ip: formatIp(its.ip) })),
  }
}

/** What a bundle says of the kernel beside nf_tables. */
export interface OutsideFile {
  /** Addresses of this machine without those of Services; undefined in a bundle of an older build. */
  readonly ownAddresses: readonly Ip[] | undefined
  /** Undefined where the kernel had no IPVS or no ipsets, or in a bundle of an older build. */
  readonly ipvs: IpvsHeld | undefined
  /** Names of ipsets, by the kernel's number. */
  readonly names: ReadonlyMap<number, string>
  /** Why there is no IPVS. */
  readonly lacking: string
  /** Of all processes; none in a bundle of an older build. */
  readonly listeners: readonly HeldListener[]
}

/** Where a process of the node accepts connections. */
export type HeldListener = Pick<Listener, 'protocol' | 'ip' | 'port'>

/** Reads what a bundle has. Throws an Error that says what is wrong with it. */
export function outsideIn(bundle: Bundle): OutsideFile {
  const value = jsonIn(bundle, KERNEL_FILE)
  const names = new Map<number, string>()
  const lacking = `it has no ${KERNEL_FILE}`
  if (value === undefined) return { ownAddresses: undefined, ipvs: undefined, names, lacking, listeners: [] }
  const file = record(value)
  const ownAddresses = list(file.ownAddresses).map(address)
  const listeners = list(file.listeners ?? []).map(listenerOf)
  if (file.servers === undefined || file.ipsets === undefined)
    return { ownAddresses, ipvs: undefined, names, lacking: String(file.lacking), listeners }
  const ipsets = list(file.ipsets).map((each): HeldIpset => {
    const { set, index, type, family, maxElements, hashSize, entries: written } = record(each)
    const known = setTypeOf(text(type))
    const ofFamily = FAMILIES.find(its => its === family)
    if (known === undefined || ofFamily === undefined) throw wrong()
    if (index !== undefined) names.set(number(index), text(set))
    const entries = list(written).map(entryOf)
    // Bundles of older builds do not say sizes.
    const size = 2 ** Math.ceil(Math.log2(Math.max(entries.length, BITMAP_ELEMENTS_MAX)))
    const sizes = { maxElements: number(maxElements ?? size), hashSize: number(hashSize ?? 1_024) }
    return { set: { name: text(set), type: known, family: ofFamily, ...sizes }, entries }
  })
  const servers = list(file.servers).map(serverOf)
  return {
    ownAddresses,
    ipvs: { ipsets, servers, addresses: list(file.addresses).map(address) },
    names,
    lacking: '',
    listeners,
  }
}

function listenerOf(value: unknown): HeldListener {
  const { protocol, ip, port } = record(value)
  if (protocol !== 'TCP' && protocol !== 'UDP') throw wrong()
  return { protocol, ip: address(ip), port: number(port) }
}

function entryOf(value: unknown): IpsetEntry {
  const { ip, protocol, port, ip2, prefix2, nomatch } = record(value)
  if (nomatch !== undefined && nomatch !== true) throw wrong()
  return {
    ...(ip === undefined ? {} : { ip: address(ip) }),
    ...(protocol === undefined ? {} : { protocol: number(protocol) }),
    ...(port === undefined ? {} : { port: number(port) }),
    ...(ip2 === undefined ? {} : { ip2: address(ip2) }),
    ...(prefix2 === undefined ? {} : { prefix2: number(prefix2) }),
    ...(nomatch === undefined ? {} : { nomatch: true }),
  }
}

function serverOf(value: unknown): HeldServer {
  const { protocol, ip, port, scheduler, flags, timeoutS, netmask, destinations } = record(value)
  const known = (['TCP', 'UDP', 'SCTP'] as const).find(its => its === protocol)
  if (known === undefined) throw wrong()
  return {
    server: {
      protocol: known,
      ip: address(ip),
      port: number(port),
      scheduler: text(scheduler),
      flags: number(flags),
      timeoutS: number(timeoutS),
      netmask: number(netmask),
    },
    destinations: list(destinations).map(each => {
      const its = record(each)
      return {
        ip: address(its.ip),
        port: number(its.port),
        weight: number(its.weight),
        forwarding: number(its.forwarding),
      }
    }),
  }
}

function wrong(): Error {
  return new Error(`has a ${KERNEL_FILE} that kprobe did not write`)
}

function record(value: unknown): Json {
  if (!isJson(value)) throw wrong()
  return value
}

function list(value: unknown): readonly unknown[] {
  if (!Array.isArray(value)) throw wrong()
  return value
}

function text(value: unknown): string {
  if (typeof value !== 'string') throw wrong()
  return value
}

function number(value: unknown): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < 0 || value > 0xffff_ffff) throw wrong()
  return value
}

function address(value: unknown): Ip {
  const ip = parseIp(text(value))
  if (ip === undefined) throw wrong()
  return ip
}

/** Reads a bundle. Throws an Error with its path. */
export async function openBundle(path: string): Promise<Bundle> {
  try {
    return await readBundle(path)
  } catch (error) {
    if (error instanceof Error && 'code' in error) throw new Error(`cannot read ${path} (${codeOf(error)})`)
    throw new Error(`${path}: ${failureText(error)}`)
  }
}

export function recordIn(bundle: Bundle, name: string): Readonly<Record<string, unknown>> {
  const value = jsonIn(bundle, name)
  return isJson(value) ? value : {}
}

/** Answers for the daemon of the bundle, at a socket that only this process's user can reach, while `use` runs. */
export async function withDaemon(
  bundle: Bundle,
  { io, remedy }: { readonly io: Io; readonly remedy: string },
  use: (socket: string) => Promise<number>,
): Promise<number> {
  const names = ['config', 'snapshot', 'state', 'receipts', 'plan', 'debug'].map(page => `${page}.json`)
  const lacking = names.slice(0, 2).filter(name => jsonIn(bundle, name) === undefined)
  if (lacking.length > 0)
    throw new Error(
      `the bundle has no ${lacking.join(' and no ')}: no daemon answered when it was made; ${remedy}`,
    )
  const config = {
    ...recordIn(bundle, 'config.json'),
    version: buildText(buildInfo()),
    network: await networkNamespace(),
  }
  const folder = await mkdtemp(join(tmpdir(), 'kprobe-replay-'))
  const path = join(folder, 'admin.sock')
  let server: HttpServer | undefined
  try {
    await new Promise<void>((listening, fail) => {
      io.signal.addEventListener('abort', () => fail(new Error('interrupted')), { once: true })
      server = openAdminServer({
        path,
        clock: systemClock,
        report: news => {
          if (news.kind === 'listening') listening()
          if (news.kind === 'failed') fail(news.error)
        },
        config: () => config,
        snapshot: () => jsonIn(bundle, 'snapshot.json'),
        state: () => jsonIn(bundle, 'state.json'),
        receipts: () => jsonIn(bundle, 'receipts.json'),
        plan: () => jsonIn(bundle, 'plan.json'),
        debug: () => jsonIn(bundle, 'debug.json'),
        // No command of replay asks for these.
        services: () => [],
        status: () => ({}),
      })
    })
    return await use(path)
  } finally {
    await server?.close()
    await rm(folder, { recursive: true, force: true })
  }
}
