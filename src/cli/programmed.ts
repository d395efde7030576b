import type { ServiceRow } from '../modes/common/service-row.ts'
import { isOfService } from '../modes/common/service-row.ts'
import type { HeldMode } from '../modes/mode.ts'
import { withReach } from './reach.ts'
import { sortedRows } from './service-rows.ts'

/** One mode whose rules the kernel holds, with the rows that a command shows. */
export interface ProgrammedMode extends Pick<HeldMode, 'mode' | 'rules' | 'damage'> {
  /** Those that packets do not come to are marked. */
  readonly rows: readonly ServiceRow[]
}

/** Every mode that has rules in the kernel, with the rows of `service`, or of all Services if that is empty. Pure. */
export function programmedModes(held: readonly HeldMode[], service = ''): readonly ProgrammedMode[] {
  return held.map(({ mode, rows: all, rules, damage }) => {
    const wanted = all.filter(row => isOfService([row.service], service))
    const rows = sortedRows(withReach(wanted, rules, all)).map(row => ({ ...row, mode }))
    return { mode, rows, rules, damage }
  })
}

/** The first thing that is wrong, and how many rows are; undefined when all is well. */
export function damageText(modes: readonly ProgrammedMode[]): string | undefined {
  const rows = modes.flatMap(mode => mode.rows)
  const hurt = rows.filter(({ problem }) => problem !== undefined)
  const [first] = [
    ...modes.flatMap(({ mode, damage }) => damage.map(text => `${mode} mode: ${text}`)),
    ...hurt.map(({ service, frontend, problem }) => `${service} at ${frontend}: ${problem}`),
  ]
  if (first === undefined) return undefined
  return `${first}; ${hurt.length} of ${rows.length} frontends are not reached or incomplete`
}
