#!/usr/bin/env node
// Measures kube-proxy and kprobe beside each other, on the objects of one real API server: see HELP in options.mjs.
import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync } from 'node:fs'
import { cpus, release } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { build } from 'esbuild'
import { buildPrograms, CACHE, kubernetesFlags, requiredVersion } from '../support/go-programs.mjs'
import { requireBuild } from '../support/require-build.mjs'
import { HELP, parseOptions } from './options.mjs'

const here = dirname(fileURLToPath(import.meta.url))
const root = join(here, '../..')
const out = join(root, '.cache/bench-cluster')
const bundle = join(out, 'cluster.mjs')

const { help, baseline, ...asked } = optionsOrExit(process.argv.slice(2))
if (help) {
  process.stdout.write(HELP)
  process.exit(0)
}
requireBuild()
const reference = spawnSync(process.execPath, [join(here, '../reference/build.mjs')], { stdio: 'inherit' })
if (reference.status !== 0) process.exit(reference.status ?? 1)

const missing = ['nft', 'iptables-nft-save', 'cc', 'unshare'].filter(
  tool => spawnSync(tool, ['--version']).error !== undefined,
)
if (missing.length > 0) {
  console.error(
    `${missing.join(', ')} missing; on Debian, as root: apt-get install nftables iptables gcc util-linux`,
  )
  process.exit(1)
}
const request = { ...asked, baseline: baseline ? await buildBaseline() : undefined }

mkdirSync(out, { recursive: true })
await build({
  entryPoints: [join(here, 'cluster.bench.ts')],
  outfile: bundle,
  bundle: true,
  platform: 'node',
  format: 'esm',
  target: 'node20',
  packages: 'external',
  external: ['*.node'],
  plugins: [whereTheSourceIs()],
  banner: {
    js: "import { createRequire as __createRequire } from 'node:module'; const require = __createRequire(import.meta.url);",
  },
  logLevel: 'warning',
})

// Root gets a network namespace alone, so that nft can force its send buffer; others a user namespace too.
const isRoot = process.getuid?.() === 0 && spawnSync('unshare', ['-nm', 'true']).status === 0
const namespace = isRoot ? '-nm' : '-Urnm'
console.log(
  `Node ${process.versions.node}, ${cpus().length} processors, Linux ${release()}, unshare ${namespace}`,
)
if (!isRoot)
  console.log('without root, nft cannot force its send buffer: kube-proxy may fail at the larger size')
const run = spawnSync('unshare', [namespace, process.execPath, bundle, JSON.stringify(request)], {
  cwd: root,
  stdio: 'inherit',
  env: { ...process.env, KPROBE_ROOT: root, KPROBE_BENCH_BUNDLE: bundle },
})
process.exit(run.status ?? 1)

function optionsOrExit(args) {
  try {
    return parseOptions(args)
  } catch (error) {
    const [what] = error.message.split('. ')
    console.error(`${what}; npm run bench:cluster -- --help lists commands and flags`)
    process.exit(2)
  }
}

/** Gives the path of the older kube-proxy. */
async function buildBaseline() {
  const module = join(here, 'kube-proxy-1.36')
  const version = requiredVersion(module, 'k8s.io/kubernetes')
  const folder = join(CACHE, 'reference', `kube-proxy-${version}`)
  const program = { name: 'kube-proxy', module, main: '.', ldflags: kubernetesFlags(version) }
  const status = await buildPrograms({ programs: [program], folder })
  if (status !== 0) process.exit(status)
  return join(folder, 'kube-proxy')
}

/** Programs and files are found beside the sources that use them, bundled or not. */
function whereTheSourceIs() {
  return {
    name: 'where-the-source-is',
    setup({ onLoad }) {
      onLoad({ filter: /\.ts$/ }, ({ path }) => ({
        loader: 'ts',
        contents: readFileSync(path, 'utf8').replaceAll(
          'import.meta.url',
          JSON.stringify(pathToFileURL(path).href),
        ),
      }))
    },
  }
}
