import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { patientMs } from '../support/patience.ts'

const TOP = fileURLToPath(new URL('../..', import.meta.url))
const DOCKERFILE = readFileSync(join(TOP, 'deploy/image/Dockerfile'), 'utf8')
const PAGE = readFileSync(join(TOP, 'docs/image.md'), 'utf8')
const LAYOUT_FILES = ['blobs', 'index.json', 'manifest.json', 'oci-layout']

/** The folder of all tests, the layout that `npm run image` wrote, and its layers, unpacked by GNU tar. */
let folder: string
let layout: string
let root: string
let result: { readonly digest: string; readonly sbom: string; readonly platform: string }

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kprobe-image-'))
  layout = join(folder, 'layout')
  root = join(folder, 'root')
  mkdirSync(root)
  const { status, stdout, stderr } = image(
    '--uncompressed',
    `--output=${layout}`,
    '--tag=registry.example/a/kprobe:1',
  )
  expect({ status, stderr }).toEqual({ status: 0, stderr: expect.stringContaining('writing the layers') })
  result = JSON.parse(stdout)
  for (const { digest } of manifest().layers) execFileSync('tar', ['-xf', blobPath(digest), '-C', root])
  cpSync(join(TOP, 'deploy/examples'), join(root, 'etc/examples'), { recursive: true })
  const config = readFileSync(join(TOP, 'test/unit/config/kubeadm-config.yaml'))
  mkdirSync(join(root, 'var/lib/kube-proxy'), { recursive: true })
  writeFileSync(join(root, 'var/lib/kube-proxy/config.conf'), config)
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** `npm run image`, of what is in dist/. */
function image(...flags: readonly string[]) {
  return imageOf(TOP, flags)
}

function imageOf(top: string, flags: readonly string[]) {
  const argv = [join(top, 'deploy/image/main.mjs'), '--no-build', '--json', ...flags]
  return spawnSync(process.execPath, argv, { cwd: folder, encoding: 'utf8', timeout: patientMs(60_000) })
}

interface Descriptor {
  readonly mediaType: string
  readonly digest: string
  readonly size: number
  readonly annotations?: Readonly<Record<string, string>>
}

const blobPath = (digest: string) => join(layout, 'blobs', digest.replace(':', '/'))
const readJson = (path: string) => JSON.parse(readFileSync(path, 'utf8'))
const index = (): { readonly manifests: readonly Descriptor[] } => readJson(join(layout, 'index.json'))
const sha256 = (path: string) => `sha256:${createHash('sha256').update(readFileSync(path)).digest('hex')}`

function manifest(): { readonly config: Descriptor; readonly layers: readonly Descriptor[] } {
  const [only] = index().manifests
  return readJson(blobPath(only?.digest ?? ''))
}

