// Builds the addon with node-gyp: node native/build.mjs [--force] [--san] [--nodedir=DIR] [--into=DIR]
//   --force    even when the build is newer than its sources
//   --san      under AddressSanitizer and UBSan, into .cache/native-san
//   --nodedir  folder with include/node of the Node.js to build for (else: this Node's own, else node-gyp's choice)
//   --into     folder to build in instead of the top one; the addon is then DIR/build/Release/kprobe.node
import { spawnSync } from 'node:child_process'
import { accessSync, constants, copyFileSync, existsSync, mkdirSync, readFileSync, statSync } from 'node:fs'
import { delimiter, dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

const root = fileURLToPath(new URL('..', import.meta.url))
const SOURCES = ['binding.gyp', 'native/binding.c', 'native/netlink_socket.c', 'native/netlink_socket.h']
const NODE_GYP = join(root, 'node_modules/node-gyp/bin/node-gyp.js')

const options = {
  force: { type: 'boolean', default: false },
  san: { type: 'boolean', default: false },
  nodedir: { type: 'string' },
  into: { type: 'string' },
}

function isExecutable(path) {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    return false
  }
}

function inPath(command) {
  const folders = (process.env.PATH ?? '').split(delimiter)
  return isExecutable(command) || folders.some(folder => isExecutable(join(folder, command)))
}

function compiler() {
  return (process.env.CC ?? 'cc').split(' ')[0]
}

/** One sentence for everything that is missing, or undefined. */
function complaint() {
  const missing = [compiler(), 'make', 'python3'].filter(command => !inPath(command))
  if (missing.length > 0) {
    return `kprobe needs a C compiler, make and python3 to build its addon (missing: ${missing.join(', ')}); on Debian: apt-get install -y gcc libc6-dev make python3`
  }
  if (!existsSync(NODE_GYP)) return "kprobe's addon is built with node-gyp, which is not installed: npm ci"
  return undefined
}

/** The headers that came with the Node.js that runs this; an older Node's leftovers do not count. */
function ownHeaders() {
  const prefix = dirname(dirname(process.execPath))
  const header = name => join(prefix, 'include/node', name)
  if (!['node_api.h', 'uv.h', 'node_version.h'].every(name => existsSync(header(name)))) return undefined
  const [, major] =
    /#define NODE_MAJOR_VERSION (\d+)/.exec(readFileSync(header('node_version.h'), 'utf8')) ?? []
  return major === process.versions.node.split('.')[0] ? prefix : undefined
}

function isFresh(addon) {
  if (!existsSync(addon)) return false
  const built = statSync(addon).mtimeMs
  return SOURCES.every(source => statSync(join(root, source)).mtimeMs <= built)
}

/** node-gyp builds in the folder of binding.gyp: a second build beside the first needs a copy. */
function copySources(folder) {
  mkdirSync(join(folder, 'native'), { recursive: true })
  for (const source of SOURCES) copyFileSync(join(root, source), join(folder, source))
}

function build(folder, values) {
  const nodedir = values.nodedir ?? ownHeaders()
  const args = ['rebuild', '--loglevel=warn']
  if (nodedir !== undefined) args.push(`--nodedir=${resolve(nodedir)}`)
  if (values.san) args.push('--', '-Dsan=address,undefined')
  // Its makefiles would link with g++, which plain C does not need.
  const env = { ...process.env, LINK: process.env.LINK ?? process.env.CC ?? 'cc' }
  return spawnSync(process.execPath, [NODE_GYP, ...args], { cwd: folder, encoding: 'utf8', env })
}

function main() {
  const { values } = parseArgs({ options })
  const folder = resolve(root, values.into ?? (values.san ? '.cache/native-san' : '.'))
  const addon = join(folder, 'build/Release/kprobe.node')
  if (!values.force && isFresh(addon)) return 0
  const wrong = complaint()
  if (wrong !== undefined) {
    console.error(wrong)
    return 1
  }
  if (folder !== resolve(root)) copySources(folder)
  const result = build(folder, values)
  if (result.status === 0 && existsSync(addon)) return 0
  console.error(`${result.stdout}${result.stderr}building kprobe's addon failed: see above`)
  return 1
}

process.exitCode = main()
