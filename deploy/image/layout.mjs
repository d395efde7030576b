// Writes an OCI image: layers (tar), configuration, manifest, index; as a folder, or as one file that `ctr images import`,
// `docker load` and `skopeo` read. Same input, same bytes: nothing here reads a clock, an owner or the order of a folder.
import { createHash } from 'node:crypto'
import { createReadStream, createWriteStream, mkdirSync, renameSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { Readable, Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createGzip } from 'node:zlib'
import { loadSource } from '../load-source.mjs'

const MEDIA = {
  index: 'application/vnd.oci.image.index.v1+json',
  manifest: 'application/vnd.oci.image.manifest.v1+json',
  config: 'application/vnd.oci.image.config.v1+json',
  layer: 'application/vnd.oci.image.layer.v1.tar',
}

/**
 * @typedef {object} Entry A file of an image.
 * @property {'file'|'link'|'folder'} kind
 * @property {string} path From the root of the image, without a slash before it or behind it.
 * @property {number} mode
 * @property {Buffer} [data] The content of a file, or else `from`.
 * @property {string} [from] Path of a file here with the content.
 * @property {string} [target] Of a link.
 */

/** Entries in the order of their paths, with the folders that they lie in. */
export function withFolders(entries) {
  const all = new Map()
  for (const entry of entries)
    for (let path = dirname(entry.path); path !== '.'; path = dirname(path))
      all.set(path, { kind: 'folder', path, mode: 0o755 })
  for (const entry of entries) all.set(entry.path, entry)
  return [...all.values()].sort((a, b) => (a.path < b.path ? -1 : 1))
}

export function sizeOf({ kind, data, from }) {
  if (kind !== 'file') return 0
  return data === undefined ? statSync(from).size : data.length
}

/** The bytes of a tar file with these entries, in their order. */
async function* tarOf(entries) {
  const { tarHeader, tarPadding, tarEnd } = await loadSource('src/inspect/tar.ts')
  for (const entry of entries) {
    const size = sizeOf(entry)
    yield tarHeader({ ...entry, size })
    if (entry.kind !== 'file') continue
    if (entry.data !== undefined) yield entry.data
    else yield* createReadStream(entry.from, { highWaterMark: 1 << 20 })
    yield tarPadding(size)
  }
  yield tarEnd()
}

/** Passes bytes on, and knows their digest and number at the end. */
class Measure extends Transform {
  #hash = createHash('sha256')
  size = 0

  _transform(chunk, _, done) {
    this.#hash.update(chunk)
    this.size += chunk.length
    done(null, chunk)
  }

  digest() {
    return `sha256:${this.#hash.digest('hex')}`
  }
}

/** Writes one layer among the blobs in `folder`. */
async function writeLayer(folder, { entries, about }, { compress }) {
  const [plain, stored] = [new Measure(), new Measure()]
  const path = join(folder, 'new')
  const steps = [Readable.from(tarOf(entries)), plain, ...(compress ? [createGzip()] : []), stored]
  await pipeline([...steps, createWriteStream(path)])
  const digest = stored.digest()
  renameSync(path, join(folder, digest.replace('sha256:', '')))
  return {
    descriptor: { mediaType: `${MEDIA.layer}${compress ? '+gzip' : ''}`, digest, size: stored.size },
    diffId: plain.digest(),
    unpackedBytes: plain.size,
    about,
  }
}

function writeJson(folder, mediaType, value) {
  const bytes = Buffer.from(JSON.stringify(value))
  const digest = createHash('sha256').update(bytes).digest('hex')
  writeFileSync(join(folder, digest), bytes)
  return { mediaType, digest: `sha256:${digest}`, size: bytes.length }
}

/**
 * Writes a layout into the empty folder `into`. `image` has layers (`{ entries, about }`), `platform`, `config` (what a
 * container starts with), `created`, `annotations` and `reference` (see reference.mjs). Gives the descriptor of the
 * manifest and what the layers take.
 */
export async function writeLayout(into, image, { compress = true } = {}) {
  const blobs = join(into, 'blobs/sha256')
  mkdirSync(blobs, { recursive: true })
  const layers = []
  for (const layer of image.layers) layers.push(await writeLayer(blobs, layer, { compress }))
  const { created, annotations, platform, reference } = image
  const config = writeJson(blobs, MEDIA.config, {
    created,
    ...platform,
    os: 'linux',
    config: { ...image.config, Labels: annotations },
    rootfs: { type: 'layers', diff_ids: layers.map(({ diffId }) => diffId) },
    history: layers.map(({ about }) => ({ created, created_by: 'npm run image', comment: about })),
  })
  const descriptors = layers.map(({ descriptor }) => descriptor)
  const manifest = writeJson(blobs, MEDIA.manifest, {
    schemaVersion: 2,
    mediaType: MEDIA.manifest,
    config,
    layers: descriptors,
    annotations,
  })
  const named = {
    ...manifest,
    annotations: {
      'io.containerd.image.name': reference.full,
      'org.opencontainers.image.created': created,
      'org.opencontainers.image.ref.name': reference.tag,
    },
    platform: { ...platform, os: 'linux' },
  }
  const put = (name, value) => writeFileSync(join(into, name), JSON.stringify(value))
  put('oci-layout', { imageLayoutVersion: '1.0.0' })
  put('index.json', { schemaVersion: 2, mediaType: MEDIA.index, manifests: [named] })
  // For `docker load` before version 25, which knows no OCI layout.
  const blob = ({ digest }) => `blobs/${digest.replace(':', '/')}`
  put('manifest.json', [
    { Config: blob(config), RepoTags: [reference.familiar], Layers: descriptors.map(blob) },
  ])
  return {
    manifest,
    storedBytes: [config, manifest, ...descriptors].reduce((sum, { size }) => sum + size, 0),
    unpackedBytes: layers.reduce((sum, each) => sum + each.unpackedBytes, 0),
    blobs: [config, manifest, ...descriptors].map(blob).sort(),
  }
}

/** One tar file of a layout that writeLayout() left in `layout`. */
export async function writeArchive(layout, blobs, path) {
  const names = [...blobs, 'index.json', 'manifest.json', 'oci-layout']
  const entries = names.map(name => ({ kind: 'file', path: name, mode: 0o644, from: join(layout, name) }))
  await pipeline([Readable.from(tarOf(withFolders(entries))), createWriteStream(path)])
}
