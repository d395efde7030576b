import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { whyNotInstance } from '../../../src/config/instance-name.ts'
import { instanceOf, instanceOfTable } from '../../../src/daemon/instance.ts'
import { isDnsLabel } from '../../../src/model/names.ts'
import { chainNames, KUBE_CHAINS } from '../../../src/modes/iptables/layout.ts'

/** Labels, among them what is near the names of our own tables. */
const names = fc
  .oneof(
    fc.constantFrom('a', 'ipvs-a', 'userspace-a', 'a-userspace', 'a-ipvs', 'x'.repeat(63)),
    fc.stringMatching(/^[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?$/),
  )
  .filter(name => isDnsLabel(name) && whyNotInstance(name, 'nftables') === undefined)

/** Everything that two proxies of a network namespace could have in common. */
function ownNames(name: string | undefined): readonly string[] {
  const { nftables, userspace, ipvs = [], lock } = instanceOf(name)
  return [nftables, userspace, ipvs, `lock ${lock}`].flat()
}

describe('names of a proxy', () => {
  it('have nothing in common with those of any other', () => {
    fc.assert(
      fc.property(fc.uniqueArray(fc.option(names, { nil: undefined }), { maxLength: 20 }), several => {
        const all = several.flatMap(ownNames)
        expect(new Set(all).size).toBe(all.length)
      }),
    )
  })

  it('are within what the kernel takes: 255 bytes for a table, 107 for a socket', () => {
    const { nftables, userspace, lock } = instanceOf('x'.repeat(63))
    expect(nftables.length).toBeLessThan(256)
    expect(userspace.length).toBeLessThan(256)
    expect(lock.length).toBeLessThan(107)
  })

  it('tell whose a table is', () => {
    fc.assert(
      fc.property(names, name => {
        expect(instanceOfTable(instanceOf(name).nftables)).toBe(name)
        expect(instanceOfTable(instanceOf(name).userspace)).toBe(name)
      }),
    )
    expect(['kube-proxy', 'kube-proxy-ipvs', 'kube-proxy-userspace', 'nat'].map(instanceOfTable)).toEqual([
      undefined,
      undefined,
      undefined,
      undefined,
    ])
  })

  it('leave the one without a name everything it had', () => {
    expect(instanceOf(undefined)).toEqual({
      lock: 'kprobe/kube-proxy',
      nftables: 'kube-proxy',
      userspace: 'kube-proxy-userspace',
      ipvs: 'kube-proxy-ipvs',
      chains: KUBE_CHAINS,
      chainsLock: undefined,
      natPriority: -100,
    })
    expect(instanceOf('mesh')).toEqual({
      lock: 'kprobe/kube-proxy/mesh',
      nftables: 'kube-proxy-mesh',
      userspace: 'kube-proxy-userspace.mesh',
      ipvs: undefined,
      chains: chainNames('mesh'),
      chainsLock: 'kprobe/chains/KP2MGKP',
      natPriority: -101,
    })
  })
})
