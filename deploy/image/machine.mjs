// The machine that an image is for: this one, or another one whose programs this one builds with Debian's cross compiler and runs
// with qemu-user.
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { readElf } from './libraries.mjs'

/** Of other machines: the name that Debian's cross tools have, and that of Node.js. */
const CROSS = new Map([
  ['arm64', { triplet: 'aarch64-linux-gnu', qemu: 'qemu-aarch64-static', arch: 'arm64' }],
])

/**
 * @typedef {object} Machine
 * @property {string} node Path of its Node.js.
 * @property {string} arch What its Node.js calls the architecture.
 * @property {string} sysroot Its libraries are at their paths below this folder.
 * @property {string[]} emulator Words before a command of it.
 * @property {string} compiler
 * @property {boolean} isCross
 */

/** @returns {Machine} */
export function thisMachine() {
  const compiler = process.env.CC ?? 'cc'
  return { node: process.execPath, arch: process.arch, sysroot: '', emulator: [], compiler, isCross: false }
}

/** The machine of the Node.js in `folder`, which has bin/node and include/node. Throws where a tool is missing. */
export function crossMachine(folder) {
  const node = join(folder, 'bin/node')
  if (!existsSync(node) || !existsSync(join(folder, 'include/node/node_api.h')))
    throw new Error(`--cross ${folder}: has no bin/node, or no include/node`)
  const { architecture } = readElf(node)
  const { triplet, qemu, arch } = CROSS.get(architecture) ?? {}
  if (arch === undefined || arch === process.arch)
    throw new Error(`--cross ${folder}: is for ${architecture}; on this machine it can be ${others()}`)
  const compiler = `${triplet}-gcc`
  const missing = [compiler, qemu].filter(name => spawnSync(name, ['--version']).error !== undefined)
  if (missing.length > 0)
    throw new Error(
      `--cross ${folder}: ${missing.join(' and ')} not found; on Debian: apt-get install -y gcc-${triplet} libc6-dev-${arch}-cross qemu-user-static`,
    )
  const sysroot = `/usr/${triplet}`
  return { node, arch, sysroot, emulator: [qemu, '-L', sysroot], compiler, isCross: true }
}

const others = () => [...CROSS.keys()].filter(name => name !== process.arch).join(', ') || 'none'

/** `process.versions` of its Node.js. */
export function versionsOf({ node, emulator, isCross }) {
  if (!isCross) return process.versions
  const [file, ...args] = [...emulator, node, '-p', 'JSON.stringify(process.versions)']
  const { status, stdout, stderr, error } = spawnSync(file, args, { encoding: 'utf8' })
  if (status !== 0) throw new Error(`${node} does not run with ${file}: ${error?.message ?? stderr.trim()}`)
  return JSON.parse(stdout)
}

/** Path of the addon: that of dist/, or one that is built here for another machine. */
export function addonOf(machine, { top, version }) {
  if (!machine.isCross) return join(top, 'dist/kprobe.node')
  const { node, arch, compiler } = machine
  const into = join(top, `.cache/native-${arch}-${version}`)
  const nodedir = dirname(dirname(node))
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [join(top, 'native/build.mjs'), `--nodedir=${nodedir}`, `--into=${into}`],
    { encoding: 'utf8', env: { ...process.env, CC: compiler, LINK: compiler, npm_config_arch: arch } },
  )
  if (status !== 0) throw new Error(`cannot build the addon for ${arch}: ${stdout}${stderr}`)
  return join(into, 'build/Release/kprobe.node')
}
