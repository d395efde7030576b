import { expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import type { Config } from '../../../../src/config/config.ts'
import { openIptables } from '../../../../src/modes/iptables/mode.ts'
import { SystemError, type Transport } from '../../../../src/netlink/transport.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'
import { configFrom } from '../../../support/parse-flags.ts'

function config(): Config {
  return configFrom(['--proxy-mode=iptables', '--source=file:unused'])
}

it('keeps no socket open when the kernel may not be asked', () => {
  let open = 0
  const netfilter = (): Transport => {
    open++
    const close = (): Promise<void> => {
      open--
      return Promise.resolve()
    }
    const sendSync = (): never => {
      throw new SystemError('sendto', 1, 'EPERM')
    }
    return Object.assign(new FakeKernel().open(), { sendSync, close })
  }
  const none = (): never => {
    throw new Error('the mode speaks with netfilter alone')
  }
  const sockets = { netfilter, generic: none, route: none }
  expect(() => openIptables({ config: config(), clock: systemClock, sockets })).toThrow('EPERM')
  expect(open).toBe(0)
})
