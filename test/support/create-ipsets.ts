import { execFileSync } from 'node:child_process'
import type { Ipset } from '../../src/kernel/ipset/state.ts'

/** The sets of a state, empty, as the ipset tool makes them. */
export function createSets(sets: ReadonlyMap<string, Ipset>): void {
  const lines = [...sets.values()].map(({ name, type, family, maxElements, hashSize }) =>
    type === 'bitmap:port'
      ? `create ${name} ${type} range 0-65535`
      : `create ${name} ${type} family ${family === 'IPv4' ? 'inet' : 'inet6'} hashsize ${hashSize} maxelem ${maxElements}`,
  )
  execFileSync('ipset', ['restore'], { input: `${lines.join('\n')}\n` })
}
