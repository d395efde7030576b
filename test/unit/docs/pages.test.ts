import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, normalize, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { RUN_FLAGS } from '../../../src/config/flags.ts'
import { MODES } from '../../../src/modes/registry.ts'
import { Page } from '../../support/page.ts'

const ROOT = fileURLToPath(new URL('../../..', import.meta.url))
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8')
const SIZING = 'deploy/helm/kprobe/sizing.yaml'
const manifest = JSON.parse(read('package.json'))

function pagesBelow(folder: string): readonly string[] {
  return readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter(path => path.endsWith('.md'))
    .map(path => join(folder, path))
}

const PAGES = ['README.md', 'CONTRIBUTING.md', 'SECURITY.md', ...pagesBelow('docs'), ...pagesBelow('src')]
const HOW_TOS = pagesBelow('docs/how-to')

/** The anchors that a page's headings get on a web page of the repository. */
function anchorsOf(path: string): ReadonlySet<string> {
  const headings = [...read(path).matchAll(/^#+ (.*)$/gm)].map(([, heading = '']) => heading)
  return new Set(
    headings.map(heading =>
      heading
        .toLowerCase()
        .replace(/[^\w\- ]/g, '')
        .replaceAll(' ', '-'),
    ),
  )
}

/** The links of a page to files of the repository that lead nowhere. */
function brokenLinks(path: string): readonly string[] {
  const links = [...read(path).matchAll(/\]\(([^)\s]+)\)/g)].map(([, link = '']) => link)
  return links.filter(link => {
    if (/^\w+:/.test(link)) return false
    const [file = '', anchor] = link.split('#')
    const target = file === '' ? path : normalize(join(dirname(path), file))
    if (!existsSync(join(ROOT, target))) return true
    return anchor !== undefined && target.endsWith('.md') && !anchorsOf(target).has(anchor)
  })
}

describe('README.md', () => {
  const lines = read('README.md').trimEnd().split('\n')

  it('has at most 200 lines of at most 100 columns', () => {
    expect(lines.length).toBeLessThanOrEqual(200)
    expect(lines.filter(line => line.length > 100)).toEqual([])
  })

  it('shows the picture that docs/picture/kprobe.txt describes', () => {
    expect(lines.join('\n')).toContain('](docs/picture/kprobe.svg)')
    const drawn = execFileSync(process.execPath, [join(ROOT, 'docs/picture/draw.mjs')], { encoding: 'utf8' })
    expect(read('docs/picture/kprobe.svg')).toBe(drawn)
  })

  it('leads to every how-to', () => {
    const text = lines.join('\n')
    expect(HOW_TOS.filter(path => !text.includes(`](${path})`))).toEqual([])
  })
})

describe('the pages', () => {
  it('have at most 250 lines; docs/api is made from the source', () => {
    const long = PAGES.filter(path => !path.startsWith('docs/api/')).flatMap(path => {
      const { length } = read(path).trimEnd().split('\n')
      return length > 250 ? [`${path}: ${length}`] : []
    })
    expect(long).toEqual([])
  })

  it('have links that lead somewhere', () => {
    expect(PAGES.length).toBeGreaterThan(40)
    expect(PAGES.flatMap(path => brokenLinks(path).map(link => `${path}: ${link}`))).toEqual([])
  })

  it('name who acts: a caller, a client, a reader', () => {
    const pages = PAGES.filter(path => path !== 'docs/terms.md' && !path.startsWith('docs/decisions/'))
    const word = /\b(?:nobody|somebody|who(?:so)?ever|whom)\b/gi
    expect(pages.flatMap(path => (read(path).match(word) ?? []).map(found => `${path}: ${found}`))).toEqual(
      [],
    )
  })

  it('name scripts of package.json', () => {
    const named = PAGES.flatMap(path =>
      [...read(path).matchAll(/npm run (?:-s )?([\w:]+)/g)].map(([, script = '']) => ({ path, script })),
    )
    expect(named.length).toBeGreaterThan(10)
    expect(named.filter(({ script }) => !(script in manifest.scripts))).toEqual([])
  })
})

