// The bill of materials of the image, in CycloneDX 1.5.
import { createHash } from 'node:crypto'

/** Parts of Node.js, by their names in process.versions, whose versions are not numbers of a release. */
const NOT_A_PART = new Set(['node', 'modules', 'napi', 'cldr', 'tz', 'unicode', 'nghttp3', 'ngtcp2'])

/**
 * `{ name, version, license, lock, packages, daemonPackages, node, files, system, created }`:
 * `lock` is package-lock.json; `packages` are the keys there of what the image contains, and `daemonPackages` those of them
 * that the daemon runs: commands alone load the others; `node` is `{ versions, sha256,
 * size }`; `files` are the shared libraries, `{ path, sha256, owner }`; `created` is in RFC 3339.
 */
export function sbomOf(image) {
  const { name, version, license, created } = image
  const purl = `pkg:npm/${name}@${version}`
  const npm = image.packages.map(key => npmComponent(key, image))
  const node = nodeComponent(image.node)
  const system = systemComponents(image.files, image.system)
  const body = {
    version: 1,
    metadata: {
      timestamp: created,
      lifecycles: [{ phase: 'build' }],
      component: { 'bom-ref': purl, type: 'application', name, version, purl, licenses: licensesOf(license) },
    },
    components: [...npm, node, ...system],
    dependencies: [
      { ref: purl, dependsOn: [...directOf(image), node['bom-ref']] },
      ...image.packages.map(key => ({ ref: refOf(key, image.lock), dependsOn: dependenciesOf(key, image) })),
      { ref: node['bom-ref'], dependsOn: system.map(each => each['bom-ref']) },
      ...system.map(each => ({ ref: each['bom-ref'] })),
    ],
  }
  return {
    $schema: 'http://cyclonedx.org/schema/bom-1.5.schema.json',
    bomFormat: 'CycloneDX',
    specVersion: '1.5',
    serialNumber: `urn:uuid:${uuidOf(JSON.stringify(body))}`,
    ...body,
  }
}

/** A version-8 UUID of a content: the same bill has the same number. */
function uuidOf(text) {
  const bytes = createHash('sha256').update(text).digest().subarray(0, 16)
  bytes[6] = (bytes[6] & 0x0f) | 0x80
  bytes[8] = (bytes[8] & 0x3f) | 0x80
  return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

function licensesOf(text) {
  if (text === undefined) return undefined
  return [/^[\w.+-]+$/.test(text) ? { license: { id: text } } : { expression: text }]
}

function entryOf(key, lock) {
  const entry = lock.packages[key]
  if (entry === undefined) throw new Error(`package-lock.json has no ${key}, which the image contains`)
  return { name: key.replace(/^.*node_modules\//, ''), ...entry }
}

function refOf(key, lock) {
  const { name, version } = entryOf(key, lock)
  return `${name}@${version}`
}

function npmComponent(key, { lock, daemonPackages }) {
  const { name, version, license, integrity = '', optional = false } = entryOf(key, lock)
  const [, digest] = /^sha512-(.*)$/.exec(integrity) ?? []
  return {
    'bom-ref': `${name}@${version}`,
    type: 'library',
    name,
    version,
    scope: optional ? 'optional' : 'required',
    purl: `pkg:npm/${name.replace('@', '%40')}@${version}`,
    licenses: licensesOf(license),
    hashes: digest && [{ alg: 'SHA-512', content: Buffer.from(digest, 'base64').toString('hex') }],
    properties: [{ name: 'kprobe:loaded-by', value: daemonPackages.includes(key) ? 'daemon' : 'commands' }],
  }
}

/** Keys of the dependencies of an entry as npm finds them from the package at `key`, as far as the image contains them. */
function resolveFrom(key, { dependencies = {}, optionalDependencies = {} }, packages) {
  return Object.keys({ ...dependencies, ...optionalDependencies }).flatMap(name => {
    for (let folder = key; ; folder = folder.replace(/\/?node_modules\/(@[^/]+\/)?[^/]+$/, '')) {
      const candidate = folder === '' ? `node_modules/${name}` : `${folder}/node_modules/${name}`
      if (packages.includes(candidate)) return [candidate]
      if (folder === '') return []
    }
  })
}

function dependenciesOf(key, { lock, packages }) {
  return resolveFrom(key, entryOf(key, lock), packages).map(each => refOf(each, lock))
}

function directOf({ lock, packages }) {
  return resolveFrom('', lock.packages[''], packages).map(each => refOf(each, lock))
}

function nodeComponent({ versions, sha256 }) {
  const purl = `pkg:generic/node@${versions.node}`
  const parts = Object.entries(versions).filter(
    ([name, value]) => !NOT_A_PART.has(name) && /^\d+\.\d+/.test(value),
  )
  return {
    'bom-ref': purl,
    type: 'platform',
    name: 'node',
    version: versions.node,
    purl,
    licenses: licensesOf('MIT'),
    hashes: [{ alg: 'SHA-256', content: sha256 }],
    externalReferences: [{ type: 'website', url: 'https://nodejs.org' }],
    // What Node.js links statically: advisories name these.
    components: parts.sort().map(([name, value]) => ({
      'bom-ref': `${purl}#${name}`,
      type: 'library',
      name,
      version: value,
    })),
  }
}

/** One component for each package of the system, with its files; a file of no package is one of its own. */
function systemComponents(files, system) {
  const groups = new Map()
  for (const file of files) {
    const key = file.owner?.name ?? file.path
    groups.set(key, [...(groups.get(key) ?? []), file])
  }
  return [...groups].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, group]) => systemComponent(group, system))
}

function systemComponent(group, system) {
  const [{ owner, path, sha256 }] = group
  const fileOf = each => ({
    type: 'file',
    name: each.path,
    hashes: [{ alg: 'SHA-256', content: each.sha256 }],
  })
  if (owner === undefined) return { 'bom-ref': `file:${path}#${sha256.slice(0, 16)}`, ...fileOf(group[0]) }
  const [vendor = ''] = system.split('-')
  const purl = `pkg:deb/${vendor}/${owner.name}@${encodeURIComponent(owner.version)}?distro=${system}`
  return {
    'bom-ref': purl,
    type: 'library',
    name: owner.name,
    version: owner.version,
    purl,
    components: group.map(fileOf),
  }
}
