import { execFileSync } from 'node:child_process'
import { expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { NfacctClient } from '../../src/kernel/nfacct/client.ts'
import { openIptables } from '../../src/modes/iptables/mode.ts'
import { NFACCT_INVALID_DROPPED, NFACCT_LOCALHOST_ACCEPTED } from '../../src/modes/iptables/settings.ts'
import { NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { configFrom } from '../support/parse-flags.ts'
import { PlaneRig } from '../support/plane-rig.ts'

const SOCKETS = {
  netfilter: () => openNetlink({ protocol: NETLINK_NETFILTER }),
  generic: () => openNetlink({ protocol: NETLINK_GENERIC }),
  route: () => openNetlink({ protocol: NETLINK_ROUTE }),
}

it('rules come back when whoever flushed them removed the counters of nfacct, too', async () => {
  freshNetns()
  const { plane, start, close } = openIptables({
    config: configFrom(['--proxy-mode=iptables']),
    clock: systemClock,
    sockets: SOCKETS,
  })
  const nfacct = new NfacctClient({ transport: SOCKETS.netfilter(), clock: systemClock })
  start()
  const rig = new PlaneRig({ plane, clock: systemClock })
  try {
    await rig.sync([])
    const saved = (): string => execFileSync('iptables-nft-save', { encoding: 'utf8' })
    expect(saved()).toContain(NFACCT_INVALID_DROPPED)
    execFileSync('nft', ['flush', 'ruleset'])
    for (const name of [NFACCT_INVALID_DROPPED, NFACCT_LOCALHOST_ACCEPTED])
      expect(nfacct.delete(name)).toBe(true)
    await rig.until(() => rig.of('repaired').length > 0, 2_000)
    expect(rig.of('failed')).toEqual([])
    expect(saved()).toContain(NFACCT_INVALID_DROPPED)
  } finally {
    await rig.close()
    await Promise.all([close(), nfacct.close()])
  }
})
