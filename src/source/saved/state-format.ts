import { createHash, type Hash } from 'node:crypto'
import { Pauses, type Steps } from '../../base/clock.ts'
import { errorOf } from '../../base/errors.ts'
import { isJson, type Json } from '../../model/fields.ts'
import { savedEvent, savedObjects } from '../../model/saved-objects.ts'
import {
  applyEventsInSteps,
  EMPTY_SNAPSHOT,
  type Snapshot,
  type SnapshotEvent,
  ValuePool,
} from '../../model/snapshot.ts'

/*
 * A saved state is lines of JSON: a header with the version and the owner, an object a line, and a last line with the
 * SHA-256 of all lines before it. Every cut and every changed byte is found by that line.
 */

/** The first fields of every version, in this order: what another version means by the rest is not read. */
const KIND = 'saved-state'
/** Changes with every change of what an object of a Snapshot consists of; a test compares. */
export const STATE_VERSION = 1
/** A larger state is neither written nor read: 10,000 Services with 100,000 endpoints take a fifth of it. */
export const STATE_BYTES_MAX = 64 << 20
const CHUNK_CHARS = 64 << 10
const HASH_BYTES = 1 << 20

/** Whose state it is. Another node, proxy or cluster has other Services at the same addresses. */
export interface StateOwner {
  readonly node: string
  /** Empty for the unnamed proxy. */
  readonly proxy: string
  /** URL of the API server. */
  readonly server: string
  /** SHA-256 of each certificate that vouches for the API server; empty where the configuration names none. */
  readonly authorities: readonly string[]
}

/** Why a saved state is not used. */
type RefusalReason =
  | 'foreign'
  | 'torn'
  | 'version'
  | 'node'
  | 'proxy'
  | 'cluster'
  | 'too-large'
  | 'permissions'
  | 'unreadable'

/** A saved state that must not be used, or cannot be written. */
export class SavedStateError extends Error {
  override readonly name = 'SavedStateError'
  readonly reason: RefusalReason

  constructor(reason: RefusalReason, message: string, options?: ErrorOptions) {
    super(message, options)
    this.reason = reason
  }
}

interface StateHeader {
  readonly owner: StateOwner
  /** RFC 3339, for people: the time of the file itself says when the state was confirmed last. */
  readonly savedAt: string
}

/** Gives the file in chunks of about 64 KiB. Throws SavedStateError where it would be larger. */
export function* stateChunks(
  { owner, savedAt }: StateHeader,
  snapshot: Snapshot,
  bytesMax = STATE_BYTES_MAX,
): Generator<Buffer> {
  const hash = createHash('sha256')
  const { node, proxy, server, authorities } = owner
  let text = line({ kprobe: KIND, version: STATE_VERSION, savedAt, node, proxy, server, authorities })
  let bytes = 0
  const chunk = (): Buffer => {
    const made = Buffer.from(text)
    text = ''
    bytes += made.length
    if (bytes > bytesMax) throw new SavedStateError('too-large', tooLarge(bytes, bytesMax))
    return made
  }
  for (const object of savedObjects(snapshot)) {
    text += line(object)
    if (text.length < CHUNK_CHARS) continue
    const made = chunk()
    hash.update(made)
    yield made
  }
  hash.update(text)
  text += line({ sha256: hash.digest('hex') })
  yield chunk()
}

export function tooLarge(bytes: number, bytesMax = STATE_BYTES_MAX): string {
  return `${bytes} B are more than the ${bytesMax} B that a saved state may have`
}

function line(value: unknown): string {
  return `${JSON.stringify(value)}\n`
}

/** Reads a file that stateChunks() has made for this owner. Throws SavedStateError. */
export function* readState(bytes: Buffer, owner: StateOwner): Steps<Snapshot> {
  const header = readHeader(bytes)
  const end = yield* checkedEnd(bytes)
  checkOwner(header, owner)
  try {
    return yield* applyEventsInSteps(EMPTY_SNAPSHOT, yield* eventsIn(bytes, end))
  } catch (thrown) {
    throw new SavedStateError('foreign', 'it holds something else than objects of a kprobe', {
      cause: errorOf(thrown),
    })
  }
}

/** The first bytes of every version. */
const MAGIC = JSON.stringify({ kprobe: KIND }).slice(0, -1)

function readHeader(bytes: Buffer): Json {
  if (!MAGIC.startsWith(bytes.toString('latin1', 0, MAGIC.length)))
    throw new SavedStateError('foreign', 'it is not a saved state of kprobe')
  const header = jsonLine(bytes, 0, bytes.indexOf('\n'))
  if (header === undefined) throw torn()
  if (header.version !== STATE_VERSION)
    throw new SavedStateError(
      'version',
      `it has the format ${JSON.stringify(header.version)}, and this kprobe reads ${STATE_VERSION}`,
    )
  return header
}

function torn(): SavedStateError {
  return new SavedStateError('torn', 'it is incomplete or damaged: its checksum does not match')
}

/** The end of the lines that the last one vouches for. */
function* checkedEnd(bytes: Buffer): Steps<number> {
  const end = bytes.length < 2 ? 0 : bytes.lastIndexOf('\n', bytes.length - 2) + 1
  const hash = createHash('sha256')
  yield* hashed(hash, bytes.subarray(0, end))
  if (bytes.toString('utf8', end) !== line({ sha256: hash.digest('hex') })) throw torn()
  return end
}

function* hashed(hash: Hash, bytes: Buffer): Steps<void> {
  for (let at = 0; at < bytes.length; at += HASH_BYTES) {
    hash.update(bytes.subarray(at, at + HASH_BYTES))
    yield
  }
}

function checkOwner(header: Json, owner: StateOwner): void {
  const { node, proxy, server, authorities } = header
  if (node !== owner.node)
    throw new SavedStateError('node', `it is of the node ${JSON.stringify(node)}, and this is ${owner.node}`)
  if (proxy !== owner.proxy)
    throw new SavedStateError('proxy', `it is of ${proxyText(proxy)}, and this is ${proxyText(owner.proxy)}`)
  if (server !== owner.server)
    throw new SavedStateError(
      'cluster',
      `it is of the API server ${JSON.stringify(server)}, and this node uses ${owner.server}`,
    )
  const known: readonly unknown[] = Array.isArray(authorities) ? authorities : []
  const isSame =
    known.length === 0 ? owner.authorities.length === 0 : owner.authorities.some(each => known.includes(each))
  if (!isSame)
    throw new SavedStateError(
      'cluster',
      `it is of another cluster: ${owner.server} has another certificate authority there`,
    )
}

function proxyText(proxy: unknown): string {
  return proxy === '' ? 'the unnamed proxy' : `the proxy ${JSON.stringify(proxy)}`
}

function* eventsIn(bytes: Buffer, end: number): Steps<readonly SnapshotEvent[]> {
  const pool = new ValuePool()
  const events: SnapshotEvent[] = []
  const pauses = new Pauses()
  for (let at = bytes.indexOf('\n') + 1; at < end; ) {
    const next = bytes.indexOf('\n', at)
    const event = savedEvent(jsonLine(bytes, at, next), pool)
    events.push(event)
    if (pauses.due(event.kind === 'EndpointSlice' ? 1 + (event.value?.endpoints.length ?? 0) : 1)) yield
    at = next + 1
  }
  return events
}

/** The mapping in these bytes; undefined for anything else. */
function jsonLine(bytes: Buffer, from: number, to: number): Json | undefined {
  if (to < from) return undefined
  try {
    const value: unknown = JSON.parse(bytes.toString('utf8', from, to))
    return isJson(value) ? value : undefined
  } catch {
    return undefined
  }
}
