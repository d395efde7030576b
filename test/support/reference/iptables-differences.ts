import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parse } from 'yaml'
import { assert } from '../../../src/base/errors.ts'

/** Rules that kube-proxy and we have otherwise for the objects of a scenario. */
interface RuleDifference {
  readonly scenario: string
  readonly because: string
  /** Words in lines that only kube-proxy has. */
  readonly kubeProxy: readonly string[]
  /** Words in lines that only we have. */
  readonly kprobe: readonly string[]
}

interface RuleDifferences {
  readonly differences: readonly RuleDifference[]
  /** What the API server or kube-proxy does not take, in its words; the steps before were compared. */
  readonly refused: ReadonlyArray<{ readonly scenario: string; readonly words: string }>
}

const FILE = fileURLToPath(new URL('../../reference/iptables-differences.yaml', import.meta.url))
const DOCUMENT = fileURLToPath(new URL('../../../docs/differences.md', import.meta.url))

/** Throws when a reason does not stand in docs/differences.md. */
export function readRuleDifferences(): RuleDifferences {
  const file: unknown = parse(readFileSync(FILE, 'utf8'))
  assert(isRecord(file), `${FILE}: not a mapping`)
  const document = oneLine(readFileSync(DOCUMENT, 'utf8'))
  const differences = records(file.differences).map(entry => ({
    scenario: text(entry, 'scenario'),
    because: text(entry, 'because'),
    kubeProxy: texts(entry.kubeProxy),
    kprobe: texts(entry.kprobe),
  }))
  for (const { because } of differences)
    assert(document.includes(oneLine(because)), `docs/differences.md does not say: ${because}`)
  return {
    differences,
    refused: records(file.refused).map(entry => ({
      scenario: text(entry, 'scenario'),
      words: text(entry, 'words'),
    })),
  }
}

function oneLine(words: string): string {
  return words.replace(/\s+/g, ' ').trim()
}

type Entry = Readonly<Record<string, unknown>>

function records(value: unknown): readonly Entry[] {
  assert(Array.isArray(value) && value.every(isRecord), `${FILE}: not a list of mappings`)
  return value
}

function text(entry: Entry, key: string): string {
  const value = entry[key]
  assert(typeof value === 'string', `${FILE}: no ${key} in ${JSON.stringify(entry)}`)
  return value
}

function texts(value: unknown = []): readonly string[] {
  assert(Array.isArray(value) && value.every(one => typeof one === 'string'), `${FILE}: not a list of texts`)
  return value
}

function isRecord(value: unknown): value is Entry {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
