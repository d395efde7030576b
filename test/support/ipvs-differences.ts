import { parse } from 'yaml'
import { assert } from '../../src/base/assert.ts'
import { DIFFERENCES_FILE, type PacketRow, parseRow, readScenarioFile, type Scenario } from './scenario.ts'

/** A packet that IPVS cannot treat as the other modes do. */
export interface IpvsDifference {
  /** `external-ips.yaml`. */
  readonly file: string
  /** The row as the scenario has it, in single spaces. */
  readonly row: string
  /** The row with what becomes of the packet in IPVS mode. */
  readonly instead: PacketRow
  readonly reason: string
}

export function loadIpvsDifferences(): readonly IpvsDifference[] {
  return parseIpvsDifferences(readScenarioFile(DIFFERENCES_FILE))
}

/** Throws for what is not written as the file's own head says. */
export function parseIpvsDifferences(text: string): readonly IpvsDifference[] {
  const document: unknown = parse(text)
  assert(Array.isArray(document), `${DIFFERENCES_FILE}: not a list`)
  return document.flatMap((group: unknown) => {
    const reason = textOf(group, 'reason')
    const rows = field(group, 'rows')
    assert(Array.isArray(rows) && rows.length > 0, `${DIFFERENCES_FILE}: no rows: ${reason}`)
    return rows.map((each: unknown): IpvsDifference => {
      const row = textOf(each, 'row')
      const [packet = ''] = row.split(' -> ')
      const [instead] = parseRow(DIFFERENCES_FILE, `${packet} -> ${textOf(each, 'instead')}`)
      assert(instead !== undefined, `${DIFFERENCES_FILE}: ${row}: nothing instead`)
      return { file: textOf(each, 'file'), row, instead, reason }
    })
  })
}

/** The scenario as IPVS mode plays it. */
export function inIpvsMode(scenario: Scenario, differences: readonly IpvsDifference[]): Scenario {
  const own = new Map(
    differences.filter(({ file }) => file === scenario.file).map(its => [its.row, its.instead]),
  )
  const steps = scenario.steps.map(step => ({
    ...step,
    rows: step.rows.map(row => own.get(row.text) ?? row),
  }))
  return { ...scenario, steps }
}

function field(value: unknown, name: string): unknown {
  assert(typeof value === 'object' && value !== null, `${DIFFERENCES_FILE}: not a mapping`)
  return Object.entries(value).find(([key]) => key === name)?.[1]
}

function textOf(value: unknown, name: string): string {
  const text = field(value, name)
  assert(typeof text === 'string' && text !== '', `${DIFFERENCES_FILE}: no ${name}: ${JSON.stringify(value)}`)
  return text
}
