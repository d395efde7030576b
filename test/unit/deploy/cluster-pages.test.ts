import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { CLUSTER_STARTS, requestOf, startTitle } from '../../support/cluster-starts.ts'

const ROOT = fileURLToPath(new URL('../../..', import.meta.url))
const read = (path: string) => readFileSync(`${ROOT}/${path}`, 'utf8')

const FOLDER = 'docs/clusters'
const PAGES = readdirSync(`${ROOT}/${FOLDER}`).filter(name => name !== 'README.md')

const QUESTIONS = [
  'Can kube-proxy be switched off?',
  'How',
  'What brings it back',
  'Mode and flags it had',
  'CNI plugin',
  'What breaks, what to check',
]

describe.each(PAGES)('docs/clusters/%s', name => {
  const text = read(`${FOLDER}/${name}`)
  const questions = [...text.matchAll(/^\| \*\*(.+?)\*\* \| (.+) \|$/gm)]

  it('answers the same questions in the same order as the others', () => {
    expect(questions.map(([, question]) => question)).toEqual(QUESTIONS)
    expect(questions.filter(([, , answer = '']) => answer.trim() === '')).toEqual([])
  })

  it('says what was tried here, apart from what was read, with address and date', () => {
    const [, tried = '', sources = ''] = text.split(/^## (?:Tried here|Read)$/m)
    expect(tried.trim()).not.toBe('')
    const entries = sources.split(/\n(?=- )/).filter(entry => entry.startsWith('- '))
    const isKnown = (entry: string) => /\d{4}-\d{2}-\d{2}|\bat [0-9a-f]{8}\b/.test(entry)
    expect(entries.filter(entry => !isKnown(entry) && !entry.startsWith('- Not read'))).toEqual([])
    expect(entries.filter(entry => /https:\/\/|^- [\w-]+\/[\w.-]+ `/.test(entry)).length).toBeGreaterThan(0)
  })

  it('is short', () => {
    expect(text.split('\n').length).toBeLessThanOrEqual(60)
  })
})

describe('a reader', () => {
  it('reaches the page of the cluster in two clicks from README.md', () => {
    expect(read('README.md').split('\n').slice(0, 60).join('\n')).toContain(`](${FOLDER}/README.md)`)
    const index = read(`${FOLDER}/README.md`)
    expect(PAGES).toHaveLength(12)
    expect(PAGES.filter(name => !index.includes(`](${name})`))).toEqual([])
  })
})

describe("kube-proxy's start in clusters", () => {
  it.each(CLUSTER_STARTS.map(start => ({ ...start, title: startTitle(start) })))(
    '$title is taken as it is, without a warning',
    ({ page, mode, knowsPods, ...start }) => {
      const { config, warnings } = requestOf(start)
      expect(warnings).toEqual([])
      expect(config.proxyMode).toBe(mode)
      const { detectLocal } = config
      const cidrs = detectLocal.kind === 'ClusterCIDR' ? detectLocal.cidrs.length : 0
      expect(cidrs > 0).toBe(knowsPods)
      expect(read(`${FOLDER}/${page}.md`)).toContain(mode)
    },
  )
})
