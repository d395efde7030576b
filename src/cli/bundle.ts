import { open, readFile, rename, rm, stat } from 'node:fs/promises'
import { constants, gunzipSync, gzipSync } from 'node:zlib'
import { codeOf, errorOf } from '../base/errors.ts'
import { readTar, tarEnd, tarHeader, tarPadding } from '../base/tar.ts'
import { bytesText } from '../base/text.ts'
import { isJson } from '../model/fields.ts'
import { lent } from './io.ts'

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

/** Replaces a file as a whole. Only its owner may read it. Throws an Error that names the file. */
export async function writeBundle(path: string, bytes: Buffer, processId: number): Promise<void> {
  const draft = `${path}.${processId}.tmp`
  try {
    await lent(await open(draft, 'wx', 0o600), async file => {
      await file.writeFile(bytes)
      await file.sync()
    })
    await rename(draft, path)
  } catch (error) {
    await rm(draft, { force: true })
    throw new Error(`cannot write ${path} (${codeOf(error)})`, { cause: error })
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
  if (text === undefined) throw new Error(`is no bundle of kprobe: it has no ${FOLDER}/${MANIFEST}`)
  const manifest = parsed(text, MANIFEST)
  if (!isJson(manifest) || typeof manifest.format !== 'number' || !Array.isArray(manifest.files))
    throw new Error(`is no bundle of kprobe: ${MANIFEST} says nothing of its format`)
  if (manifest.format > BUNDLE_FORMAT)
    throw new Error(
      `has format ${manifest.format}, and this kprobe knows ${BUNDLE_FORMAT}: use kprobe ${String(manifest.kprobe)}, which wrote it`,
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
        ? `takes more than ${bytesText(maxOutputLength)} unpacked, which no bundle does`
        : `is not a complete gzip file: ${error.message}`,
    )
  }
}

/** Files lie in one folder; another path is none of ours, wherever it leads. */
function nameIn(path: string): string {
  const [, name] = /^(?:\.\/)?kprobe-bundle\/([a-z0-9_-]+\.[a-z]+)$/.exec(path) ?? []
  if (name === undefined)
    throw new Error(`is no bundle of kprobe: it has ${JSON.stringify(path.slice(0, 200))}`)
  return name
}

/** Parses a JSON file of a bundle; undefined for one that it lacks. Throws an Error with its name. */
export function jsonIn({ files }: Pick<Bundle, 'files'>, name: string): unknown {
  const data = files.get(name)
  return data === undefined ? undefined : parsed(data, name)
}

function parsed(data: Buffer, name: string): unknown {
  try {
    return JSON.parse(data.toString('utf8'))
  } catch (error) {
    throw new Error(`has a ${name} that is no JSON: ${errorOf(error).message}`)
  }
}
