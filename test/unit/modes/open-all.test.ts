import { expect, it } from 'vitest'
import { systemClock } from '../../../src/base/clock.ts'
import { openIptables } from '../../../src/modes/iptables/mode.ts'
import { openIpvsKernel } from '../../../src/modes/ipvs/observe.ts'
import type { KernelSockets } from '../../../src/modes/mode.ts'
import { SystemError, type Transport } from '../../../src/netlink/transport.ts'
import { FakeKernel } from '../../support/fake-kernel/kernel.ts'
import { configFrom } from '../../support/parse-flags.ts'

const config = configFrom(['--proxy-mode=iptables', '--source=file:unused'])

it.each<readonly [name: string, sockets: number, open: (sockets: KernelSockets) => unknown]>([
  ['iptables', 2, sockets => openIptables({ config, clock: systemClock, sockets })],
  ['IPVS', 4, sockets => openIpvsKernel(sockets, systemClock)],
])('%s mode keeps none of its %i sockets when one cannot be opened', (_, sockets, open) => {
  for (let room = 0; room < sockets; room++) {
    const held = new Set<Transport>()
    const openOne = (): Transport => {
      if (held.size === room) throw new SystemError('socket', 24, 'EMFILE')
      const transport: Transport = Object.assign(new FakeKernel().open(), {
        close: async () => void held.delete(transport),
      })
      held.add(transport)
      return transport
    }
    expect(() => open({ netfilter: openOne, generic: openOne, route: openOne })).toThrow('EMFILE')
    expect(held.size).toBe(0)
  }
})

it('iptables mode keeps no socket open when the kernel may not be asked', () => {
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
  const sockets = { netfilter, generic: netfilter, route: netfilter }
  expect(() => openIptables({ config, clock: systemClock, sockets })).toThrow('EPERM')
  expect(open).toBe(0)
})
