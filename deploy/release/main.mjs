// npm run release: writes all files of a release into one folder. See HELP below and docs/releases.md.
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { gzipSync } from 'node:zlib'
import { readElf } from '../image/libraries.mjs'
import { loadSource } from '../load-source.mjs'
import { notesOf } from './notes.mjs'

const TOP = fileURLToPath(new URL('../..', import.meta.url))
const HELP = `npm run release -- [FLAG...]: writes image, bill of materials, chart, npm package, plugin of kubectl, notes and checksums

  --dry-run          of the version that package.json has, before its tag: the notes may be those of [Unreleased]
  --folder FOLDER    where the files go; it is empty or does not exist (default: release)
  --url URL          where the files will be, for the manifest of the plugin (default: https://release.example)
  --image NAME       name of the image, with its registry (default: kprobe)
  --cross FOLDER     write image and bill of materials for the Node.js in FOLDER as well, as npm run image does
  --no-image         leave out the image of this machine and its bill of materials, as on the second architecture
  --no-build         take dist/ as npm run build left it
  --uncompressed     as of npm run image
  --help             print this

It pushes and signs nothing: .github/workflows/release.yml does, for a tag.
`
const OPTIONS = {
  'dry-run': { type: 'boolean', default: false },
  folder: { type: 'string', default: 'release' },
  url: { type: 'string', default: 'https://release.example' },
  image: { type: 'string', default: 'kprobe' },
  cross: { type: 'string' },
  'no-image': { type: 'boolean', default: false },
  'no-build': { type: 'boolean', default: false },
  uncompressed: { type: 'boolean', default: false },
  help: { type: 'boolean', default: false },
}
const CHART = 'deploy/helm/kprobe'

function run(file, args) {
  const { status, stdout, stderr, error } = spawnSync(file, args, { cwd: TOP, encoding: 'utf8' })
  if (status === 0) return stdout
  throw new Error(`${[file, ...args].join(' ')}: ${error?.message ?? `${stdout}${stderr}`.trim()}`)
}

const read = path => readFileSync(join(TOP, path), 'utf8')

/** The version, which package.json, the chart and, but for a dry run, the tag of this commit have. */
function checkedVersion({ 'dry-run': dryRun }) {
  const { version } = JSON.parse(read('package.json'))
  for (const field of ['version', 'appVersion'])
    if (!read(`${CHART}/Chart.yaml`).split('\n').includes(`${field}: ${version}`))
      throw new Error(`${CHART}/Chart.yaml: ${field} is not ${version}, the version of package.json`)
  if (dryRun) return version
  const tags = run('git', ['tag', '--points-at', 'HEAD']).split('\n')
  if (!tags.includes(`v${version}`))
    throw new Error(`this commit has no tag v${version}; --dry-run needs none`)
  if (run('git', ['status', '--porcelain']) !== '') throw new Error('there are uncommitted changes')
  return version
}

function readyFolder(folder) {
  mkdirSync(folder, { recursive: true })
  if (readdirSync(folder).length > 0) throw new Error(`--folder ${folder}: is not empty`)
  return resolve(folder)
}

/** The chart as `helm package` lays it out: a folder of its name. Equal files give equal bytes. */
async function chartArchive() {
  const { tarHeader, tarPadding, tarEnd } = await loadSource('src/inspect/tar.ts')
  const folder = join(TOP, CHART)
  const paths = readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile())
    .map(({ parentPath, name }) => relative(folder, join(parentPath, name)))
    .sort()
  const parts = paths.flatMap(path => {
    const data = readFileSync(join(folder, path))
    const size = data.length
    return [tarHeader({ kind: 'file', path: `kprobe/${path}`, mode: 0o644, size }), data, tarPadding(size)]
  })
  return gzipSync(Buffer.concat([...parts, tarEnd()]), { level: 9 })
}

/** Writes the image of this machine's architecture, or of that of the Node.js in `cross`. */
function writeImage(folder, { node, version, image, uncompressed, cross }) {
  const output = join(folder, `kprobe-${version}-${readElf(node).architecture}.tar`)
  const flags = ['--no-build', `--tag=${image}:${version}`, `--output=${output}`]
  if (cross !== undefined) flags.push(`--cross=${cross}`)
  if (uncompressed) flags.push('--uncompressed')
  run(process.execPath, ['deploy/image/main.mjs', ...flags])
}

/** As `sha256sum` writes it, and reads it with -c. */
function checksums(folder) {
  const sumOf = name =>
    createHash('sha256')
      .update(readFileSync(join(folder, name)))
      .digest('hex')
  return readdirSync(folder)
    .sort()
    .map(name => `${sumOf(name)}  ${name}\n`)
    .join('')
}

async function main() {
  const values = parseArgs({ options: OPTIONS }).values
  if (values.help) return process.stdout.write(HELP)
  const version = checkedVersion(values)
  const notes = notesOf(read('CHANGELOG.md'), { version, dryRun: values['dry-run'] })
  const folder = readyFolder(values.folder)
  if (!values['no-build']) run('npm', ['run', '-s', 'build'])
  if (!existsSync(join(TOP, 'dist/build.json'))) throw new Error('dist/ has no build.json: run npm run build')
  const cross = values.cross && resolve(values.cross)
  const image = { version, image: values.image, uncompressed: values.uncompressed }
  if (!values['no-image']) writeImage(folder, { ...image, node: process.execPath })
  if (cross !== undefined) writeImage(folder, { ...image, node: join(cross, 'bin/node'), cross })
  writeFileSync(join(folder, `kprobe-chart-${version}.tgz`), await chartArchive())
  const packed = run('npm', ['pack', '--ignore-scripts', '--json', `--pack-destination=${folder}`])
  const [{ filename }] = JSON.parse(packed)
  renameSync(join(folder, filename), join(folder, `kprobe-npm-${version}.tgz`))
  run(process.execPath, ['deploy/krew/main.mjs', `--url=${values.url}`, `--folder=${folder}`])
  writeFileSync(join(folder, 'NOTES.md'), notes)
  const sums = checksums(folder)
  writeFileSync(join(folder, 'SHA256SUMS'), sums)
  process.stdout.write(sums)
}

main().catch(error => {
  process.stderr.write(`npm run release: ${error.message}\n`)
  process.exitCode = 1
})