describe('the layout', () => {
  it('names its blobs by what they hold, and has no others', () => {
    const { config, layers } = manifest()
    const known = [...index().manifests, config, ...layers]
    for (const { digest, size } of known) {
      expect(sha256(blobPath(digest))).toBe(digest)
      expect(statSync(blobPath(digest)).size).toBe(size)
    }
    const names = known.map(({ digest }) => digest.replace('sha256:', ''))
    expect(readdirSync(join(layout, 'blobs/sha256')).sort()).toEqual(names.sort())
    expect(readdirSync(layout).sort()).toEqual(LAYOUT_FILES)
    expect(readJson(join(layout, 'oci-layout'))).toEqual({ imageLayoutVersion: '1.0.0' })
    expect(result.digest).toBe(index().manifests[0]?.digest)
  })

  it('has the media types of the OCI image specification, and the digests of unpacked layers', () => {
    const { config, layers } = manifest()
    const of = (kind: string) => `application/vnd.oci.image.${kind}`
    expect(index()).toMatchObject({ schemaVersion: 2, mediaType: of('index.v1+json') })
    expect(index().manifests.map(({ mediaType }) => mediaType)).toEqual([of('manifest.v1+json')])
    expect(manifest()).toMatchObject({ schemaVersion: 2, mediaType: of('manifest.v1+json') })
    expect(config.mediaType).toBe(of('config.v1+json'))
    expect(layers.map(({ mediaType }) => mediaType)).toEqual([of('layer.v1.tar'), of('layer.v1.tar')])
    const architecture = process.arch === 'x64' ? 'amd64' : process.arch
    expect(readJson(blobPath(config.digest))).toMatchObject({
      os: 'linux',
      architecture,
      config: { Entrypoint: ['/usr/local/bin/kprobe'], Cmd: ['run'] },
      rootfs: { type: 'layers', diff_ids: layers.map(({ digest }) => digest) },
    })
    expect(result.platform).toBe(`linux/${architecture}`)
  })

  it('says which build it is, where each program looks for that', () => {
    const { version, commit } = readJson(join(TOP, 'dist/build.json'))
    expect(manifest()).toMatchObject({
      annotations: {
        'org.opencontainers.image.version': version,
        ...(commit === '' ? {} : { 'org.opencontainers.image.revision': commit }),
      },
    })
    expect(index().manifests[0]?.annotations).toMatchObject({
      'io.containerd.image.name': 'registry.example/a/kprobe:1',
      'org.opencontainers.image.ref.name': '1',
    })
    const [docker] = readJson(join(layout, 'manifest.json'))
    expect(docker.RepoTags).toEqual(['registry.example/a/kprobe:1'])
    for (const path of [docker.Config, ...docker.Layers]) expect(existsSync(join(layout, path))).toBe(true)
  })

  it('is one file with compressed layers for a name that ends in .tar', () => {
    const archive = join(folder, 'kprobe.tar')
    expect(image(`--output=${archive}`).status).toBe(0)
    const into = join(folder, 'archive')
    mkdirSync(into)
    execFileSync('tar', ['-xf', archive, '-C', into])
    expect(readdirSync(into).sort()).toEqual(LAYOUT_FILES)
    const blob = ({ digest }: Descriptor) => join(into, 'blobs', digest.replace(':', '/'))
    const [top] = readJson(join(into, 'index.json')).manifests
    const { layers } = readJson(blob(top))
    const unpacked = layers.map((layer: Descriptor) => {
      expect(sha256(blob(layer))).toBe(layer.digest)
      expect(layer.mediaType).toBe('application/vnd.oci.image.layer.v1.tar+gzip')
      const bytes = execFileSync('gzip', ['-dc', blob(layer)], { maxBuffer: 1 << 30 })
      return `sha256:${createHash('sha256').update(bytes).digest('hex')}`
    })
    expect(unpacked).toEqual(manifest().layers.map(({ digest }) => digest))
  })
})

it('is the same, bit for bit, from a tree in another folder that was built at another time', () => {
  const copy = join(folder, 'another place')
  const names = [
    'LICENSE',
    'binding.gyp',
    'deploy',
    'native',
    'package-lock.json',
    'package.json',
    'src',
    'tsconfig.json',
  ]
  for (const name of [...names, 'test/support'])
    cpSync(join(TOP, name), join(copy, name), { recursive: true })
  mkdirSync(join(copy, 'node_modules'))
  for (const name of readdirSync(join(TOP, 'node_modules')).filter(name => !name.startsWith('.')))
    symlinkSync(join(TOP, 'node_modules', name), join(copy, 'node_modules', name))
  const { commit, date } = readJson(join(TOP, 'dist/build.json'))
  const env = { ...process.env, KPROBE_COMMIT: commit, KPROBE_COMMIT_DATE: date, TZ: 'Asia/Tokyo' }
  // In a network of its own, where deploy/keep-code.mjs reaches the API server of the tests.
  const script = 'umask 077; ip link set lo up; "$0" native/build.mjs && exec "$0" deploy/build.mjs'
  execFileSync('unshare', ['-n', 'sh', '-c', script, process.execPath], { cwd: copy, env, stdio: 'pipe' })
  const parts = [
    'kprobe.node',
    'program.js',
    `program.${process.arch}.cache`,
    'build.json',
    'ui/page.html',
    'ui/page.css',
    'ui/page.js',
  ]
  const digests = (top: string) => parts.map(name => [name, sha256(join(top, 'dist', name))])
  expect(digests(copy)).toEqual(digests(TOP))
  const { status, stdout } = imageOf(copy, [
    '--uncompressed',
    `--output=${join(folder, 'again')}`,
    '--tag=registry.example/a/kprobe:1',
  ])
  expect(status).toBe(0)
  expect(JSON.parse(stdout)).toMatchObject({ digest: result.digest })
})

