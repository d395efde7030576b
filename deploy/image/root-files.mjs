// What the root file system of the image holds, in two layers: Node.js with its libraries, and kprobe. A release of kprobe
// changes the second one only, 2 MB of 41.
import { createHash } from 'node:crypto'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { copyFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { withFolders } from './layout.mjs'
import { compileLauncher, librariesOf, packagesOf, readElf, systemName } from './libraries.mjs'
import { addonOf, versionsOf } from './machine.mjs'
import { sbomOf } from './sbom.mjs'

/** Of dist/, beside the addon and the compiled code; dist/lib and dist/types are for programs that import kprobe. */
const PROGRAM = ['kprobe.mjs', 'program.js', 'client-node.cjs', 'ui/page.html', 'ui/page.css', 'ui/page.js']
const NEEDED = ['kprobe.mjs', 'program.js', 'client-node.cjs', 'build.json', 'kprobe.node', 'ui/page.html']
const LICENSE_FILE = /^(licen[sc]e|copying|notice)(\.\w+)?$/i
/** Commands load it when it is there: `doctor` and `cleanup`, to read legacy iptables. */
const FFI = 'node_modules/ffi-rs'
const ETC = {
  passwd: 'root:x:0:0:root:/:/nonexistent\nkprobe:x:65532:65532:kprobe:/:/nonexistent\n',
  group: 'root:x:0:\nkprobe:x:65532:\n',
  'nsswitch.conf': 'hosts: files dns\n',
}

const file = (path, source, mode = 0o644) => ({
  kind: 'file',
  path: path.replace(/^\//, ''),
  mode,
  ...(typeof source === 'string' ? { from: source } : { data: source }),
})
const folder = (path, mode = 0o755) => ({ kind: 'folder', path, mode })
/** All files have owner 0: /run/kprobe, the folder of the state and the socket, is open to a process without uid 0. */
export const emptyFolders = nonroot => [
  folder('dev'),
  folder('proc'),
  folder('run/kprobe', nonroot ? 0o1777 : 0o755),
  folder('sys'),
  folder('tmp', 0o1777),
]
const sha256 = path => createHash('sha256').update(readFileSync(path)).digest('hex')

/**
 * The image's files: `platform`, `layers` (`{ entries, about }`), `sbom`, and `warnings` about what is missing. `top` is the
 * folder of the project, `machine` has the Node.js that goes in (machine.mjs), `scratch` is a folder for what is compiled;
 * `nonroot` for an image that runs as uid 65532.
 */
export function rootFiles({ top, machine, scratch, created, nonroot }) {
  const missing = NEEDED.filter(name => !existsSync(join(top, 'dist', name)))
  if (missing.length > 0) throw new Error(`dist/ has no ${missing.join(', ')}: run npm run build`)
  const { node, sysroot } = machine
  const versions = versionsOf(machine)
  const launcher = join(scratch, 'launcher')
  compileLauncher(join(top, 'deploy/image/launcher.c'), launcher, machine)
  const addon = addonOf(machine, { top, version: versions.node })
  const { interpreter, ...platform } = readElf(node)
  const lock = JSON.parse(readFileSync(join(top, 'package-lock.json'), 'utf8'))
  const loaded = loadedPackages({ top, lock, interpreter, arch: machine.arch })
  const native = loaded.map(({ from }) => from).filter(path => path.endsWith('.node'))
  requireSame(platform, [addon, launcher, ...native])
  const libraries = librariesOf([node, addon, launcher, ...native], machine)
  const owners = packagesOf(libraries, machine)
  const build = JSON.parse(readFileSync(join(top, 'dist/build.json'), 'utf8'))
  const ofCommands = [...build.commandPackages, ...build.pagePackages, ...loaded.map(({ key }) => key)]
  const packages = [...new Set([...build.packages, ...ofCommands])].sort()
  const licenses = licensesOf({ top, node, owners, packages })
  const sbom = sbomFor({
    top,
    node: { versions, sha256: sha256(node) },
    lock,
    packages,
    daemonPackages: build.packages,
    libraries: libraries.map(path => ({ path, sha256: sha256(sysroot + path), owner: owners.get(path) })),
    created,
  })
  // Of the machine that built dist/ alone.
  const keptCode = `program.${machine.arch}.cache`
  const program = [...PROGRAM, keptCode].filter(name => existsSync(join(top, 'dist', name)))
  return {
    platform,
    sbom,
    warnings: [
      ...(program.includes(keptCode)
        ? []
        : [`no compiled code for ${platform.architecture}: starts take longer`]),
      ...(loaded.length > 0 ? [] : ['ffi-rs is not installed: kprobe doctor cannot read legacy iptables']),
      ...licenses.missing.map(name => `no licence text of ${name} found on this machine`),
    ],
    layers: [
      {
        about: `Node.js ${versions.node} and its libraries`,
        entries: withFolders([
          ...emptyFolders(nonroot),
          ...Object.entries(ETC).map(([name, text]) => file(`etc/${name}`, Buffer.from(text))),
          file('usr/bin/node', node, 0o755),
          ...libraries.map(path => file(path, realpathSync(sysroot + path), 0o755)),
          ...licenses.ofSystem,
        ]),
      },
      {
        about: 'kprobe',
        entries: withFolders([
          file('opt/kprobe/kprobe.node', addon),
          ...program.map(name =>
            file(`opt/kprobe/${name}`, join(top, 'dist', name), name === 'kprobe.mjs' ? 0o755 : 0o644),
          ),
          ...loaded.map(({ key, name, from }) => file(`opt/kprobe/${key}/${name}`, from)),
          file('opt/kprobe/sbom.cdx.json', Buffer.from(`${JSON.stringify(sbom, null, 2)}\n`)),
          file('usr/local/bin/kprobe', launcher, 0o755),
          { kind: 'link', path: 'usr/local/bin/kube-proxy', mode: 0o777, target: 'kprobe' },
          ...licenses.ofProgram,
        ]),
      },
    ],
  }
}

function requireSame({ architecture }, files) {
  for (const path of files) {
    const found = readElf(path).architecture
    if (found !== architecture)
      throw new Error(
        `${path} is for ${found}, and Node.js for ${architecture}: an image has one architecture`,
      )
  }
}

/** Files of the packages that stay outside the program, with their keys in the lock file. */
function loadedPackages({ top, lock, interpreter = '', arch }) {
  const libc = interpreter.includes('/ld-musl') ? 'musl' : 'glibc'
  const builds = Object.keys(lock.packages[FFI]?.optionalDependencies ?? {}).map(
    name => `node_modules/${name}`,
  )
  const fits = key => {
    const { os = [], cpu = [], libc: of = [] } = lock.packages[key]
    return os.includes('linux') && cpu.includes(arch) && of.includes(libc)
  }
  const build = builds.find(key => fits(key) && existsSync(join(top, key)))
  if (build === undefined || !existsSync(join(top, FFI))) return []
  return [FFI, build].flatMap(key => {
    const { main } = JSON.parse(readFileSync(join(top, key, 'package.json'), 'utf8'))
    return ['package.json', main].map(name => ({ key, name, from: join(top, key, name) }))
  })
}

function sbomFor({ top, node, lock, packages, daemonPackages, libraries, created }) {
  const { name, version, license } = JSON.parse(readFileSync(join(top, 'package.json'), 'utf8'))
  return sbomOf({
    name,
    version,
    license,
    created,
    lock,
    packages,
    daemonPackages,
    node,
    files: libraries,
    system: systemName(),
  })
}

/** Files below usr/share/licenses, a folder for each component; `missing` names those that have no licence here. */
function licensesOf({ top, node, owners, packages }) {
  const to = (name, path) => file(join('usr/share/licenses', name, 'LICENSE'), path)
  const missing = []
  const take = (name, candidates) => {
    const found = candidates.find(path => existsSync(path))
    if (found === undefined) missing.push(name)
    return found === undefined ? [] : [to(name, found)]
  }
  const prefix = dirname(dirname(node))
  const ofNode = [join(prefix, 'LICENSE'), '/usr/share/doc/nodejs/LICENSE', '/usr/share/doc/nodejs/copyright']
  const systemPackages = new Map([...owners.values()].map(each => [each.name, each.copyright]))
  return {
    ofSystem: [...take('node', ofNode), ...[...systemPackages].flatMap(([name, path]) => take(name, [path]))],
    ofProgram: [
      to('kprobe', join(top, 'LICENSE')),
      ...packages.flatMap(key => take(key, packageLicenses(top, key))),
    ],
    missing,
  }
}

/** Where the licence of a package may be. A build of ffi-rs for one system has it in ffi-rs alone. */
function packageLicenses(top, key) {
  const folders = key.includes('/ffi-rs-') ? [key, FFI] : [key]
  return folders.flatMap(folder => {
    const names = readdirSync(join(top, folder)).filter(name => LICENSE_FILE.test(name))
    return names.sort().map(name => join(top, folder, name))
  })
}

/** Puts the layers into a folder, for an engine that builds its image from that (deploy/image/Dockerfile). */
export async function writeRoot(into, layers) {
  mkdirSync(into, { recursive: true })
  for (const entry of layers.flatMap(({ entries }) => entries)) {
    const path = join(into, entry.path)
    if (entry.kind === 'folder') mkdirSync(path, { recursive: true })
    else rmSync(path, { force: true })
    if (entry.kind === 'link') symlinkSync(entry.target, path)
    if (entry.kind === 'file' && entry.data !== undefined) writeFileSync(path, entry.data)
    if (entry.kind === 'file' && entry.data === undefined) await copyFile(entry.from, path)
    if (entry.kind !== 'link') chmodSync(path, entry.mode)
  }
}
