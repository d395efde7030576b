import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { entryText, type IpsetEntry, type IpsetType, printSets } from '../../../../src/kernel/ipset/state.ts'
import { ip } from '../../../support/addresses.ts'
import { anyFilledSet, type FilledSet } from '../../../support/fake-ipset/arbitraries.ts'
import { readSaved } from '../../../support/fake-ipset/saved.ts'

describe('the text of `ipset save`', () => {
  const tcp = { protocol: 6, port: 80 }
  const cases: readonly [text: string, type: IpsetType, entry: IpsetEntry][] = [
    ['10.96.0.1', 'hash:ip', { ip: ip('10.96.0.1') }],
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
    ['::1', 'hash:ip', { ip: ip('::1') }],
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
