// npm run image: builds the container image, without a container engine. See HELP below and docs/image.md.
import { spawnSync } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { writeArchive, writeLayout } from './layout.mjs'
import { crossMachine, thisMachine } from './machine.mjs'
import { readReference } from './reference.mjs'
import { rootFiles, writeRoot } from './root-files.mjs'

const TOP = fileURLToPath(new URL('../..', import.meta.url))
const HELP = `npm run image -- [FLAG...]: builds the container image without a container engine, for the architecture of this machine or with --cross

  --tag NAME[:TAG]   name of the image; without TAG, the version (default: kprobe)
  --output PATH      where it goes: PATH.tar is one file for ctr, docker, podman and skopeo; another PATH is a folder with an
                     OCI layout (default: kprobe-VERSION-ARCHITECTURE.tar)
  --nonroot          run as uid 65532, for runtimes that give it CAP_NET_ADMIN as an ambient capability
  --uncompressed     store layers as they are: faster to write and to load on the same machine, three times the size
  --cross FOLDER     build for the architecture of the Node.js in FOLDER, which has bin/node and include/node: arm64, with
                     gcc-aarch64-linux-gnu and qemu-user-static; docs/image.md
  --no-build         take dist/ as it is, instead of building it first
  --json             print the result as one JSON object
  --rootfs FOLDER    write the root file system into an empty FOLDER instead of an image, as deploy/image/Dockerfile does
  --help             print this

Beside an image it leaves PATH.cdx.json, the bill of materials (CycloneDX). SOURCE_DATE_EPOCH replaces the date of the commit
as the date of the image.
`
const OPTIONS = {
  tag: { type: 'string', default: 'kprobe' },
  output: { type: 'string' },
  nonroot: { type: 'boolean', default: false },
  uncompressed: { type: 'boolean', default: false },
  cross: { type: 'string' },
  'no-build': { type: 'boolean', default: false },
  json: { type: 'boolean', default: false },
  rootfs: { type: 'string' },
  help: { type: 'boolean', default: false },
}

class UsageError extends Error {}

function readArguments(argv) {
  try {
    const { values } = parseArgs({ args: argv, options: OPTIONS })
    if (values.rootfs !== undefined && values.output !== undefined)
      throw new Error('--rootfs writes no image: --output has no meaning beside it')
    return values
  } catch (error) {
    throw new UsageError(`${error.message.split('. ')[0]}; npm run image -- --help lists the flags`)
  }
}

/** One line while `run` runs, with its time; its errors come after. */
async function step(text, run) {
  const beganMs = performance.now()
  process.stderr.write(`${text} ... `)
  try {
    const value = await run()
    process.stderr.write(`${((performance.now() - beganMs) / 1_000).toFixed(1)} s\n`)
    return value
  } catch (error) {
    process.stderr.write('failed\n')
    throw error
  }
}

function runScript(name) {
  const { status, stdout, stderr, error } = spawnSync('npm', ['run', '-s', name], {
    cwd: TOP,
    encoding: 'utf8',
  })
  if (status !== 0)
    throw new Error(`npm run ${name} failed: ${error?.message ?? `${stdout}${stderr}`.trim()}`)
  if (stderr !== '') process.stderr.write(`${stderr.trim()} ... `)
}

async function build() {
  if (!existsSync(join(TOP, 'node_modules/esbuild')))
    throw new Error('the packages are not installed: run npm ci --ignore-scripts')
  await step('building the addon', () => runScript('build:native'))
  await step('building kprobe', () => runScript('build:bundle'))
}

/** What deploy/build.mjs left about this build. */
function readBuild() {
  const path = join(TOP, 'dist/build.json')
  if (!existsSync(path)) throw new Error('dist/ has no build.json: run npm run build')
  return JSON.parse(readFileSync(path, 'utf8'))
}

/** RFC 3339 in UTC, without fractions. */
function dateOf({ date }) {
  const epoch = process.env.SOURCE_DATE_EPOCH ?? ''
  if (epoch !== '' && !/^\d{1,11}$/.test(epoch))
    throw new Error(`SOURCE_DATE_EPOCH=${epoch} is no number of seconds since 1970`)
  const time = epoch !== '' ? Number(epoch) * 1_000 : Date.parse(date)
  return new Date(Number.isNaN(time) ? 0 : time).toISOString().replace('.000Z', 'Z')
}

function annotationsOf({ version, commit, packages: _ }, created) {
  return {
    'org.opencontainers.image.created': created,
    'org.opencontainers.image.description': 'A Kubernetes service proxy for Linux nodes that speaks netlink',
    'org.opencontainers.image.licenses': 'Apache-2.0',
    ...(commit === '' ? {} : { 'org.opencontainers.image.revision': commit }),
    'org.opencontainers.image.title': 'kprobe',
    'org.opencontainers.image.version': version,
  }
}