describe.each(MODES.map(({ name, title }) => ({ name, title })))('$title mode', ({ name, title }) => {
  it('has a page about the path of a packet, which README.md and docs/modes.md name', () => {
    const page = `src/modes/${name}/README.md`
    expect(read(page)).toMatch(new RegExp(`^# ${title} mode\n`))
    expect(read('README.md')).toContain(`(${page})`)
    expect(read('docs/modes.md')).toContain(`(../${page})`)
    expect(read('docs/modes.md')).toContain(`\n## ${title} mode\n`)
  })

  it('is a value of --proxy-mode in docs/flags.md', () => {
    const row = read('docs/flags.md').match(/^\| `--proxy-mode` .*$/m)?.[0]
    expect(row).toContain(`\`${name}\``)
  })
})

describe('docs/architecture.md', () => {
  const text = read('docs/architecture.md')
  const rows = [...text.matchAll(/^\| `(src\/[^`]+)` \|/gm)].map(([, path]) => path)

  it('lists the folders of src/, two levels deep, and no others', () => {
    const folders = readdirSync(join(ROOT, 'src'), { recursive: true, withFileTypes: true })
      .filter(entry => entry.isDirectory())
      .map(entry => relative(ROOT, join(entry.parentPath, entry.name)))
      .filter(path => path.split('/').length <= 3)
    expect([...rows].sort()).toEqual(folders.sort())
  })

  it('names files that exist', () => {
    const table = text.slice(text.indexOf('## What runs by itself'), text.indexOf('## Folders'))
    const files = [...table.matchAll(/`(\w+\/[\w\-/]+(?:\.ts|\/))`/g)].map(([, path = '']) => path)
    expect(files.length).toBeGreaterThan(12)
    expect(files.filter(path => !existsSync(join(ROOT, 'src', path)))).toEqual([])
  })
})

describe('docs/tour.md', () => {
  const text = read('docs/tour.md')
  const pathsIn = (part: string) =>
    new Set([...part.matchAll(/`((?:src|test|docs|deploy)\/[^`\s]+)`/g)].map(([, path = '']) => path))

  it('names files that exist, and what is in them', () => {
    expect([...pathsIn(text)].filter(path => !existsSync(join(ROOT, path)))).toEqual([])
    const named = [...text.matchAll(/`(src\/[^`]+\.ts)`,\s+`(\w+)`/g)]
    expect(named.length).toBeGreaterThan(10)
    expect(
      named.filter(([, path = '', name = '']) => !read(path).includes(name)).map(([all]) => all),
    ).toEqual([])
  })

  it('asks for 25 to 30 files to be read, of at most 10,000 lines', () => {
    const files = [...pathsIn(text.slice(0, text.indexOf('## One EndpointSlice')))].filter(path =>
      path.endsWith('.ts'),
    )
    expect(files.length).toBeGreaterThanOrEqual(25)
    expect(files.length).toBeLessThanOrEqual(30)
    expect(files.map(path => read(path).split('\n').length - 1).reduce((a, b) => a + b)).toBeLessThanOrEqual(
      10_000,
    )
  })
})

describe('docs/flags.md', () => {
  it('names flags of kprobe run', () => {
    const rows = read('docs/flags.md').matchAll(/^\| (`--.*?) \|/gm)
    const named = [...rows].flatMap(([, cell = '']) =>
      [...cell.matchAll(/`--([\w-]+)`/g)].map(([, flag]) => flag),
    )
    const flags = new Set<string | undefined>(RUN_FLAGS.map(({ name }) => name))
    expect(named.length).toBeGreaterThan(20)
    expect(named.filter(flag => !flags.has(flag))).toEqual([])
  })
})

