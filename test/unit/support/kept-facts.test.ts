import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { KeptFacts } from '../../support/kept-facts.ts'
import { factsOf } from '../../support/source-facts.ts'

const folder = mkdtempSync(join(tmpdir(), 'kprobe-test-'))
const file = join(folder, 'sub/facts.json')
afterEach(() => rmSync(folder, { recursive: true, force: true }))

const ONE = "import './a.ts'\n"
const OTHER = "import './b.ts'\n"

function keep(reader: string, texts: readonly string[]): KeptFacts {
  const facts = new KeptFacts(file, reader)
  for (const text of texts) facts.of(text)
  facts.save()
  return facts
}

/** Facts that nobody would read in a text show that they were kept. */
function forge(): void {
  writeFileSync(file, readFileSync(file, 'utf8').replaceAll('./a.ts', './kept.ts'))
}

it('keeps facts for a text that is the same, and reads any other', () => {
  keep('reader', [ONE])
  forge()
  const facts = new KeptFacts(file, 'reader')
  expect(facts.of(ONE).imports).toEqual(['./kept.ts'])
  expect(facts.of(OTHER)).toEqual(factsOf(OTHER))
})

it('reads everything again after a change of what reads it', () => {
  keep('reader', [ONE])
  forge()
  expect(new KeptFacts(file, 'other reader').of(ONE)).toEqual(factsOf(ONE))
})

it('drops facts of texts that are gone, and survives a broken file', () => {
  keep('reader', [ONE, OTHER])
  keep('reader', [OTHER])
  expect(readFileSync(file, 'utf8')).not.toContain('./a.ts')
  writeFileSync(file, '{')
  expect(new KeptFacts(file, 'reader').of(ONE)).toEqual(factsOf(ONE))
})
