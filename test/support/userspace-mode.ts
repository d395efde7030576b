import { renderUserspaceState } from '../../src/modes/userspace/render.ts'
import { DEFAULT_USERSPACE_OPTIONS, type UserspaceOptions } from '../../src/modes/userspace/settings.ts'
import { EMPTY_STATE, type UserspaceState } from '../../src/modes/userspace/state.ts'
import { type ModeDifference, withDifferences } from './mode-differences.ts'
import { type Mode, nftablesOptionsOf, type PipelineConfig } from './pipeline.ts'
import type { Player } from './players.ts'
import type { PacketRow, Scenario } from './scenario.ts'
import { createUserspaceTracer } from './tracers.ts'

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

/** SCTP ports. */
const REFUSED = / spec\.ports\.protocol SCTP of /

export const BY_RELAY: Player<UserspaceState> = {
  mode: USERSPACE,
  tracerOf: state => createUserspaceTracer(state),
  refusesToo: REFUSED,
}

/** The scenario as this mode plays it: what arrives comes from this node, whoever sent it. */
export function inUserspace(scenario: Scenario, differences: readonly ModeDifference[]): Scenario {
  const { steps, ...rest } = withDifferences(scenario, differences)
  return { ...rest, steps: steps.map(step => ({ ...step, rows: step.rows.map(fromThisNode) })) }
}

function fromThisNode(row: PacketRow): PacketRow {
  const { expected } = row
  return expected.verdict === 'DNAT' ? { ...row, expected: { ...expected, source: 'masqueraded' } } : row
}
