import { constants } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { type Clock, Slice, slicingOf } from '../../base/clock.ts'
import { errorOf } from '../../base/errors.ts'
import { readToEnd } from '../../base/octets.ts'
import { isJson, type Json, printable, type Refusal } from '../../model/fields.ts'
import type { SourceEvent } from '../../model/snapshot.ts'
import { JsonItems, JsonTextError } from '../json-items.ts'
import { partsIn } from '../object-cap.ts'
import { REFUSALS_MAX } from '../source.ts'
import { isListKind, unknownIn } from './object-doubts.ts'
import { YamlTextError, yamlDocuments } from './yaml-documents.ts'

export type ObjectEvent = Exclude<SourceEvent, { readonly kind: 'LocalIps' }>

export interface FileObjects {
  /** The events, keyed by `Kind/key`. */
  readonly objects: Map<string, ObjectEvent>
  readonly refusals: readonly Refusal[]
  /** The first WARNINGS_MAX unknown fields, unknown kinds and repeated objects, and one for all further ones. */
  readonly warnings: readonly FileWarning[]
  readonly otherKinds: ReadonlySet<string>
  /** The first names of Nodes that are not this node's. */
  readonly otherNodes: ReadonlySet<string>
  readonly bytes: number
  /** The number of parts, as ReadOptions.partsMax counts. */
  readonly parts: number
}

export interface FileWarning {
  readonly kind: 'duplicate' | 'doubtful'
  /** The line on which the object begins, or its List; from 1. */
  readonly line: number
  readonly text: string
}

/** A file of another kind can be wrong in thousands of places. */
const WARNINGS_MAX = 20
const MORE_WARNINGS = 'there are further warnings about this file from this line on'
/** Other kinds, and names of other Nodes, that messages may name. */
const OTHERS_MAX = 10

/** Gives an event, a refusal of the whole object, or undefined for kinds that mean nothing here. */
export type ParseObject = (object: unknown) => SourceEvent | Refusal | undefined

interface ReadOptions {
  readonly parseObject: ParseObject
  readonly clock: Clock
  /** Maximum parts of all objects, see partsOf(): more is a FileError. */
  readonly partsMax?: number
  /** Aborted when the caller no longer waits for the result: reading ends with a FileError. */
  readonly signal?: AbortSignal
}

interface FileErrorOptions {
  readonly position?: string
  readonly passing?: boolean
  readonly cause?: unknown
}

/** A file that cannot be used now. */
export class FileError extends Error {
  override readonly name = 'FileError'
  /** `:3:15` (line and column, from 1), `:3`, or empty: ready to stand behind the file's name. */
  readonly position: string
  /** True for errors of the system, not of the content: the next attempt at the same file may succeed. */
  readonly passing: boolean

  constructor(message: string, options: FileErrorOptions = {}) {
    super(message, { cause: options.cause })
    this.position = options.position ?? ''
    this.passing = options.passing ?? false
  }
}

/** Above what etcd lets an object be (1.5 MiB). */
const JSON_OBJECT_BYTES_MAX = 4 * 1024 * 1024
/** The text is held whole. */
const YAML_BYTES_MAX = 64 * 1024 * 1024

/** Reads all objects of a file, in slices between which the event loop breathes. Throws FileError. */
export async function readObjects(path: string, options: ReadOptions): Promise<FileObjects> {
  const collector = new Collector(options)
  let handle: FileHandle | undefined
  try {
    // Without O_NONBLOCK, a FIFO without a writer holds up a thread.
    handle = await open(path, constants.O_RDONLY | constants.O_NONBLOCK)
    const stats = await handle.stat()
    if (!stats.isFile() && !stats.isDirectory()) throw new FileError('not a regular file')
    if (path.endsWith('.json')) await readJson(handle, collector)
    else await readYaml(handle, stats.size, collector)
    return collector
  } catch (error) {
    throw fileError(error)
  } finally {
    await handle?.close()
  }
}

async function readJson(handle: FileHandle, collector: Collector): Promise<void> {
  const stream = new JsonItems(JSON_OBJECT_BYTES_MAX)
  // A piece is parsed in a few milliseconds.
  const chunk = Buffer.allocUnsafe(256 * 1024)
  let items: { readonly value: unknown; readonly line: number }[] = []
  for (;;) {
    const { bytesRead } = await handle.read(chunk)
    if (bytesRead === 0) break
    collector.bytes += bytesRead
    for (const { kind, bytes, line } of stream.push(chunk.subarray(0, bytesRead))) {
      const value = parseJson(bytes.toString('utf8'), line)
      if (kind === 'document') {
        for (const item of items) {
          collector.take(ofList(item.value, value), item.line)
          await collector.breathe()
        }
        items = []
        collector.take(value, line)
      } else if (isJson(value) && typeof value.kind === 'string') collector.take(value, line)
      // Items of a typed list (ServiceList) may bear no kind: the list's own implies it, and comes with the envelope.
      else items.push({ value, line })
      await collector.breathe()
    }
  }
  const { unfinished } = stream
  if (unfinished === undefined) return
  const message = `the file ends in the middle of the object that begins at line ${unfinished.from}`
  throw new JsonTextError(message, unfinished.at)
}

