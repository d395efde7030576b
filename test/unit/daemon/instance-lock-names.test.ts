import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { whyNotInstance } from '../../../src/config/own-flags.ts'
import { instanceOf } from '../../../src/daemon/instance-lock.ts'
import { isDnsLabel } from '../../../src/model/fields.ts'
import { MODES, proxyOfTable } from '../../../src/modes/registry.ts'

/** Labels, among them what is near the names of our own tables. */
const names = fc
  .oneof(
    fc.constantFrom('a', 'ipvs-a', 'userspace-a', 'a-userspace', 'a-ipvs', 'x'.repeat(63)),
    fc.stringMatching(/^[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?$/),
  )
  .filter(name => isDnsLabel(name) && whyNotInstance(name, 'nftables') === undefined)

describe('names of a proxy', () => {
  it('are within what the kernel takes: 255 bytes for a table, 107 for a socket', () => {
    const longest = 'x'.repeat(63)
    for (const table of MODES.flatMap(mode => mode.tableName(longest) ?? []))
      expect(table.length).toBeLessThan(256)
    expect(instanceOf(longest).lock.length).toBeLessThan(107)
  })

  it('tell whose a table is', () => {
    fc.assert(
      fc.property(names, name => {
        for (const table of MODES.flatMap(mode => mode.tableName(name) ?? []))
          expect(proxyOfTable(table)).toBe(name)
      }),
    )
    expect(['kube-proxy', 'kube-proxy-ipvs', 'kube-proxy-userspace', 'nat'].map(proxyOfTable)).toEqual([
      undefined,
      undefined,
      undefined,
      undefined,
    ])
  })

  it('leave the unnamed one everything it had', () => {
    expect(tablesOf(undefined)).toEqual({
      nftables: 'kube-proxy',
      ipvs: 'kube-proxy-ipvs',
      iptables: undefined,
      userspace: 'kube-proxy-userspace',
    })
    expect(instanceOf(undefined)).toMatchObject({ lock: 'kprobe/kube-proxy', objectsLock: undefined })
    expect(tablesOf('mesh')).toEqual({
      nftables: 'kube-proxy-mesh',
      ipvs: undefined,
      iptables: undefined,
      userspace: 'kube-proxy-userspace.mesh',
    })
    expect(instanceOf('mesh')).toMatchObject({
      lock: 'kprobe/kube-proxy/mesh',
      objectsLock: 'kprobe/chains/KP2MGKP',
    })
  })
})

function tablesOf(name: string | undefined) {
  return Object.fromEntries(MODES.map(mode => [mode.name, mode.tableName(name)]))
}