describe('the bill of materials', () => {
  interface Component {
    readonly name: string
    readonly version: string
    readonly purl?: string
    readonly type: string
    readonly properties?: readonly { readonly value: string }[]
  }
  const bill = (): { readonly components: readonly Component[] } => readJson(result.sbom)

  it('says of npm packages what npm says', () => {
    const argv = ['sbom', '--sbom-format=cyclonedx', '--package-lock-only', '--offline']
    const npm = JSON.parse(execFileSync('npm', argv, { cwd: TOP, encoding: 'utf8' }))
    const ours = bill().components.filter(({ purl }) => purl?.startsWith('pkg:npm/'))
    expect(ours.length).toBeGreaterThan(2)
    for (const { properties: _, ...component } of ours)
      expect(npm.components).toContainEqual(expect.objectContaining(component))
  })

  it('says which packages the daemon loads, and which its commands alone', () => {
    const loadedBy = new Map(bill().components.map(({ name, properties }) => [name, properties?.[0]?.value]))
    expect(['pino', 'prom-client', 'yaml'].map(name => loadedBy.get(name))).toEqual(Array(3).fill('daemon'))
    expect(loadedBy.get('client-node') ?? loadedBy.get('@kubernetes/client-node')).toBe('commands')
  })

  it('has each package that the program has code of', () => {
    const program = readFileSync(join(root, 'opt/kprobe/program.js'), 'utf8')
    const inProgram = [...program.matchAll(/"node_modules\/((?:@[^/"]+\/)?[^/"]+)\//g)].map(
      ([, name]) => name,
    )
    const names = bill().components.map(({ name }) => name)
    expect([...new Set(inProgram)].filter(name => !names.includes(name ?? ''))).toEqual([])
    expect(names).toEqual(expect.arrayContaining(['pino', 'yaml', 'ffi-rs', 'node']))
  })

  it('has Node.js and each library of the image, and is in the image', () => {
    const files = readdirSync(root, { recursive: true, encoding: 'utf8' }).filter(name =>
      /\.so(\.\d+)*$/.test(name),
    )
    const text = readFileSync(result.sbom, 'utf8')
    expect(files.length).toBeGreaterThan(3)
    expect(files.filter(name => !text.includes(`"/${name}"`))).toEqual([])
    expect(bill().components).toContainEqual(
      expect.objectContaining({ name: 'node', version: process.versions.node }),
    )
    expect(readFileSync(join(root, 'opt/kprobe/sbom.cdx.json'), 'utf8')).toBe(text)
  })
})

describe('npm run image', () => {
  it('refuses what it cannot do, in one line that says why', () => {
    const refused = (flags: readonly string[]) => {
      const { status, stderr } = image(...flags)
      return [status, stderr.trim().split('\n').at(-1)]
    }
    expect(refused(['--tga=x'])).toEqual([
      2,
      expect.stringMatching(/--tga.*; npm run image -- --help lists the flags$/),
    ])
    expect(refused(['--tag=Kprobe'])).toEqual([1, expect.stringContaining('Kprobe is no name of an image')])
    expect(refused([`--output=${join(TOP, 'docs')}`])).toEqual([
      1,
      expect.stringContaining('is no OCI layout'),
    ])
    expect(refused([`--rootfs=${TOP}`])).toEqual([1, expect.stringContaining('is not empty')])
    expect(refused([`--cross=${folder}`])).toEqual([1, expect.stringContaining('has no bin/node')])
    expect(readdirSync(folder).filter(name => name.startsWith('.'))).toEqual([])
  })

  it('lists its flags on docs/image.md', () => {
    const { stdout } = image('--help')
    const flags = [...stdout.matchAll(/^ {2}--([\w-]+)/gm)].map(([, name]) => `--${name}`)
    expect(flags.length).toBeGreaterThan(5)
    expect(flags.filter(flag => !PAGE.includes(`\`${flag}`))).toEqual([])
  })

  it('writes the root file system for the Dockerfile', () => {
    const into = join(folder, 'rootfs')
    expect(image(`--rootfs=${into}`).status).toBe(0)
    const { status, stdout } = spawnSync('diff', ['-r', '--no-dereference', into, root], { encoding: 'utf8' })
    const added = ['Only in .*: examples', 'Only in .*: lib', 'Only in .*: var'].map(text => new RegExp(text))
    expect(stdout.split('\n').filter(line => line !== '' && !added.some(each => each.test(line)))).toEqual([])
    expect(status).toBe(1)
  })
})

/** Where the files are that the tests added to the root. */
const ONCE = ['--source=file:/etc/examples', '--hostname-override=example-node', '--once'] as const

/**
 * Runs a program in the image's file system, read-only, with these capabilities and no way to gain others; beside them
 * only the one by which the test changes the root.
 */
function startInImage(file: string, capabilities: readonly string[], argv: readonly string[]) {
  const bounding = ['-all', '+sys_chroot', ...capabilities.map(name => `+${name}`)].join(',')
  const script = [
    'set -e',
    'mount --rbind "$1" "$1"',
    'mount --rbind /proc "$1/proc"',
    'mount -o remount,bind,ro "$1"',
    'root=$1; bounding=$2; file=$3; shift 3',
    'exec setpriv --bounding-set "$bounding" --inh-caps -all --no-new-privs \\',
    '  chroot "$root" "$file" "$@"',
  ].join('\n')
  return spawnSync('unshare', ['-Urnm', 'sh', '-c', script, 'sh', root, bounding, file, ...argv], {
    encoding: 'utf8',
    timeout: patientMs(30_000),
    env: { PATH: process.env.PATH },
  })
}

