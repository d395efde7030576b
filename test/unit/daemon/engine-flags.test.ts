import type * as V8 from 'node:v8'
import { expect, it, vi } from 'vitest'
import { engine } from '../../../src/daemon/engine.ts'
import { MODES } from '../../../src/modes/registry.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { recordedLog } from '../../support/recorded-log.ts'

const flags: string[] = []

vi.mock('node:v8', async original => ({
  ...(await original<typeof V8>()),
  setFlagsFromString: (flag: string) => void flags.push(flag),
}))

it('V8 marks at once, but not in iptables mode, whose load leaves what its late collections free', () => {
  const { log } = recordedLog()
  const marking = MODES.filter(mode => {
    flags.length = 0
    engine({ clock: new FakeClock(), log }).loads(mode)
    return !flags.includes('--no-incremental-marking')
  })
  expect(marking.map(({ name }) => name)).toEqual(['iptables'])
})
