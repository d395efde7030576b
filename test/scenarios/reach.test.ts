import { describe, expect, test } from 'vitest'
import { tableNameOf as nftablesName } from '../../src/config/modes/nftables.ts'
import { tableNameOf as userspaceName } from '../../src/config/modes/userspace.ts'
import { damageText, programmedModes } from '../../src/inspect/programmed.ts'
import {
  change,
  computeIn,
  IPTABLES,
  IPTABLES_OPTIMIZED,
  IPVS,
  IPVS_CHAINS,
  type Mode,
  NFTABLES,
  type Stateful,
} from '../support/pipeline.ts'
import {
  heldModes,
  type ReadModes,
  readIptablesMode,
  readIpvsMode,
  readNftables,
  readUserspace,
} from '../support/read-modes.ts'
import { IS_QUICK, tried } from '../support/runs.ts'
import { LOCAL_IPS, loadScenarios, type Scenario } from '../support/scenario.ts'
import { USERSPACE } from '../support/userspace-mode.ts'

/* `dump`, `explain` and `doctor` raise no alarm about rules that are as they must be. */

function alarms<State extends Stateful>(
  mode: Mode<State>,
  read: (state: State) => ReadModes,
  { config, steps }: Scenario,
): readonly (string | undefined)[] {
  let computed = computeIn(mode, config, LOCAL_IPS)
  return steps.map(step => {
    computed = change(computed, step)
    return damageText(programmedModes(heldModes(inName(read(computed.state), config.serviceProxyName))))
  })
}

/** Tables of a named proxy bear its name. */
function inName(read: ReadModes, proxy: string | undefined): ReadModes {
  const named = (tables: ReadModes['nftables'], name: string) => tables.map(table => ({ ...table, name }))
  return {
    ...read,
    nftables: named(read.nftables, nftablesName(proxy)),
    userspace: named(read.userspace, userspaceName(proxy)),
  }
}

type AlarmsOf = (scenario: Scenario) => readonly (string | undefined)[]

const ALL = loadScenarios()
const MODES: readonly (readonly [string, AlarmsOf])[] = [
  ['nftables', its => alarms(NFTABLES, readNftables, its)],
  ['iptables', its => alarms(IPTABLES, readIptablesMode, its)],
  ['iptables with --iptables-optimize', its => alarms(IPTABLES_OPTIMIZED, readIptablesMode, its)],
  ['ipvs', its => alarms(IPVS, readIpvsMode, its)],
  ['ipvs with --ipvs-rules=iptables', its => alarms(IPVS_CHAINS, readIpvsMode, its)],
  ['userspace', its => alarms(USERSPACE, readUserspace, its)],
]
const parts = MODES.map(([mode, alarmsOf], index) => {
  // Each mode another part of the scenarios, and fewer where a thousand chains are rendered for each.
  const share = (mode.includes('optimize') ? 1 / 24 : 1 / 6) / (IS_QUICK ? 2 : 1)
  const numbers = tried(ALL.length, index, share)
  return [mode, alarmsOf, numbers.flatMap(number => ALL[number - 1] ?? [])] as const
})

describe.each(parts)('%s mode', (_, alarmsOf, scenarios) => {
  test.each(scenarios.map(scenario => [scenario.file, scenario] as const))(
    'reports every frontend of %s as reached',
    (_, scenario) => {
      expect(alarmsOf(scenario)).toEqual(scenario.steps.map(() => undefined))
    },
  )
})
