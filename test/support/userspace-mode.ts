import { DEFAULT_USERSPACE_OPTIONS, type UserspaceOptions } from '../../src/modes/userspace/options.ts'
import { renderUserspaceState } from '../../src/modes/userspace/render.ts'
import { EMPTY_STATE, type UserspaceState } from '../../src/modes/userspace/state.ts'
import { isAbout, type ModeDifference, parseDifferences } from './mode-differences.ts'
import { type Mode, nftablesOptionsOf, type PipelineConfig } from './pipeline.ts'
import { type PacketRow, readScenarioFile, type Scenario } from './scenario.ts'

export function userspaceOptionsOf(config: PipelineConfig): UserspaceOptions {
  return { ...DEFAULT_USERSPACE_OPTIONS, detector: nftablesOptionsOf(config).detector }
}

export const USERSPACE: Mode<UserspaceState> = {
  name: 'userspace',
  empty: EMPTY_STATE,
  resolving: {},
  render: (table, base, config) =>
    renderUserspaceState(table, { base, without: new Set() }, userspaceOptionsOf(config)),
}

export function userspaceDifferences(): readonly ModeDifference[] {
  const file = 'userspace-differences.yaml'
  return parseDifferences(file, readScenarioFile(file))
}

/** The scenario as this mode plays it: what arrives comes from this node, whoever sent it. */
export function inUserspace(scenario: Scenario, differences: readonly ModeDifference[]): Scenario {
  const own = differences.filter(({ file }) => file === scenario.file)
  const steps = scenario.steps.map(step => ({
    ...step,
    rows: step.rows.map(row => fromThisNode(own.find(its => isAbout(its, row, step))?.instead ?? row)),
  }))
  return { ...scenario, steps }
}

function fromThisNode(row: PacketRow): PacketRow {
  const { expected } = row
  return expected.verdict === 'DNAT' ? { ...row, expected: { ...expected, source: 'masqueraded' } } : row
}

/** What this mode refuses beside what every mode does. */
export function isOfThisMode(refusal: string): boolean {
  return / spec\.ports\.protocol SCTP of /.test(refusal)
}