/** What a container starts with, without any word of a manifest. */
const configOf = ({ nonroot }) => ({
  ...(nonroot ? { User: '65532:65532' } : {}),
  Env: ['PATH=/usr/local/bin'],
  Entrypoint: ['/usr/local/bin/kprobe'],
  Cmd: ['run'],
  WorkingDir: '/',
})

/** Everything that is wrong with the flags themselves, before anything is built. */
function requireUsable({ tag, output = '.tar', rootfs }) {
  readReference(tag, 'any')
  const folder = rootfs ?? output
  if ((rootfs === undefined && folder.endsWith('.tar')) || !existsSync(folder)) return
  const flag = rootfs === undefined ? '--output' : '--rootfs'
  if (!statSync(folder).isDirectory())
    throw new Error(`${flag} ${folder}: is a file; the name of an archive ends in .tar`)
  const names = readdirSync(folder)
  if (rootfs !== undefined && names.length > 0) throw new Error(`--rootfs ${rootfs}: is not empty`)
  if (names.length > 0 && !names.includes('oci-layout'))
    throw new Error(`--output ${output}: has files and is no OCI layout; choose another folder`)
}

async function writeImage(image, { output, scratch, compress }) {
  const layout = join(scratch, 'layout')
  const { blobs, ...sizes } = await step('writing the layers', () => writeLayout(layout, image, { compress }))
  const isArchive = output.endsWith('.tar')
  const written = isArchive ? join(scratch, 'image.tar') : layout
  if (isArchive) await step(`writing ${basename(output)}`, () => writeArchive(layout, blobs, written))
  else rmSync(output, { recursive: true, force: true })
  renameSync(written, output)
  const sbomPath = `${output.replace(/\.tar$/, '')}.cdx.json`
  writeFileSync(join(scratch, 'sbom'), `${JSON.stringify(image.sbom, null, 2)}\n`)
  renameSync(join(scratch, 'sbom'), sbomPath)
  return { ...sizes, sbomPath }
}

function report({ reference, platform, manifest, storedBytes, unpackedBytes, output, sbomPath }, json) {
  const name = `linux/${platform.architecture}`
  if (json) {
    const { digest } = manifest
    const result = { image: reference.full, digest, platform: name, bytes: storedBytes, unpackedBytes }
    process.stdout.write(`${JSON.stringify({ ...result, output, sbom: sbomPath })}\n`)
    return
  }
  const mb = bytes => `${(bytes / 1e6).toFixed(1)} MB`
  const rows = [
    ['image', reference.full],
    ['digest', manifest.digest],
    ['platform', name],
    ['size', `${mb(storedBytes)}, unpacked ${mb(unpackedBytes)}`],
    ['output', output],
    ['sbom', sbomPath],
  ]
  process.stdout.write(rows.map(([key, value]) => `${key.padEnd(10)}${value}\n`).join(''))
}

async function main(values, scratch) {
  if (!values['no-build']) await build()
  const about = readBuild()
  const reference = readReference(values.tag, about.version)
  const created = dateOf(about)
  const machine = values.cross === undefined ? thisMachine() : crossMachine(resolve(values.cross))
  const files = rootFiles({ top: TOP, machine, scratch, created, nonroot: values.nonroot })
  const warnings = [...files.warnings]
  if (about.commit.endsWith('-dirty'))
    warnings.push(`built from uncommitted changes: the image says ${about.commit}`)
  if (created.startsWith('1970-')) warnings.push('no date of a commit is known: the image says 1970')
  for (const warning of warnings) process.stderr.write(`warning: ${warning}\n`)
  if (values.rootfs !== undefined) return writeRoot(resolve(values.rootfs), files.layers)
  const { architecture } = files.platform
  const output = resolve(values.output ?? `kprobe-${about.version}-${architecture}.tar`)
  const image = {
    ...files,
    reference,
    created,
    annotations: annotationsOf(about, created),
    config: configOf(values),
  }
  const written = await writeImage(image, { output, scratch, compress: !values.uncompressed })
  report({ ...written, reference, platform: files.platform, output }, values.json)
}

/** Beside the output, so that what is complete can be moved there at once. */
function makeScratch({ output, rootfs }) {
  const parent = rootfs === undefined ? dirname(resolve(output ?? 'image')) : tmpdir()
  mkdirSync(parent, { recursive: true })
  return mkdtempSync(join(parent, '.kprobe-image-'))
}

try {
  const values = readArguments(process.argv.slice(2))
  if (values.help) process.stdout.write(HELP)
  else {
    requireUsable(values)
    const scratch = makeScratch(values)
    process.on('exit', () => rmSync(scratch, { recursive: true, force: true }))
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(1))
    await main(values, scratch)
  }
} catch (error) {
  process.stderr.write(`npm run image: ${error.message}\n`)
  process.exitCode = error instanceof UsageError ? 2 : 1
}
