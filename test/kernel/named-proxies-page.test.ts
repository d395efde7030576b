import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { missingLines, Page, PageShell } from '../support/page.ts'

/* The commands without a cluster; those of a cluster are run by test/reference/named-proxies-page.test.ts. */

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const PAGE = new Page('docs/named-proxies.md', 'docs/named-data-plane.md')
const steps = PAGE.steps('sh', 'sh files')

let outputs: readonly string[]
let shell: PageShell

beforeAll(async () => {
  const [opening] = PAGE.ofKind('sh shell')
  if (opening === undefined) throw new Error('the page opens no shell')
  // The rest of the page is what its shell reads.
  shell = new PageShell({ command: `exec ${opening.text}` })
  outputs = await shell.run(steps)
})

afterAll(() => shell?.end())

describe('docs/named-proxies.md', () => {
  test('holds commands that are run, what they print, and nothing else that looks like one', () => {
    expect(steps.length).toBeGreaterThan(12)
    expect(outputs).toHaveLength(steps.length)
    const kinds = new Set(PAGE.blocks.map(({ kind }) => kind))
    expect([...kinds].sort()).toEqual([
      'console',
      'sh',
      'sh cluster',
      'sh files',
      'sh setup',
      'sh shell',
      'yaml',
    ])
    expect(PAGE.ofKind('sh shell')).toHaveLength(1)
  })

  test.each(steps.map((step, index) => ({ ...step, index })).filter(({ said }) => said !== ''))(
    'prints what it says: $command',
    ({ said, index }) => {
      expect(missingLines(said, outputs[index] ?? ''), `among\n${outputs[index]}`).toEqual([])
    },
  )

  test('shows the manifest as it is', () => {
    const manifest = readFileSync(`${ROOT}deploy/examples/all-ip/service.yaml`, 'utf8')
    const [yaml] = PAGE.ofKind('yaml')
    expect(manifest.replace(/^#.*\n/gm, '')).toBe(yaml?.text)
  })

  test('sets up as npm test does on a fresh clone', () => {
    expect(PAGE.ofKind('sh setup').map(({ text }) => text)).toEqual([
      'npm ci --ignore-scripts && npm run build\n',
    ])
    const prepare = readFileSync(`${ROOT}deploy/prepare.sh`, 'utf8')
    const prepared = [...prepare.matchAll(/^ *step .*' (npm (?:ci --ignore-scripts|run -s build:\w+))/gm)]
    const { scripts } = JSON.parse(readFileSync(`${ROOT}package.json`, 'utf8'))
    const build = String(scripts.build).split(' && ')
    expect(prepared.map(([, command]) => command)).toEqual(['npm ci --ignore-scripts', ...build])
  })

  test('names files that exist', () => {
    const links = [...PAGE.text.matchAll(/\]\(([^)#:]+)\)/g)].map(([, path]) => path ?? '')
    expect(links.length).toBeGreaterThan(4)
    for (const path of links) expect(readFileSync(`${ROOT}docs/${path}`).length).toBeGreaterThan(0)
  })
})
