import { expect, it } from 'vitest'
import { type Listener, listListeners, reach } from '../../../../src/kernel/socket/listeners.ts'
import { Connection } from '../../../../src/netlink/connection.ts'
import { ip } from '../../../support/addresses.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { datagram, errorMessage, ScriptedTransport, sequenceOf } from '../../../support/scripted-transport.ts'

function listener(bound: string, more: Partial<Listener> = {}): Listener {
  return { protocol: 'TCP', ip: ip(bound), port: 80, device: 0, uid: 0, inode: 1, v6Only: false, ...more }
}

it.each<readonly [string, string, Partial<Listener>, ReturnType<typeof reach>]>([
  ['192.0.2.1', '192.0.2.1', {}, 'address'],
  ['192.0.2.2', '192.0.2.1', {}, undefined],
  ['0.0.0.0', '192.0.2.1', {}, 'wildcard'],
  ['::', '192.0.2.1', {}, 'wildcard'],
  ['::', '192.0.2.1', { v6Only: true }, undefined],
  ['::', '2001:db8::1', { v6Only: true }, 'wildcard'],
  ['0.0.0.0', '2001:db8::1', {}, undefined],
  ['::ffff:192.0.2.1', '192.0.2.1', {}, 'address'],
  ['0.0.0.0', '192.0.2.1', { device: 7 }, 'wildcard'],
  ['192.0.2.1', '192.0.2.1', { device: 8 }, undefined],
])('a listener bound to %s and packets to %s: %o is %s', (bound, to, more, wanted) => {
  expect(reach(listener(bound, more), { ip: ip(to), index: 7 })).toBe(wanted)
})

it('is no error where the kernel has no inet_diag', () => {
  const transport = new ScriptedTransport(sent => [datagram(errorMessage(sequenceOf(sent), 2))])
  expect(listListeners(new Connection({ transport, clock: new FakeClock() }))).toEqual([])
  expect(transport.sent).toHaveLength(4)
})
