// npm run krew: writes the plugin of kubectl as an archive for krew, and the manifest that names it. See HELP below.
import { createHash } from 'node:crypto'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { gzipSync } from 'node:zlib'
import { stringify } from 'yaml'
import { loadSource } from '../load-source.mjs'

const TOP = fileURLToPath(new URL('../..', import.meta.url))
const HELP = `npm run krew -- --url URL [--folder FOLDER]: writes kubectl-kprobe-VERSION.tar.gz and kubectl-kprobe-VERSION.yaml

  --url URL         where the archive will be: the manifest has URL/kubectl-kprobe-VERSION.tar.gz
  --folder FOLDER   where the two files go (default: the current one)
  --help            print this

It takes dist/ as npm run build left it. The plugin needs Node.js 20 or newer, and no addon.
`
const OPTIONS = {
  url: { type: 'string' },
  folder: { type: 'string', default: '.' },
  help: { type: 'boolean', default: false },
}
/** Of dist/, with the license beside them, which krew asks for. */
const FILES = [
  ['dist/kubectl-kprobe.mjs', 0o755],
  ['dist/kprobe.mjs', 0o755],
  ['dist/program.js', 0o644],
  ['dist/client-node.cjs', 0o644],
  ['LICENSE', 0o644],
]

function manifestOf({ version, uri, sha256 }) {
  const platform = {
    selector: { matchExpressions: [{ key: 'os', operator: 'In', values: ['linux', 'darwin'] }] },
    uri,
    sha256,
    bin: 'kubectl-kprobe.mjs',
  }
  return {
    apiVersion: 'krew.googlecontainertools.github.com/v1alpha2',
    kind: 'Plugin',
    metadata: { name: 'kprobe' },
    spec: {
      version: `v${version}`,
      shortDescription: 'Ask the kprobe service proxy of every node',
      description:
        'Runs status, verify, why, top or bundle in the pods of kprobe, and prints one table over all nodes, with an exit code for a rollout gate. migrate prints a script that moves one node from kube-proxy.',
      caveats: 'Needs Node.js 20 or newer on PATH, and the rights to list pods and to create pods/exec.',
      platforms: [platform],
    },
  }
}

async function archive() {
  const { tarHeader, tarPadding, tarEnd } = await loadSource('src/inspect/tar.ts')
  const parts = FILES.flatMap(([path, mode]) => {
    const data = readFileSync(join(TOP, path))
    const name = path.split('/').at(-1)
    return [tarHeader({ kind: 'file', path: name, mode, size: data.length }), data, tarPadding(data.length)]
  })
  return gzipSync(Buffer.concat([...parts, tarEnd()]), { level: 9 })
}

async function main() {
  const { url, folder, help } = parseArgs({ options: OPTIONS }).values
  if (help) return process.stdout.write(HELP)
  if (!/^https?:\/\/\S+$/.test(url ?? '')) throw new Error('--url is needed: where the archive will be')
  if (!existsSync(join(TOP, 'dist/kubectl-kprobe.mjs')))
    throw new Error('dist/ has no kubectl-kprobe.mjs: run npm run build')
  const { version } = JSON.parse(readFileSync(join(TOP, 'package.json'), 'utf8'))
  const name = `kubectl-kprobe-${version}`
  const bytes = await archive()
  const sha256 = createHash('sha256').update(bytes).digest('hex')
  writeFileSync(join(folder, `${name}.tar.gz`), bytes)
  const uri = `${url.replace(/\/+$/, '')}/${name}.tar.gz`
  writeFileSync(join(folder, `${name}.yaml`), stringify(manifestOf({ version, uri, sha256 })))
  process.stdout.write(`wrote ${name}.tar.gz and ${name}.yaml\n`)
}

main().catch(error => {
  process.stderr.write(`npm run krew: ${error.message}\n`)
  process.exitCode = 1
})
