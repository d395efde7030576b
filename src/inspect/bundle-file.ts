import { open, rename, rm, stat } from 'node:fs/promises'
import { constants, gzipSync } from 'node:zlib'
import { codeOf } from '../base/errors.ts'
import { bytesText } from '../base/text.ts'
import { lent } from '../cli/io.ts'
import { tarEnd, tarHeader, tarPadding } from './tar.ts'

/** Grows with every change that a reader of older bundles would misread. */
const BUNDLE_FORMAT = 2
/** Maximum bytes of one file of a bundle; a longer one is left out. */
export const FILE_BYTES_MAX = 64 * 1024 * 1024
/** Maximum bytes of all files of a bundle, unpacked; files beyond it are left out. */
export const BUNDLE_BYTES_MAX = 192 * 1024 * 1024
const FOLDER = 'kprobe-bundle'
const MANIFEST = 'manifest.json'
export const RULES_FILE = 'ruleset.txt'
export const OBJECTS_FILE = 'objects.json'

export interface BundleFile {
  readonly name: string
  /** Describes the file to the reader of the manifest. */
  readonly about: string
  readonly data: Buffer
}

export interface Missing {
  readonly name: string
  readonly why: string
}

export interface BundleFacts {
  readonly kprobe: string
  readonly [fact: string]: unknown
}

export interface BundleContent {
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
    // The cause is left out: its message has the name of the draft.
    throw new Error(`cannot write ${path} (${codeOf(error)})`)
  }
}
