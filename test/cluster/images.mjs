// The images that upstream's tests name, from one root file system of Debian and the programs built beside it, in a store
// of containerd that nodes take their own from.
import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const SUITE = 'bookworm'
/** What the programs in upstream's images call, which are made of Alpine and Debian. */
const PACKAGES = [
  ...[
    'bash',
    'bind9-dnsutils',
    'bind9-host',
    'busybox',
    'ca-certificates',
    'conntrack',
    'curl',
    'iperf',
    'iproute2',
  ],
  ...['iptables', 'iputils-ping', 'netcat-openbsd', 'nftables', 'nginx-light', 'procps', 'wget'],
]
const NOT_UNPACKED = ['doc', 'man', 'locale'].map(name => `--dpkgopt=path-exclude=/usr/share/${name}/*`)
const DEBIAN_SOURCES = '/etc/apt/sources.list.d/debian.sources'
const OCI = 'application/vnd.oci.image'
const PLATFORM = { architecture: 'amd64', os: 'linux' }
const PATH = 'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
/** The image of test/cluster/addons.ts. */
export const COREDNS_IMAGE = 'kprobe.example/coredns:test'

/** The name of the program: another one when its plugins have changed. */
export const COREDNS = `coredns-${digestOf('programs/coredns/main.go')}`

/** The store in the folder of the programs; another one when this file or CoreDNS has changed. */
export function imagesFolder(folder) {
  return join(folder, `images-${digestOf('images.mjs')}-${COREDNS}`)
}

function digestOf(file) {
  const sum = createHash('sha256').update(readFileSync(fileURLToPath(new URL(file, import.meta.url))))
  return sum.digest('hex').slice(0, 12)
}

