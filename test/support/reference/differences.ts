import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parse } from 'yaml'
import { assert } from '../../../src/base/errors.ts'

/** A packet that kube-proxy treats in another way than the scenario says, and than we do. */
export interface Difference {
  readonly scenario: string
  /** As in the scenario, without the outcome. */
  readonly packet: string
  /** In the words of a packet table. */
  readonly kubeProxy: string
  /** Words of docs/differences.md. */
  readonly because: string
  /** It need not be so each time. */
  readonly sometimes: boolean
}

/** A scenario that cannot be put to kube-proxy, or not beyond one of its steps. */
export interface Obstacle {
  readonly scenario: string
  /** Words of whoever refuses it. */
  readonly words: string
}

/** A line of a golden file that reads otherwise here. */
export interface Sight {
  readonly file: string
  /** Absent where kprobe has a line more. */
  readonly kubeProxy: string | undefined
  readonly kprobe: string
}

export interface Differences {
  readonly differences: readonly Difference[]
  readonly refused: readonly Obstacle[]
  /** By scenario, why its result means nothing. */
  readonly notComparable: ReadonlyMap<string, string>
  /** Our defaults, by flag. */
  readonly flagDefaults: ReadonlyMap<string, string>
  readonly writtenLines: ReadonlyArray<{ readonly kubeProxy: string; readonly kprobe: string }>
  readonly gatesWithout: readonly string[]
  readonly sights: readonly Sight[]
  readonly metricsOtherwise: readonly string[]
  /** Names, or what names begin with. */
  readonly metricsWithout: readonly string[]
}

const FILE = fileURLToPath(new URL('../../reference/differences.yaml', import.meta.url))
const DOCUMENT = fileURLToPath(new URL('../../../docs/differences.md', import.meta.url))

/** Reads test/reference/differences.yaml. Throws when a reason does not stand in docs/differences.md. */
export function readFileOfDifferences(): Differences {
  const document = oneLine(readFileSync(DOCUMENT, 'utf8'))
  const file: unknown = parse(readFileSync(FILE, 'utf8'))
  assert(isRecord(file), `${FILE}: not a mapping`)
  const differences = records(file.differences).map(readDifference)
  for (const { because } of differences) {
    assert(document.includes(oneLine(because)), `docs/differences.md does not say: ${because}`)
  }
  return {
    differences,
    refused: records(file.refused).map(entry => ({
      scenario: text(entry, 'scenario'),
      words: text(entry, 'words'),
    })),
    notComparable: pairs(file.notComparable, 'scenario', 'because'),
    flagDefaults: pairs(file.flagDefaults, 'flag', 'default'),
    writtenLines: records(file.writtenLines).map(entry => ({
      kubeProxy: text(entry, 'kubeProxy'),
      kprobe: text(entry, 'kprobe'),
    })),
    sights: records(file.sights).map(entry => ({
      file: text(entry, 'file'),
      kubeProxy: entry.kubeProxy === undefined ? undefined : text(entry, 'kubeProxy'),
      kprobe: text(entry, 'kprobe'),
    })),
    metricsOtherwise: records(file.metricsOtherwise).map(entry => text(entry, 'name')),
    gatesWithout: records(file.gatesWithout).map(entry => text(entry, 'name')),
    metricsWithout: records(file.metricsWithout).map(entry => text(entry, 'name')),
  }
}

function readDifference(entry: Entry): Difference {
  return {
    scenario: text(entry, 'scenario'),
    packet: text(entry, 'packet'),
    kubeProxy: text(entry, 'kubeProxy'),
    because: text(entry, 'because'),
    sometimes: entry.sometimes === true,
  }
}

type Entry = Readonly<Record<string, unknown>>

function pairs(list: unknown, key: string, value: string): ReadonlyMap<string, string> {
  return new Map(records(list).map(entry => [text(entry, key), text(entry, value)]))
}

function oneLine(words: string): string {
  return words.replace(/\s+/g, ' ').trim()
}

function records(value: unknown): readonly Entry[] {
  assert(Array.isArray(value) && value.every(isRecord), `${FILE}: not a list of mappings`)
  return value
}

function text(entry: Entry, key: string): string {
  const value = entry[key]
  assert(typeof value === 'string', `${FILE}: no ${key} in ${JSON.stringify(entry)}`)
  return value
}

function isRecord(value: unknown): value is Entry {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
