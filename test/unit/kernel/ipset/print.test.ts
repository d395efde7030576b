import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  createText,
  entryText,
  type IpsetEntry,
  type IpsetType,
  printSets,
} from '../../../../src/kernel/ipset/state.ts'
import { ip } from '../../../support/addresses.ts'
import { anyFilledSet, type FilledSet, setOf } from '../../../support/fake-ipset/arbitraries.ts'
import { readSaved } from '../../../support/fake-ipset/saved.ts'

describe('the text of `ipset save`', () => {
  it('says how a set is made, with what the kernel tells of it', () => {
    const set = setOf('KUBE-CLUSTER-IP', 'hash:ip,port')
    const plain = 'create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536'
    expect(createText({ set })).toBe(plain)
    expect(createText({ set, bucketSize: 12, initialValue: 0x0a1b2c })).toBe(
      `${plain} bucketsize 12 initval 0x000a1b2c`,
    )
    expect(createText({ set: setOf('S', 'hash:ip', 'IPv6') })).toBe(
      'create S hash:ip family inet6 hashsize 1024 maxelem 65536',
    )
    expect(createText({ set: setOf('KUBE-NODE-PORT-TCP', 'bitmap:port') })).toBe(
      'create KUBE-NODE-PORT-TCP bitmap:port range 0-65535',
    )
  })

  const tcp = { protocol: 6, port: 80 }
  const cases: readonly [text: string, type: IpsetType, entry: IpsetEntry][] = [
    ['10.96.0.1,tcp:80', 'hash:ip,port', { ip: ip('10.96.0.1'), ...tcp }],
    ['fd00::1,sctp:80', 'hash:ip,port', { ip: ip('fd00::1'), protocol: 132, port: 80 }],
    ['10.0.0.1,tcp:80,10.0.0.1', 'hash:ip,port,ip', { ip: ip('10.0.0.1'), ...tcp, ip2: ip('10.0.0.1') }],
    [
      '10.0.0.1,tcp:80,10.0.0.0/8',
      'hash:ip,port,net',
      { ip: ip('10.0.0.1'), ...tcp, ip2: ip('10.0.0.0'), prefix2: 8 },
    ],
    [
      '10.0.0.1,tcp:80,10.0.0.2',
      'hash:ip,port,net',
      { ip: ip('10.0.0.1'), ...tcp, ip2: ip('10.0.0.2'), prefix2: 32 },
    ],
    ['::1.2.3.4', 'hash:ip', { ip: ip('::1.2.3.4') }],
    ['::ffff:1.2.3.4', 'hash:ip', { ip: ip('::ffff:1.2.3.4') }],
    ['30080', 'bitmap:port', { port: 30080 }],
  ]
  it.each(cases)('says %s', (text, type, entry) => {
    expect(entryText({ type }, entry)).toBe(text)
  })

  it('says everything there is to say', () => {
    const listed = {
      revision: 7,
      elements: 0,
      references: 0,
      memoryBytes: 0,
      bucketSize: 12,
      initialValue: 9,
    }
    fc.assert(
      fc.property(anyFilledSet('A'), anyFilledSet('B'), (a, b) => {
        const text = [...printSets([a, b].map(each => ({ ...listed, ...each })))].join('\n')
        const told = ({ set }: FilledSet) =>
          set.type === 'bitmap:port' ? {} : { bucketSize: 12, initialValue: 9 }
        expect(readSaved(text)).toEqual([a, b].map(each => ({ ...each, ...told(each) })))
      }),
    )
  })
})