/** Parses an object that begins on this line. Throws JsonTextError. */
export function parseJson(text: string, line: number): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    const position = /at position (\d+)/.exec(message)?.[1]
    const before = text.slice(0, position === undefined ? 0 : Number(position))
    const lines = before.match(/\n/g)?.length ?? 0
    // V8 quotes the text and counts from the element's beginning, or names no position.
    const plain = message.replace(/,? (\.\.\.)?".*is not valid JSON$| in JSON at position.*$/s, '')
    throw new JsonTextError(
      `invalid JSON: ${plain}, in the object that begins at line ${line}`,
      line + lines,
      error,
    )
  }
}

async function readYaml(handle: FileHandle, size: number, collector: Collector): Promise<void> {
  const text = await readText(handle, size)
  collector.bytes = Buffer.byteLength(text)
  for (const { value, line } of yamlDocuments(text)) {
    for (const item of itemsOf(value)) {
      collector.take(item, line)
      await collector.breathe()
    }
    if (value !== null && value !== undefined) collector.take(value, line)
    await collector.breathe()
  }
}

/** The size is what the file had when it was opened: a file that grows meanwhile is read no further than any other. */
async function readText(handle: FileHandle, size: number): Promise<string> {
  const text = await readToEnd(handle, YAML_BYTES_MAX, size)
  if (text !== undefined) return text.toString('utf8')
  const bytes = size > YAML_BYTES_MAX ? `${size}` : `more than ${YAML_BYTES_MAX}`
  throw new FileError(
    `the file has ${bytes} bytes, and ${YAML_BYTES_MAX} of YAML are read; JSON may be longer`,
  )
}

function itemsOf(list: unknown): readonly unknown[] {
  if (!isJson(list) || !isList(list)) return []
  const items = list.items ?? []
  if (!Array.isArray(items)) throw new FileError(`items of a ${String(list.kind)} must be a list`)
  return items.map(item => ofList(item, list))
}

function isList(value: Json): boolean {
  return isListKind(value.kind)
}

/** An item with the kind that its typed list implies: `Service` in a ServiceList. */
function ofList(item: unknown, list: unknown): unknown {
  if (!isJson(item) || item.kind !== undefined || !isJson(list) || !isList(list)) return item
  const kind = String(list.kind).slice(0, -'List'.length)
  return { apiVersion: list.apiVersion, kind, ...item }
}

/** Gathers the content of a file, and limits the time for it. */
class Collector implements FileObjects {
  readonly #options: ReadOptions
  readonly objects = new Map<string, ObjectEvent>()
  readonly refusals: Refusal[] = []
  readonly warnings: FileWarning[] = []
  readonly otherKinds = new Set<string>()
  readonly otherNodes = new Set<string>()
  readonly #slice: Slice
  parts = 0
  bytes = 0

  constructor(options: ReadOptions) {
    this.#options = options
    this.#slice = new Slice(slicingOf(options.clock))
  }

  take(object: unknown, line: number): void {
    if (!isJson(object)) throw new FileError('an object was expected, with apiVersion and kind')
    for (const text of unknownIn(object)) this.#warn({ kind: 'doubtful', line, text })
    if (isList(object)) return
    const result = this.#options.parseObject(object)
    if (result === undefined) {
      this.#skip(object)
      return
    }
    if (!('kind' in result)) {
      if (this.refusals.length < REFUSALS_MAX) this.refusals.push(result)
    }
    // A Node without a value is another node's.
    else if (result.kind === 'Node' && result.value === undefined) {
      this.#skip(object)
      if (this.otherNodes.size < OTHERS_MAX) this.otherNodes.add(result.key)
    } else if (result.kind !== 'LocalIps' && result.value !== undefined) this.#add(result, line)
  }

  #skip({ kind }: Json): void {
    if (this.otherKinds.size < OTHERS_MAX) this.otherKinds.add(printable(kind))
  }

  async breathe(): Promise<void> {
    if (!this.#slice.isOver) return
    await this.#slice.next()
    if (this.#options.signal?.aborted === true) throw new FileError('interrupted')
  }

  #warn(warning: FileWarning): void {
    if (this.warnings.length < WARNINGS_MAX) this.warnings.push(warning)
    else if (this.warnings.length === WARNINGS_MAX) this.warnings.push({ ...warning, text: MORE_WARNINGS })
  }

  #add(event: ObjectEvent, line: number): void {
    const id = `${event.kind}/${event.key}`
    if (this.objects.has(id)) {
      const text = `${id} is in this file more than once; the first one counts`
      this.#warn({ kind: 'duplicate', line, text })
      return
    }
    this.objects.set(id, event)
    this.parts += partsIn(event)
    const { partsMax = Number.POSITIVE_INFINITY } = this.#options
    if (this.parts > partsMax) throw new FileError(tooMany(this.objects.size, partsMax))
  }
}

function tooMany(objects: number, partsMax: number): string {
  const what = `${objects} objects with their ports, addresses and endpoints`
  return `too large for the memory limit: ${what} are more than ${partsMax} parts; raise the memory limit`
}

function fileError(error: unknown): Error {
  if (error instanceof FileError) return error
  if (error instanceof YamlTextError)
    return new FileError(error.message, { position: `:${error.line}:${error.column}`, cause: error })
  if (error instanceof JsonTextError)
    return new FileError(error.message, { position: `:${error.line}`, cause: error })
  if (error instanceof Error && 'code' in error && 'syscall' in error)
    return new FileError(`${String(error.syscall)}: ${String(error.code)}`, { passing: true, cause: error })
  // Limits of Node.js on one piece.
  if (error instanceof Error && 'code' in error) return new FileError(error.message, { cause: error })
  // A bug of ours, not of the file.
  return errorOf(error)
}
