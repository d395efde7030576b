import { execFileSync, spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { ALL_IP } from '../support/back-end.ts'
import { patientMs } from '../support/patience.ts'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const ENTRIES = ['kprobe', 'kprobe/netlink', 'kprobe/nft']

/** An empty project with the packed package in it, and its dependencies where npm would put them. */
let project: string
let packed: readonly string[]

beforeAll(() => {
  project = mkdtempSync(join(tmpdir(), 'kprobe-test-'))
  const words = ['pack', '--ignore-scripts', '--offline', '--json', '--pack-destination', project]
  const [pack] = JSON.parse(
    execFileSync('npm', words, { cwd: ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }),
  )
  packed = pack.files.map(({ path }: { path: string }) => path)
  const home = join(project, 'node_modules/kprobe')
  mkdirSync(home, { recursive: true })
  execFileSync('tar', ['-xzf', join(project, pack.filename), '-C', home, '--strip-components=1'])
  const { dependencies } = JSON.parse(readFileSync(join(home, 'package.json'), 'utf8'))
  for (const name of [...Object.keys(dependencies), '@types/node']) {
    const place = join(project, 'node_modules', name)
    mkdirSync(dirname(place), { recursive: true })
    symlinkSync(join(ROOT, 'node_modules', name), place)
  }
  writeFileSync(join(project, 'package.json'), '{"type":"module","private":true}')
})

afterAll(() => rmSync(project, { recursive: true, force: true }))

/** Compiles one file of the project; gives what the compiler complains of. */
function compile(file: string, ...more: string[]): string {
  const options = ['--strict', '--target', 'es2022', '--module', 'nodenext', '--types', 'node', ...more]
  const { stdout, status } = spawnSync(`${ROOT}node_modules/.bin/tsc`, [...options, file], {
    cwd: project,
    encoding: 'utf8',
  })
  return status === 0 ? '' : stdout
}

function run(...words: string[]): {
  readonly code: number | null
  readonly out: string
  readonly err: string
} {
  const { status, stdout, stderr } = spawnSync(process.execPath, words, {
    cwd: project,
    encoding: 'utf8',
    timeout: patientMs(60_000),
  })
  return { code: status, out: stdout, err: stderr }
}

function write(name: string, text: string): void {
  writeFileSync(join(project, name), text)
}

function blocks(document: string, kind: string): readonly string[] {
  const text = readFileSync(join(ROOT, document), 'utf8')
  return [...text.matchAll(new RegExp(`^\`\`\`${kind}\n([\\s\\S]*?)^\`\`\`$`, 'gm'))].map(
    ([, code]) => code ?? '',
  )
}

interface Link {
  readonly from: string
  readonly to: string
}

/** Relative links of a packed document, from the root of the package. */
function linksOf(document: string): readonly Link[] {
  const text = readFileSync(join(project, 'node_modules/kprobe', document), 'utf8').replace(
    /^```[\s\S]*?^```$/gm,
    '',
  )
  return [...text.matchAll(/\]\(([^)#\s]+)(?:#[^)]*)?\)/g)].flatMap(([, target = '']) =>
    /^[a-z]+:/.test(target) ? [] : [{ from: document, to: join(dirname(document), target) }],
  )
}

function isPacked(target: string): boolean {
  const path = target.replace(/\/$/, '')
  return packed.some(file => file === path || file.startsWith(`${path}/`))
}

describe('the packed package', () => {
  test('holds what it exports, and none of the sources and tests', () => {
    const { exports } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'))
    const targets = Object.values<string | Record<string, string>>(exports).flatMap(each =>
      typeof each === 'string' ? [each] : Object.values(each),
    )
    expect(targets).toHaveLength(2 * ENTRIES.length + 1)
    for (const target of targets) expect(packed).toContain(target.replace(/^\.\//, ''))
    expect(packed).toContain('dist/kprobe.node')
    for (const name of ['page.html', 'page.css', 'page.js']) expect(packed).toContain(`dist/ui/${name}`)
    const inside = packed.filter(path => /^(src|test|node_modules)\//.test(path))
    expect(inside.filter(path => !path.endsWith('/README.md'))).toEqual(['src/api/localv1.proto'])
  })

  test('holds what its documents lead to: the reference, the examples, the manifests', () => {
    const documents = packed.filter(path => path.endsWith('.md'))
    for (const path of [
      'README.md',
      'docs/library.md',
      'docs/api/nft.md',
      'deploy/examples/all-ip/README.md',
    ])
      expect(documents).toContain(path)
    expect(packed).toContain('deploy/examples/all-ip/all-ip.mjs')
    expect(packed).toContain('deploy/examples/watch/watch.mjs')
    const links = documents.flatMap(linksOf)
    expect(links).toContainEqual({ from: 'docs/library.md', to: 'deploy/examples/all-ip/README.md' })
    expect(links.filter(({ to }) => !isPacked(to))).toEqual([])
  })

  test('the example of docs/library.md compiles, every declaration checked, and runs', () => {
    const [code, ...others] = blocks('docs/library.md', 'ts')
    expect(others).toEqual([])
    write('smallest.ts', code ?? '')
    expect(compile('smallest.ts')).toBe('')
    expect(compile('smallest.ts', '--noEmit', '--module', 'esnext', '--moduleResolution', 'bundler')).toBe('')
    write('objects.yaml', OBJECTS)
    const { code: exit, out, err } = run('smallest.js', 'objects.yaml')
    expect(out, err).toBe('default/web 10.0.0.1:8080 [fd00::1]:8080\ntrue\n')
    expect(exit).toBe(0)
  })

  test('a use that the types forbid does not compile', () => {
    write('wrong.ts', "import { runDataplane } from 'kprobe'\nawait runDataplane({ nodeName: 'a' })\n")
    expect(compile('wrong.ts', '--noEmit')).toContain('error TS')
  })

  test('the netlink and nft layers speak with the kernel', () => {
    write(
      'layers.ts',
      `import { Connection, NETLINK_GENERIC, findFamily, NetlinkError, openNetlink } from 'kprobe/netlink'
import { systemClock } from 'kprobe'
import { openNftClient, LAYOUTS, makeTable, natChains, type Ruleset, diffRulesets, printRuleset } from 'kprobe/nft'
const generic = new Connection({ transport: openNetlink({ protocol: NETLINK_GENERIC }), clock: systemClock })
const family: number = findFamily(generic, 'nlctrl')
try { findFamily(generic, 'nobody') } catch (error) { console.log(error instanceof NetlinkError && error.code) }
await generic.close()
const client = openNftClient()
const name = 'of-a-consumer'
const chains = natChains({ translate: [], postrouting: [] })
const wanted: Ruleset = { tables: [makeTable({ family: LAYOUTS.ip6.family, name, chains })] }
const { transaction } = diffRulesets({ tables: [] }, wanted, { lateSets: new Set() })
const { outcome } = await client.commit(transaction)
const { ruleset } = await client.list([{ family: 'ip6', name }])
console.log(family, outcome, [...printRuleset(ruleset)].length)
await client.commit([{ verb: 'delete-table', family: 'ip6', table: name }])
await client.close()
`,
    )
    expect(compile('layers.ts')).toBe('')
    const { out, err } = run('layers.js')
    expect(out, err).toBe('ENOENT\n16 committed 13\n')
  })

  test('without the addon, what needs none works, and the rest says what is missing', () => {
    const addon = join(project, 'node_modules/kprobe/dist/kprobe.node')
    renameSync(addon, `${addon}.away`)
    onTestFinished(() => renameSync(`${addon}.away`, addon))
    write(
      'formats.mjs',
      "import { formatIp, parseIp } from 'kprobe'\nconsole.log(formatIp(parseIp('2001:DB8::1')))\n",
    )
    expect(run('formats.mjs').out).toBe('2001:db8::1\n')
    write('opens.mjs', "import { openNftClient } from 'kprobe/nft'\nopenNftClient()\n")
    expect(run('opens.mjs').err).toContain("kprobe's addon is not built")
  })

  test('other paths than the entry points cannot be imported', () => {
    write('inside.mjs', "await import('kprobe/dist/lib/index.js')\n")
    expect(run('inside.mjs').err).toContain('ERR_PACKAGE_PATH_NOT_EXPORTED')
  })

  test('the all-ip proxy compiles against it, in at most 40 lines, with nothing but the entry points', () => {
    const text = readFileSync(join(ALL_IP, 'all-ip.mjs'), 'utf8')
    expect(text.trimEnd().split('\n').length).toBeLessThanOrEqual(40)
    expect(text.split('\n').filter(line => line.length > 110)).toEqual([])
    const from = [...text.matchAll(/\bfrom '([^']+)'|\bimport\('([^']+)'\)/g)].map(([, a, b]) => a ?? b ?? '')
    expect(from.filter(name => !ENTRIES.includes(name) && !name.startsWith('node:'))).toEqual([])
    write('all-ip.mjs', text)
    expect(compile('all-ip.mjs', '--noEmit', '--allowJs', '--checkJs')).toBe('')
    expect(run('--check', 'all-ip.mjs').code).toBe(0)
  })
})

const OBJECTS = `
apiVersion: v1
kind: Service
metadata: { namespace: default, name: web }
spec:
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1, "fd00:96::1"]
  ipFamilies: [IPv4, IPv6]
  ports: [{ port: 80 }]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { namespace: default, name: web-a, labels: { kubernetes.io/service-name: web } }
addressType: IPv4
endpoints: [{ addresses: [10.0.0.1] }]
ports: [{ name: "", port: 8080 }]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { namespace: default, name: web-b, labels: { kubernetes.io/service-name: web } }
addressType: IPv6
endpoints: [{ addresses: ["fd00::1"] }]
ports: [{ name: "", port: 8080 }]
`