describe('in the image', () => {
  it('are Node, kprobe and their libraries, and no shell', () => {
    const names = readdirSync(root, { recursive: true }).map(String)
    expect(names.filter(name => /(^|\/)(sh|bash|dash|busybox|apt|dpkg|npm)$/.test(name))).toEqual([])
    expect(existsSync(join(root, 'opt/kprobe/kprobe.node'))).toBe(true)
  })

  it('kprobe programs the kernel with NET_ADMIN alone, from a read-only root (F113)', () => {
    const { status, stderr, stdout } = startInImage('/usr/local/bin/kprobe', ['net_admin'], ['run', ...ONCE])
    expect({ status, stdout }).toEqual({ status: 0, stdout: '' })
    expect(stderr).toContain('first sync complete')
  })

  it('kprobe names the capability that it lacks (F114)', () => {
    const { status, stderr } = startInImage('/usr/local/bin/kprobe', [], ['run', ...ONCE])
    expect(status).toBe(1)
    expect(stderr).toContain('CAP_NET_ADMIN')
  })

  it("kube-proxy takes the command line and the ConfigMap of kubeadm's DaemonSet", () => {
    const argv = ['--config=/var/lib/kube-proxy/config.conf', ...ONCE]
    const { status, stderr, stdout } = startInImage('/usr/local/bin/kube-proxy', ['net_admin'], argv)
    expect({ status, stdout }).toEqual({ status: 0, stdout: '' })
    expect(stderr).toContain('first sync complete')
  })

  it('the commands answer, V8 takes the compiled code, and what doctor loads is there', () => {
    const { version } = readJson(join(TOP, 'dist/build.json'))
    // As RKE2 starts it: by name.
    const answer = startInImage('kube-proxy', [], ['--version'])
    expect({ status: answer.status, stdout: answer.stdout }).toEqual({
      status: 0,
      stdout: expect.stringContaining(version),
    })
    const doctor = startInImage('/usr/local/bin/kprobe', ['net_admin'], ['doctor'])
    expect({ status: doctor.status, stderr: doctor.stderr }).toEqual({ status: 0, stderr: '' })
    expect(doctor.stdout).toContain('kprobe can serve here')
    const load = "require('module').createRequire('/opt/kprobe/kprobe.mjs')('ffi-rs').load.length"
    expect(startInImage('/usr/bin/node', [], ['-p', load])).toMatchObject({ status: 0, stdout: '1\n' })
    const code = `const source = fs.readFileSync('/opt/kprobe/program.js', 'latin1')
      const cachedData = fs.readFileSync('/opt/kprobe/program.${process.arch}.cache')
      const filename = 'program.js'
      process.stdout.write(String(new vm.Script(source, { cachedData, filename }).cachedDataRejected))`
    expect(startInImage('/usr/bin/node', [], ['--v8-pool-size=1', '-e', code]).stdout).toBe('false')
  })
})

describe('the Dockerfile', () => {
  const matches = (text: string, pattern: RegExp) =>
    [...text.matchAll(pattern)].map(([, found = '']) => found)

  it('is described by docs/image.md: its arguments, its stages and its files', () => {
    const given = matches(PAGE, /--build-arg (\w+)=/g)
    const listed = matches(PAGE, /^\| `([A-Z_]+)` \|/gm)
    expect([...new Set(matches(DOCKERFILE, /^ARG (\w+)/gm))].sort()).toEqual([...listed].sort())
    expect(given.filter(name => !listed.includes(name))).toEqual([])
    const stages = matches(DOCKERFILE, / AS (\w+)$/gm)
    for (const target of matches(PAGE, /--target (\w+)/g)) expect(stages).toContain(target)
    const paths = matches(PAGE, /^\| (`\/.*?`) \|/gm).flatMap(cell => matches(cell, /`(\/[^`]+)`/g))
    expect(paths.length).toBeGreaterThan(5)
    expect(paths.filter(path => !existsSync(join(root, path)))).toEqual([])
  })

  it('builds from files that are there and that the build context has', () => {
    const ignored = readFileSync(join(TOP, '.dockerignore'), 'utf8').split('\n')
    const copied = [...DOCKERFILE.matchAll(/^COPY ([^-\n].*) \S+$/gm)].flatMap(([, names = '']) =>
      names.split(' '),
    )
    expect(copied).toContain('package.json')
    for (const name of [...copied, 'deploy/image/main.mjs', 'deploy/build.mjs', 'native', 'src']) {
      expect(existsSync(join(TOP, name)), name).toBe(true)
      expect(ignored).not.toContain(name.split('/')[0])
    }
  })
})
