import { parse } from 'yaml'
import { assert } from '../../src/base/errors.ts'
import { type PacketRow, parseRow, readScenarioFile, type Scenario } from './scenario.ts'

/** A packet that a mode cannot treat, or does not, as nftables mode does. */
export interface ModeDifference {
  /** `external-ips.yaml`. */
  readonly file: string
  /** The row as the scenario has it, in single spaces. */
  readonly row: string
  /** The title of the only step that it is about; undefined for all steps that have the row. */
  readonly step: string | undefined
  readonly instead: PacketRow
  readonly reason: string
}

/** Reads `test/scenarios/MODE-differences.yaml`. */
export function loadDifferences(mode: string): readonly ModeDifference[] {
  const file = `${mode}-differences.yaml`
  return parseDifferences(file, readScenarioFile(file))
}

/** Throws for what is not written as the heads of these files say. `at` is for messages. */
function parseDifferences(at: string, text: string): readonly ModeDifference[] {
  const document: unknown = parse(text)
  assert(Array.isArray(document), `${at}: not a list`)
  const field = (value: unknown, name: string): unknown => {
    assert(typeof value === 'object' && value !== null, `${at}: not a mapping`)
    return Object.entries(value).find(([key]) => key === name)?.[1]
  }
  const textOf = (value: unknown, name: string): string => {
    const found = field(value, name)
    assert(typeof found === 'string' && found !== '', `${at}: no ${name}: ${JSON.stringify(value)}`)
    return found
  }
  const stepOf = (value: unknown) => (field(value, 'step') === undefined ? undefined : textOf(value, 'step'))
  return document.flatMap((group: unknown) => {
    const reason = textOf(group, 'reason')
    const rows = field(group, 'rows')
    assert(Array.isArray(rows) && rows.length > 0, `${at}: no rows: ${reason}`)
    return rows.map((each: unknown): ModeDifference => {
      const row = textOf(each, 'row')
      const [packet = ''] = row.split(' -> ')
      const [instead] = parseRow(at, `${packet} -> ${textOf(each, 'instead')}`)
      assert(instead !== undefined, `${at}: ${row}: nothing instead`)
      return { file: textOf(each, 'file'), row, step: stepOf(each), instead, reason }
    })
  })
}

/** Whether a row of a step is one that this difference is about. */
export function isAbout(
  { row, step }: ModeDifference,
  its: PacketRow,
  { title }: { title: string },
): boolean {
  return its.text === row && (step === undefined || step === title)
}

/** The scenario as the mode of these differences plays it. */
export function withDifferences(scenario: Scenario, differences: readonly ModeDifference[]): Scenario {
  const own = differences.filter(({ file }) => file === scenario.file)
  const steps = scenario.steps.map(step => ({
    ...step,
    rows: step.rows.map(row => own.find(its => isAbout(its, row, step))?.instead ?? row),
  }))
  return { ...scenario, steps }
}