describe.each(HOW_TOS)('%s', path => {
  const page = new Page(path)
  const examples = page.blocks.filter(({ kind }) => kind.startsWith('ts '))

  it('has a worked example that a test runs', () => {
    expect(page.text).toContain('\n## Worked example\n')
    expect(examples.length + page.ofKind('sh shell').length).toBeGreaterThan(0)
  })

  it('shows test files as they are', () => {
    for (const { kind, text } of examples) expect(text).toBe(read(kind.replace('ts ', '')))
  })
})

describe('sentences that source decides', () => {
  /** The strings in single quotes of the part of a source file. */
  const quotedIn = (path: string, part: RegExp) =>
    [...(part.exec(read(path))?.[0] ?? '').matchAll(/'(\w+)'/g)].map(([, word = '']) => word)
  const paragraphsOf = (path: string) => read(path).split(/\n\n|\n(?=- )/)

  it('docs/commands-live.md has the words of `kprobe nodes` for a result, in its table and in JSON', () => {
    const marks = quotedIn('src/inspect/nodes/nodes.ts', /const MARKS[^}]*}/)
    const results = [...read('src/inspect/nodes/nodes.ts').matchAll(/^ {2}(\w+): '(?:ok|[A-Z]+)',$/gm)].map(
      ([, word]) => word,
    )
    const said = paragraphsOf('docs/commands-live.md').find(text => text.includes('has `nodes`')) ?? ''
    expect(marks.length + results.length).toBeGreaterThanOrEqual(6)
    expect(
      [...marks.filter(word => word !== 'result'), ...results].filter(word => !said.includes(`\`${word}\``)),
    ).toEqual([])
  })

  it('SECURITY.md names the protocols whose conntrack entries kprobe deletes', () => {
    const protocols = quotedIn('src/kernel/conntrack/flow.ts', /export type FlowProtocol.*/)
    const said = paragraphsOf('SECURITY.md').find(text => text.includes('connection-tracking entries')) ?? ''
    expect(protocols.length).toBeGreaterThanOrEqual(3)
    expect(protocols.filter(protocol => !said.includes(protocol))).toEqual([])
  })

  it('docs/look.md says that the pictures are of the demo, but for those that the test draws elsewhere', () => {
    const drawn =
      read('test/kernel/demo.long.test.ts').match(/const SHOWN = \[[\s\S]*?\] as const/)?.[0] ?? ''
    const pictures = [...read('docs/look.md').matchAll(/picture\/(\w+)\.svg/g)].map(([, name = '']) => name)
    expect(pictures.filter(name => !drawn.includes(`['${name}',`))).toEqual(pictures.slice(-1))
    expect(read('docs/look.md')).toContain('Every picture on this page but the last')
  })
})

describe('tables that a program writes', () => {
  const written = (program: string, flag: string) =>
    execFileSync(process.execPath, [join(ROOT, 'test/bench', program), flag], { encoding: 'utf8' })

  it.each([
    ['docs/scale.md', 'scale-table.mjs', '--print'],
    ['docs/sizing.md', 'sizing-table.mjs', '--print'],
    [SIZING, 'sizing-table.mjs', '--chart'],
  ])('%s has what follows from its numbers: test/bench/%s writes it anew', (path, program, flag) => {
    const text = written(program, flag)
    expect(read(path)).toBe(text)
    expect(text).not.toMatch(/NaN|undefined|Infinity/)
  })

  it('the first row of the chart with room is the smallest one', () => {
    interface Row {
      readonly mode: string
      readonly services: number
      readonly changes: number
      readonly cpu: string
      readonly memory: string
      readonly limit: string
    }
    const rows: readonly Row[] = parse(read(SIZING)).rows
    expect(rows.length).toBeGreaterThan(10)
    for (const [index, row] of rows.entries()) {
      const before = rows[index - 1]
      expect([row.cpu, row.memory, row.limit].join(' ')).toMatch(/^\d+m \d+Mi \d+Mi$/)
      if (before?.mode !== row.mode) continue
      expect(row.services * 1_000 + row.changes).toBeGreaterThan(before.services * 1_000 + before.changes)
      expect(parseInt(row.limit, 10)).toBeGreaterThanOrEqual(parseInt(before.limit, 10))
    }
  })
})
