import { expect, it } from 'vitest'
import { everything, point, type Region } from '../../../src/base/region.ts'
import { IpvsClasses } from '../../../src/kernel/evaluate/ipvs.ts'
import { ClassMachine } from '../../../src/kernel/evaluate/machine.ts'
import { newLog, noSets } from '../../../src/kernel/evaluate/sets.ts'
import { newMemo } from '../../../src/kernel/evaluate/values.ts'

it('divides packets by the entries of now, also where it has divided the same packets before', () => {
  const [first, second] = ['\x0a\x60\0\x01', '\x0a\x60\0\x09']
  const set = { name: 'its', type: 'hash:ip', family: 'IPv4', maxElements: 64, hashSize: 64 } as const
  const ipvs = new IpvsClasses(
    { servers: [], ipsets: [{ set, entries: [{ ip: first }] }], addresses: [] },
    'IPv4',
  )
  const [ip, port, type] = [everything(4), everything(2), everything(4)]
  const box = {
    ...{ source: ip, destination: ip, sourceType: type, destinationType: type },
    ...{ sourcePort: port, destinationPort: port, protocol: everything(1), interface: everything(16) },
  }
  const around = { nodeIps: new Set<string>(), memo: newMemo(), log: newLog(), reads: undefined }
  const machine = new ClassMachine(box, noSets(newLog()), around)
  const matched = (): Region | undefined => {
    const rule = { kind: 'ipset', set: 'its', dimensions: ['dst'], inverted: false } as const
    const effect = ipvs.match(machine, rule)
    if (typeof effect === 'string' || effect.kind !== 'split') return undefined
    return effect.branches[0]?.narrowed[0]?.[1]
  }
  expect(matched()).toEqual(point(first))
  expect(matched()).toBe(matched())
  ipvs.change(
    { servers: [], entries: [{ set: 'its', entry: { ip: second }, isThere: true }], why: undefined },
    () => undefined,
  )
  expect(matched()).toEqual([...point(first), ...point(second)])
})
