// Which shared libraries a program loads, and whose they are.
import { execFileSync, spawnSync } from 'node:child_process'
import { closeSync, existsSync, openSync, readFileSync, readSync, realpathSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'

const ELF_MAGIC = 0x7f454c46
/** Bytes 4 and 5: class and byte order. */
const IS_64_BIT_LITTLE_ENDIAN = 0x0102
const HEADER_BYTES = 64
const PT_INTERP = 3
/** What OCI calls the machines of ELF headers, as far as Node.js has official builds for them. */
const ARCHITECTURES = new Map([
  [0x3e, { architecture: 'amd64' }],
  [0xb7, { architecture: 'arm64', variant: 'v8' }],
  [0x15, { architecture: 'ppc64le' }],
  [0xf3, { architecture: 'riscv64' }],
])
/** glibc loads these by name when a host name is looked up; since 2.34 it has them built in. */
const LOADED_BY_NAME = ['libnss_files.so.2', 'libnss_dns.so.2', 'libresolv.so.2']

function readAt(descriptor, offset, length) {
  const bytes = Buffer.alloc(length)
  return bytes.subarray(0, readSync(descriptor, bytes, 0, length, offset))
}

/** The architecture of an ELF file, and the path of its loader; `undefined` for a file that needs none. */
export function readElf(path) {
  const descriptor = openSync(path, 'r')
  try {
    const header = readAt(descriptor, 0, HEADER_BYTES)
    if (header.length < HEADER_BYTES || header.readUInt32BE(0) !== ELF_MAGIC)
      throw new Error(`${path} is no ELF file`)
    const platform = ARCHITECTURES.get(header.readUInt16LE(18))
    if (header.readUInt16LE(4) !== IS_64_BIT_LITTLE_ENDIAN || platform === undefined)
      throw new Error(`${path} is for a machine that kprobe has no images for`)
    return { ...platform, interpreter: interpreterOf(descriptor, header) }
  } finally {
    closeSync(descriptor)
  }
}

function interpreterOf(descriptor, header) {
  const [offset, size, count] = [
    Number(header.readBigUInt64LE(32)),
    header.readUInt16LE(54),
    header.readUInt16LE(56),
  ]
  const table = readAt(descriptor, offset, size * count)
  for (let at = 0; at < table.length; at += size) {
    if (table.readUInt32LE(at) !== PT_INTERP) continue
    const [begin, length] = [table.readBigUInt64LE(at + 8), table.readBigUInt64LE(at + 32)]
    return readAt(descriptor, Number(begin), Number(length)).toString('latin1').replace(/\0$/, '')
  }
  return undefined
}

/**
 * Paths of everything that `files` need at run time: the loader, and the libraries where the loader itself finds them
 * without /etc/ld.so.cache and without the environment, neither of which the image has. They are below the sysroot of the
 * machine (machine.mjs).
 */
export function librariesOf(files, machine) {
  const [first] = files
  const { interpreter } = readElf(first)
  if (interpreter === undefined) return []
  const found = new Set([interpreter])
  const loader = [...machine.emulator, `${machine.sysroot}${interpreter}`]
  const options = optionsOf(loader)
  // The loader gives its own path as it was started.
  for (const file of files)
    for (const path of listed([...loader, ...options], file))
      found.add(path.startsWith(`${machine.sysroot}/`) ? path.slice(machine.sysroot.length) : path)
  const libc = [...found].find(path => /^libc\./.test(basename(path)))
  for (const name of libc === undefined ? [] : LOADED_BY_NAME) {
    const path = join(dirname(libc), name)
    if (existsSync(`${machine.sysroot}${path}`)) found.add(path)
  }
  return [...found].sort()
}

/**
 * The loader of musl has neither a cache nor builds of a library for newer processors. That of glibc prefers such builds
 * since 2.33: the processor that builds the image must not choose for the one that runs it.
 */
function optionsOf(loader) {
  if (/\/ld-musl/.test(loader.at(-1))) return []
  const { stdout } = runLoader([...loader, '--help'])
  const mask = stdout?.includes('--glibc-hwcaps-mask') === true ? ['--glibc-hwcaps-mask', 'none'] : []
  return ['--inhibit-cache', ...mask]
}

const runLoader = ([file, ...args]) =>
  spawnSync(file, args, { encoding: 'utf8', env: { PATH: process.env.PATH } })

function listed(loader, file) {
  const { status, stdout, stderr, error } = runLoader([...loader, '--list', file])
  const lines = `${stdout ?? ''}${stderr ?? ''}`.split('\n')
  const [, missing] = lines.map(line => /^\s*(\S+) => not found/.exec(line)).find(Boolean) ?? []
  if (missing !== undefined)
    throw new Error(
      `${file} needs ${missing}, which is in no folder that ${loader.join(' ')} searches by itself`,
    )
  if (status !== 0)
    throw new Error(`${loader.join(' ')} --list ${file} failed: ${error?.message ?? lines.join(' ').trim()}`)
  return lines.flatMap(line => {
    const [, path] = /(?:=> |^\s*)(\/\S+) \(0x/.exec(line) ?? []
    return path === undefined ? [] : [path]
  })
}

/**
 * The Debian packages of files, by path: `{ name, version, copyright }`, where `copyright` is the path of its licences.
 * A file of no package is not in the map, nor is any on a system without dpkg.
 */
export function packagesOf(paths, { sysroot }) {
  // dpkg knows a file under the path that its package has, whichever way /lib leads to /usr/lib.
  const spellings = path => {
    const real = realpathSync(`${sysroot}${path}`)
    return [`${sysroot}${path}`, real, `/usr${path}`, `/usr${real}`, real.replace(/^\/usr\//, '/')]
  }
  const owners = new Map()
  for (const line of dpkg('-S', ...new Set(paths.flatMap(spellings))).split('\n')) {
    const [, name, path] = /^([^:,\s]+)(?::\S+)?: (\/.*)$/.exec(line) ?? []
    if (name !== undefined) owners.set(path, name)
  }
  const versions = new Map()
  const names = [...new Set(owners.values())]
  const format = '-f=$' + '{Package} $' + '{Version}\\n'
  for (const line of names.length === 0 ? [] : dpkg('-W', format, ...names).split('\n'))
    versions.set(...line.split(' '))
  const found = paths.flatMap(path => {
    const name = spellings(path)
      .map(each => owners.get(each))
      .find(Boolean)
    if (name === undefined) return []
    return [
      [path, { name, version: versions.get(name) ?? '', copyright: `/usr/share/doc/${name}/copyright` }],
    ]
  })
  return new Map(found)
}

/** What dpkg-query finds: it fails when one of several names is unknown, and prints the others. */
function dpkg(...argv) {
  return spawnSync('dpkg-query', argv, { encoding: 'utf8' }).stdout ?? ''
}

/** `debian-12`, or nothing. */
export function systemName() {
  try {
    const text = readFileSync('/etc/os-release', 'utf8')
    const value = name => new RegExp(`^${name}="?([^"\\n]+)"?$`, 'm').exec(text)?.[1]
    return [value('ID'), value('VERSION_ID')].filter(Boolean).join('-')
  } catch {
    return ''
  }
}

/** Compiles the program that starts Node.js in the image. */
export function compileLauncher(source, path, { compiler }) {
  const flags = ['-std=c11', '-Os', '-Wall', '-Wextra', '-Werror', '-s', '-Wl,--build-id=none']
  try {
    execFileSync(compiler, [...flags, '-o', path, basename(source)], {
      cwd: dirname(source),
      stdio: 'pipe',
      encoding: 'utf8',
    })
  } catch (error) {
    throw new Error(`cannot compile ${source} with ${compiler}: ${error.stderr || error.message}`)
  }
}
