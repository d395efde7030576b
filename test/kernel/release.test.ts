import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { ARM64_MISSING, ARM64_NODE } from '../support/arm64.ts'
import { temporaryFolder } from '../support/folder.ts'
import { patientMs } from '../support/patience.ts'

const TOP = fileURLToPath(new URL('../..', import.meta.url))
const { version } = JSON.parse(readFileSync(join(TOP, 'package.json'), 'utf8'))
const OWN = process.arch === 'x64' ? 'amd64' : process.arch
const ARCHITECTURES = ARM64_MISSING === '' ? [OWN, 'arm64'] : [OWN]
let folder = ''

/** `npm run release`, of what is in dist/. */
function release(flags: readonly string[], env: NodeJS.ProcessEnv = process.env) {
  const args = [join(TOP, 'deploy/release/main.mjs'), '--no-build', ...flags]
  const { status, stdout, stderr } = spawnSync(process.execPath, args, {
    encoding: 'utf8',
    env,
    timeout: patientMs(120_000),
  })
  return { code: status, out: stdout, err: stderr }
}

const read = (name: string) => readFileSync(join(folder, name))
const unpacked = (name: string) => {
  const into = join(temporaryFolder(), 'into')
  mkdirSync(into)
  execFileSync('tar', ['-xf', join(folder, name), '-C', into])
  return into
}

describe('npm run release -- --dry-run', () => {
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'kprobe-release-'))
    const flags = ['--dry-run', '--uncompressed', `--folder=${folder}`, '--url=https://host.example/x']
    const cross = ARM64_MISSING === '' ? [`--cross=${ARM64_NODE}`] : []
    expect(release([...flags, ...cross])).toMatchObject({ code: 0, err: '' })
  })

  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  it('writes all files, whose checksums hold', () => {
    const names = readdirSync(folder)
    expect(names.sort()).toEqual([
      'NOTES.md',
      'SHA256SUMS',
      ...ARCHITECTURES.flatMap(each => [
        `kprobe-${version}-${each}.cdx.json`,
        `kprobe-${version}-${each}.tar`,
      ]),
      `kprobe-chart-${version}.tgz`,
      `kprobe-npm-${version}.tgz`,
      `kubectl-kprobe-${version}.tar.gz`,
      `kubectl-kprobe-${version}.yaml`,
    ])
    const checked = execFileSync('sha256sum', ['-c', 'SHA256SUMS'], { cwd: folder, encoding: 'utf8' })
    expect(checked.trim().split('\n')).toHaveLength(names.length - 1)
  })

  it('packs the chart as it is, in a folder of its name', () => {
    const chart = join(unpacked(`kprobe-chart-${version}.tgz`), 'kprobe')
    expect(parse(readFileSync(join(chart, 'Chart.yaml'), 'utf8'))).toMatchObject({
      version,
      appVersion: version,
    })
    const { status, stdout } = spawnSync('diff', ['-r', chart, join(TOP, 'deploy/helm/kprobe')], {
      encoding: 'utf8',
    })
    expect([status, stdout]).toEqual([0, ''])
  })

  it('packs an npm package with the command, the addon and its sources', () => {
    const root = join(unpacked(`kprobe-npm-${version}.tgz`), 'package')
    expect(JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')).version).toBe(version)
    for (const path of ['dist/kprobe.mjs', 'dist/kprobe.node', 'native/binding.c', 'LICENSE'])
      expect(existsSync(join(root, path)), path).toBe(true)
  })

  it.each(ARCHITECTURES)('names the same image in its layout and its bill of materials: %s', architecture => {
    const tar = `kprobe-${version}-${architecture}.tar`
    const index = JSON.parse(
      execFileSync('tar', ['-xOf', join(folder, tar), 'index.json'], { encoding: 'utf8' }),
    )
    expect(JSON.stringify(index)).toContain(`:${version}"`)
    expect(index.manifests).toMatchObject([{ platform: { os: 'linux', architecture } }])
    const sbom = JSON.parse(read(tar.replace('.tar', '.cdx.json')).toString())
    expect(sbom).toMatchObject({ bomFormat: 'CycloneDX', metadata: { component: { version } } })
  })

  it.skipIf(ARM64_MISSING !== '')(`has images for both architectures${ARM64_MISSING}`, () => {
    expect([...ARCHITECTURES].sort()).toEqual(['amd64', 'arm64'])
  })

  it('takes the notes from CHANGELOG.md, and gives krew the place of its archive', () => {
    expect(readFileSync(join(TOP, 'CHANGELOG.md'), 'utf8')).toContain(read('NOTES.md').toString().trim())
    const { spec } = parse(read(`kubectl-kprobe-${version}.yaml`).toString())
    expect(spec.platforms[0].uri).toBe(`https://host.example/x/kubectl-kprobe-${version}.tar.gz`)
    expect(read('SHA256SUMS').toString()).toContain(`${spec.platforms[0].sha256}  kubectl-kprobe-`)
  })

  it('writes into no folder that has files', () => {
    const full = temporaryFolder()
    writeFileSync(join(full, 'x'), '')
    expect(release(['--dry-run', `--folder=${full}`])).toMatchObject({
      code: 1,
      err: expect.stringContaining('is not empty'),
    })
  })

  it('releases no commit without its tag, nor with uncommitted changes', () => {
    const [tree, into] = [temporaryFolder(), join(temporaryFolder(), 'none')]
    const env = { ...process.env, GIT_DIR: join(tree, '.git'), GIT_WORK_TREE: tree }
    const git = (...args: readonly string[]) => execFileSync('git', args, { env, cwd: tree })
    git('init', '-q')
    git('-c', 'user.name=a', '-c', 'user.email=a@b.example', 'commit', '-q', '--allow-empty', '-m', 'x')
    const refused = () => {
      const { code, err } = release([`--folder=${into}`], env)
      return [code, err.trim(), existsSync(into)]
    }
    const untagged = `npm run release: this commit has no tag v${version}; --dry-run needs none`
    expect(refused()).toEqual([1, untagged, false])
    git('tag', `v${version}`)
    writeFileSync(join(tree, 'changed'), '')
    expect(refused()).toEqual([1, 'npm run release: there are uncommitted changes', false])
  })
})
