import { readFileSync } from 'node:fs'
import { parse } from 'yaml'
import { assert, errorText } from '../../../src/base/errors.ts'

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
  readonly flagDefaults: ReadonlyMap<string, string>
  readonly writtenLines: ReadonlyArray<{ readonly kubeProxy: string; readonly kprobe: string }>
  readonly sights: readonly Sight[]
  readonly metricsOtherwise: readonly string[]
  /** Names, or what names begin with. */
  readonly metricsWithout: readonly string[]
}

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
  readonly refused: readonly Obstacle[]
}

/** Rules of iptables mode that kube-proxy and we have otherwise. Throws when a reason does not stand in docs/differences.md. */
export function readRuleDifferences(): RuleDifferences {
  return readReasoned('iptables-differences.yaml', file => ({
    differences: records(file.differences).map(entry => ({
      scenario: text(entry, 'scenario'),
      because: text(entry, 'because'),
      kubeProxy: texts(entry.kubeProxy),
      kprobe: texts(entry.kprobe),
    })),
    refused: records(file.refused).map(readObstacle),
  }))
}

const FOLDER = new URL('../../reference/', import.meta.url)
const PAGES = ['differences.md', 'differences-modes.md'].map(
  name => new URL(`../../../docs/${name}`, import.meta.url),
)

/** Reads test/reference/differences.yaml. Throws when a reason does not stand in docs/differences.md. */
export function readFileOfDifferences(): Differences {
  return readReasoned('differences.yaml', file => ({
    differences: records(file.differences).map(readDifference),
    refused: records(file.refused).map(readObstacle),
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
    metricsWithout: records(file.metricsWithout).map(entry => text(entry, 'name')),
  }))
}

/** Throws, with the name of the file, when it is not what `read` wants, or when docs/differences.md lacks a reason. */
function readReasoned<T extends { readonly differences: ReadonlyArray<{ readonly because: string }> }>(
  name: string,
  read: (file: Entry) => T,
): T {
  const document = oneLine(PAGES.map(page => readFileSync(page, 'utf8')).join('\n'))
  try {
    const file: unknown = parse(readFileSync(new URL(name, FOLDER), 'utf8'))
    assert(isRecord(file), 'not a mapping')
    const reasoned = read(file)
    for (const { because } of reasoned.differences)
      assert(
        document.includes(oneLine(because)),
        `docs/differences.md and differences-modes.md lack the reason: ${because}`,
      )
    return reasoned
  } catch (error) {
    throw new Error(`test/reference/${name}: ${errorText(error)}`, { cause: error })
  }
}

function readObstacle(entry: Entry): Obstacle {
  return { scenario: text(entry, 'scenario'), words: text(entry, 'words') }
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
  assert(Array.isArray(value) && value.every(isRecord), 'not a list of mappings')
  return value
}

function text(entry: Entry, key: string): string {
  const value = entry[key]
  assert(typeof value === 'string', `no ${key} in ${JSON.stringify(entry)}`)
  return value
}

function texts(value: unknown = []): readonly string[] {
  assert(Array.isArray(value) && value.every(one => typeof one === 'string'), 'not a list of texts')
  return value
}

function isRecord(value: unknown): value is Entry {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
