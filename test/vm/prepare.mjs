// Gets a stock kernel of Debian's and makes the initial RAM disk for it, in $XDG_CACHE_HOME (~/.cache)/kprobe/vm. The
// kernel is downloaded and unpacked, never installed.
//   node test/vm/prepare.mjs    does so, and prints what it has
import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { homedir } from 'node:os'
import { basename, delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'

/** Tools of the host, with the Debian packages that have them. */
const TOOLS = {
  'qemu-system-x86_64': 'qemu-system-x86',
  busybox: 'busybox-static',
  cpio: 'cpio',
  depmod: 'kmod',
  modprobe: 'kmod',
  setpriv: 'util-linux',
}
/** The generic flavour of each line of kernels; the cloud flavour has no 9p. Their group is what they are ordered by. */
const LINES = {
  6.1: /^linux-image-6\.1\.0-(\d+)-amd64$/,
  6.12: /^linux-image-6\.12\.(\d+)\+deb\d+-amd64$/,
}
/** What the guest needs to reach its root folder and to speak with us. */
const BOOT_MODULES = ['virtio_pci', 'virtio_console', '9pnet_virtio', '9p', 'overlay']
const INIT = fileURLToPath(new URL('guest/init', import.meta.url))
const DOWNLOAD_MAX_MS = 10 * 60_000

/** The guest cannot run here, for a reason that is no fault of the project. */
export class Skipped extends Error {}

/** Gives `{ name, version, vmlinuz, initrd, modules }`: paths, and the package's name and version. Throws Skipped. */
export function prepare(environment = process.env) {
  checkMachine(environment)
  const line = environment.KPROBE_VM_KERNEL || '6.1'
  const pattern = LINES[line]
  if (pattern === undefined)
    throw new Error(`KPROBE_VM_KERNEL=${line}: not one of ${Object.keys(LINES).join(', ')}`)
  const cache = join(environment.XDG_CACHE_HOME || join(homedir(), '.cache'), 'kprobe/vm')
  mkdirSync(cache, { recursive: true })
  const folder = kernelFolder(cache, line, pattern)
  const release = only(join(folder, 'lib/modules'))
  return {
    name: packageOf(basename(folder)),
    version: basename(folder).split('_')[1],
    vmlinuz: join(folder, 'boot', `vmlinuz-${release}`),
    modules: join(folder, 'lib/modules', release),
    initrd: initialRamDisk(folder, release),
  }
}

function checkMachine(environment) {
  if (environment.KPROBE_VM === 'off') throw new Skipped('KPROBE_VM is off')
  if (process.platform !== 'linux' || process.arch !== 'x64')
    throw new Skipped('the guest needs Linux on x86-64')
  for (const [tool, debian] of Object.entries(TOOLS)) {
    if (find(tool) === undefined) throw new Skipped(`there is no ${tool} (Debian's package ${debian})`)
  }
}

function find(tool) {
  return path()
    .split(delimiter)
    .map(folder => join(folder, tool))
    .find(file => existsSync(file))
}

/** With the folders that only root has in its PATH. */
export function path() {
  return [process.env.PATH, '/usr/sbin', '/sbin'].join(delimiter)
}

/** The newest kernel of the line, downloaded if it has to be; else the newest that is here. */
function kernelFolder(cache, line, pattern) {
  const byAge = (a, b) => order(pattern, packageOf(a)) - order(pattern, packageOf(b))
  const here = readdirSync(cache)
    .filter(name => pattern.test(packageOf(name)))
    .sort(byAge)
  const found = newestOf(cache, { pattern, here }) ?? here.at(-1)
  if (found === undefined) throw new Skipped(`apt gives no kernel of the ${line} line here`)
  return join(cache, found)
}

/** Package lists can be missing, or name what the archive has replaced since: only root can renew them. */
function newestOf(cache, { pattern, here }) {
  const attempt = () => {
    const newest = newestPackage(pattern)
    if (newest === undefined) return undefined
    return here.find(name => packageOf(name) === newest) ?? download(cache, newest)
  }
  const found = attempt()
  if (found !== undefined || process.getuid() !== 0) return found
  spawnSync('apt-get', ['update'], { stdio: 'ignore', timeout: DOWNLOAD_MAX_MS })
  return attempt()
}

/** Folders are called like packages: name_version. */
function packageOf(folder) {
  return folder.split('_')[0]
}

function newestPackage(pattern) {
  const run = spawnSync('apt-cache', ['pkgnames', 'linux-image-6'], { encoding: 'utf8' })
  if (run.error !== undefined || run.status !== 0) return undefined
  const names = run.stdout.split('\n').filter(name => pattern.test(name))
  return names.sort((a, b) => order(pattern, a) - order(pattern, b)).at(-1)
}

function order(pattern, name) {
  return Number(pattern.exec(name)?.[1])
}

/** Gives the folder's name, which has the package's name and version; undefined when apt cannot get it. */
function download(cache, name) {
  const unfinished = mkdtempSync(join(cache, '.unfinished-'))
  try {
    const run = spawnSync('apt-get', ['download', name], {
      cwd: unfinished,
      stdio: 'ignore',
      timeout: DOWNLOAD_MAX_MS,
    })
    if (run.status !== 0) return undefined
    const archive = only(unfinished)
    const [, version] = archive.split('_')
    const tree = join(unfinished, 'tree')
    execFileSync('dpkg', ['-x', join(unfinished, archive), tree])
    const release = only(join(tree, 'lib/modules'))
    execFileSync('depmod', ['-b', tree, release], { env: { ...process.env, PATH: path() } })
    const folder = `${name}_${decodeURIComponent(version)}`
    if (!existsSync(join(cache, folder))) renameSync(tree, join(cache, folder))
    return folder
  } finally {
    rmSync(unfinished, { recursive: true, force: true })
  }
}

function only(folder) {
  const [name, ...more] = readdirSync(folder)
  if (name === undefined || more.length > 0) throw new Error(`${folder}: not one entry`)
  return name
}

/** Made once per version of this file and of the guest's init. */
function initialRamDisk(folder, release) {
  const sources = [INIT, fileURLToPath(import.meta.url)].map(file => readFileSync(file))
  const sum = createHash('sha256').update(Buffer.concat(sources)).digest('hex').slice(0, 12)
  const file = join(folder, `initrd-${sum}.gz`)
  if (existsSync(file)) return file
  const tree = mkdtempSync(join(folder, '.initrd-'))
  try {
    for (const one of ['bin', 'modules']) mkdirSync(join(tree, one))
    copyFileSync(INIT, join(tree, 'init'))
    copyFileSync(find('busybox'), join(tree, 'bin/busybox'))
    for (const program of ['init', 'bin/busybox']) chmodSync(join(tree, program), 0o755)
    const modules = bootModules(folder, release)
    for (const module of modules) writeFileSync(join(tree, 'modules', moduleName(module)), readModule(module))
    writeFileSync(join(tree, 'modules.order'), `${modules.map(moduleName).join('\n')}\n`)
    writeFileSync(`${tree}.gz`, gzipSync(archiveOf(tree)))
    renameSync(`${tree}.gz`, file)
    return file
  } finally {
    rmSync(tree, { recursive: true, force: true })
  }
}

function archiveOf(tree) {
  const names = 'init bin bin/busybox modules modules.order'.split(' ')
  const files = readdirSync(join(tree, 'modules')).map(name => `modules/${name}`)
  return execFileSync('cpio', ['--quiet', '-o', '-H', 'newc', '-R', '0:0'], {
    cwd: tree,
    input: [...names, ...files].join('\n'),
    maxBuffer: 1 << 27,
  })
}

/** Files, each behind those that it needs. */
function bootModules(folder, release) {
  const args = ['--show-depends', '-a', '-d', folder, '-S', release, ...BOOT_MODULES]
  const lines = execFileSync('modprobe', args, { encoding: 'utf8', env: { ...process.env, PATH: path() } })
  return [...new Set([...lines.matchAll(/^insmod (\S+)/gm)].map(([, file]) => file))]
}

function moduleName(file) {
  return basename(file).replace(/\.(xz|zst)$/, '')
}

function readModule(file) {
  const unpack = file.endsWith('.xz') ? 'xz' : file.endsWith('.zst') ? 'zstd' : undefined
  return unpack === undefined
    ? readFileSync(file)
    : execFileSync(unpack, ['-dc', file], { maxBuffer: 1 << 27 })
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  try {
    console.log(prepare())
  } catch (error) {
    if (!(error instanceof Skipped)) throw error
    console.log(`skipped: ${error.message}`)
    process.exitCode = 3
  }
}