/** Builds the store from the programs in `folder`; `kubernetes` is the folder of the Go module of that name. */
export function buildImages(folder, kubernetes) {
  const store = imagesFolder(folder)
  if (existsSync(store)) return
  const work = join(folder, `.images.${process.pid}`)
  try {
    const root = rootFileSystem(folder)
    const began = Date.now()
    process.stdout.write('building images ... ')
    const names = execFileSync(join(folder, 'e2e.test'), ['--list-images'], { encoding: 'utf8' }).split('\n')
    const layout = new Layout(join(work, 'layout'))
    addImages(layout, { folder, kubernetes, root, names, work })
    layout.finish()
    execFileSync('tar', ['-cf', join(work, 'images.tar'), '-C', join(work, 'layout'), '.'])
    importInto(join(work, 'store'), folder, join(work, 'images.tar'))
    writeFileSync(join(work, 'store/pause-name'), named(names, /\/pause:/)[0])
    renameSync(join(work, 'store'), store)
    console.log(`${Math.round((Date.now() - began) / 1000)} s`)
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
}

/** One tar archive, from the mirrors that apt uses on this machine. */
function rootFileSystem(folder) {
  const file = join(folder, 'debian.tar')
  if (existsSync(file)) return file
  const began = Date.now()
  process.stdout.write('building debian.tar ... ')
  const unfinished = join(folder, '.debian.tar')
  const sources = existsSync(DEBIAN_SOURCES) ? DEBIAN_SOURCES : '/etc/apt/sources.list'
  const args = ['--quiet', '--variant=essential', `--include=${PACKAGES.join(',')}`, ...NOT_UNPACKED]
  const run = spawnSync('mmdebstrap', [...args, SUITE, unfinished, sources], { encoding: 'utf8' })
  if (run.status !== 0) throw new Error(`mmdebstrap: ${run.error?.message ?? run.stderr.slice(-2_000)}`)
  renameSync(unfinished, file)
  console.log(`${Math.round((Date.now() - began) / 1000)} s`)
  return file
}

function addImages(layout, { folder, kubernetes, root, names, work }) {
  const applets = execFileSync('busybox', ['--list'], { encoding: 'utf8' }).split('\n').filter(Boolean)
  const inRoot = execFileSync('tar', ['-tf', root], { encoding: 'utf8', maxBuffer: 1 << 26 }).split('\n')
  const programs = new Set(inRoot.map(name => basename(name)))
  const applet = name => ({ path: `usr/local/bin/${name}`, target: '/usr/bin/busybox' })
  const layer = (name, files) => layout.blobOf(layerOf(join(work, name), files))
  const program = name => ({ path: name, from: join(folder, name) })
  const porter = name => ({ path: name, from: join(kubernetes, 'test/images/agnhost/porter', name) })
  const debian = layout.blobOf(root)
  const agnhost = layer('agnhost', [
    program('agnhost'),
    { path: 'coredns', from: join(folder, COREDNS) },
    program('regression-issue-74839'),
    { path: 'agnhost-2', target: 'agnhost' },
    { path: 'usr/local/bin/iperf', target: '/usr/bin/iperf' },
    { path: 'etc/wgetrc', text: 'tries = 1\n' },
    { path: 'uploads', isFolder: true },
    ...['localhost.crt', 'localhost.key'].map(porter),
    ...applets.filter(name => !programs.has(name)).map(applet),
  ])
  // Debian's busybox has a wget that crashes with -T: GNU's is there instead.
  const isOwn = name => name !== 'busybox' && name !== 'wget'
  const busybox = layer('busybox', applets.filter(isOwn).map(applet))
  const pause = layer('pause', [{ path: 'pause', from: compilePause(work, kubernetes) }])
  const add = (pattern, layers, config) => layout.addImage(named(names, pattern), layers, config)
  add(/\/pause:/, [pause], { Entrypoint: ['/pause'], User: '65535:65535' })
  add(/e2e-test-images\/agnhost:/, [debian, agnhost], { Entrypoint: ['/agnhost'], Cmd: ['pause'] })
  add(/\/(glibc-dns-testing|distroless-iptables|jessie-dnsutils):/, [debian, agnhost], { Cmd: ['/bin/bash'] })
  add(/\/nginx:/, [debian], { Cmd: ['nginx', '-g', 'daemon off;'] })
  add(/\/busybox:/, [debian, busybox], { Cmd: ['sh'] })
  add(/\/regression-issue-74839:/, [debian, agnhost], { Entrypoint: ['/regression-issue-74839'] })
  layout.addImage([COREDNS_IMAGE], [debian, agnhost], { Entrypoint: ['/coredns'] })
}

function named(names, pattern) {
  const found = names.filter(name => pattern.test(name))
  if (found.length === 0) throw new Error(`e2e.test --list-images names no image like ${pattern}`)
  return found
}

/** A tar archive of these files, the same each time. */
function layerOf(folder, files) {
  for (const { path, from, target, text, isFolder } of files) {
    const file = join(folder, path)
    mkdirSync(isFolder ? file : dirname(file), { recursive: true })
    if (from !== undefined) copyFileSync(from, file)
    if (target !== undefined) symlinkSync(target, file)
    if (text !== undefined) writeFileSync(file, text)
  }
  const archive = `${folder}.tar`
  const same = ['--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner', '--mode=a+rX,u+w']
  execFileSync('tar', [...same, '-cf', archive, '-C', folder, '.'])
  return archive
}

function compilePause(work, kubernetes) {
  const file = join(work, 'pause-program')
  const source = join(kubernetes, 'build/pause/linux/pause.c')
  execFileSync('gcc', ['-Os', '-static', '-DVERSION=test', '-o', file, source])
  return file
}

/** An OCI image layout that is written into a folder. */
class Layout {
  #folder
  #manifests = []

  constructor(folder) {
    this.#folder = folder
    mkdirSync(join(folder, 'blobs/sha256'), { recursive: true })
  }

  /** Puts the file in, and gives its digest and size. */
  blobOf(file) {
    const digest = createHash('sha256').update(readFileSync(file)).digest('hex')
    copyFileSync(file, join(this.#folder, 'blobs/sha256', digest))
    return { digest: `sha256:${digest}`, size: statSync(file).size }
  }

  addImage(references, layers, config) {
    const mediaType = `${OCI}.manifest.v1+json`
    const configuration = this.#json({
      ...PLATFORM,
      config: { Env: [PATH], ...config },
      rootfs: { type: 'layers', diff_ids: layers.map(({ digest }) => digest) },
    })
    const manifest = this.#json({
      schemaVersion: 2,
      mediaType,
      config: { mediaType: `${OCI}.config.v1+json`, ...configuration },
      layers: layers.map(layer => ({ mediaType: `${OCI}.layer.v1.tar`, ...layer })),
    })
    for (const name of references)
      this.#manifests.push({
        mediaType,
        ...manifest,
        platform: PLATFORM,
        annotations: { 'io.containerd.image.name': name, 'org.opencontainers.image.ref.name': name },
      })
  }

  finish() {
    const index = { schemaVersion: 2, mediaType: `${OCI}.index.v1+json`, manifests: this.#manifests }
    writeFileSync(join(this.#folder, 'index.json'), JSON.stringify(index))
    writeFileSync(join(this.#folder, 'oci-layout'), JSON.stringify({ imageLayoutVersion: '1.0.0' }))
  }

  #json(value) {
    const text = JSON.stringify(value)
    const digest = createHash('sha256').update(text).digest('hex')
    writeFileSync(join(this.#folder, 'blobs/sha256', digest), text)
    return { digest: `sha256:${digest}`, size: Buffer.byteLength(text) }
  }
}

/** Runs containerd once, in a mount namespace of its own, to unpack the archive as nodes will mount it. */
function importInto(store, folder, archive) {
  mkdirSync(store, { recursive: true })
  const config = `${store}.toml`
  writeFileSync(
    config,
    `version = 3\nroot = "${store}"\nstate = "/run/containerd"\n[grpc]\naddress = "/run/containerd/containerd.sock"\n`,
  )
  const script = `mount -t tmpfs tmpfs /run
containerd --config "$1" >"$1.log" 2>&1 & server=$!
ctr="ctr --address /run/containerd/containerd.sock"
tries=0
until $ctr version >/dev/null 2>&1; do
  tries=$((tries + 1)); [ $tries -lt 300 ] || { tail -n 20 "$1.log" >&2; kill $server; exit 1; }
  sleep 0.2
done
$ctr --namespace k8s.io images import --snapshotter overlayfs "$2" >"$1.import.log" 2>&1 || { cat "$1.import.log" >&2; kill $server; exit 1; }
kill $server; wait $server; true`
  const unshare = ['--mount', '--net', '--propagation', 'private', 'sh', '-c', script, 'sh', config, archive]
  const run = spawnSync('unshare', unshare, {
    encoding: 'utf8',
    env: { ...process.env, PATH: `${folder}:${process.env.PATH}` },
  })
  if (run.status !== 0) throw new Error(`containerd cannot import ${archive}: ${run.stderr.slice(-2_000)}`)
}
