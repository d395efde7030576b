import { describe, expect, it } from 'vitest'
import { describeOperation } from '../../../../src/kernel/ipvs/refusals.ts'
import { printSave } from '../../../../src/kernel/ipvs/state.ts'
import { deleteServer, newDestination, real, virtual } from '../../../support/ipvs-objects.ts'

const A = virtual('10.96.0.1', 443)
const STICKY = { flags: 1, timeoutS: 10_800 }
const line = (...server: Parameters<typeof virtual>): string =>
  printSave([{ server: virtual(...server), destinations: [] }]).join('\n')

describe('the lines of ipvsadm', () => {
  it('are those of servers and their real servers, by address', () => {
    const servers = [
      { server: virtual('fd00:96::1', 80), destinations: [real('fd00:1::1', 8080)] },
      {
        server: A,
        destinations: [real('10.0.0.2', 8080, 0), real('10.0.0.1', 8081, 2, 2), real('10.0.0.1', 8080, 1, 3)],
      },
      { server: virtual('10.96.0.1', 53, { protocol: 'UDP' }), destinations: [] },
      { server: virtual('10.96.0.1', 53, { protocol: 'SCTP', scheduler: 'lc' }), destinations: [] },
      { server: virtual('10.96.0.1', 53), destinations: [] },
    ]
    expect(printSave(servers)).toEqual([
      '-A --sctp-service 10.96.0.1:53 -s lc',
      '-A -t 10.96.0.1:53 -s rr',
      '-A -t 10.96.0.1:443 -s rr',
      '-a -t 10.96.0.1:443 -r 10.0.0.1:8080 -g -w 1',
      '-a -t 10.96.0.1:443 -r 10.0.0.1:8081 -i -w 2',
      '-a -t 10.96.0.1:443 -r 10.0.0.2:8080 -m -w 0',
      '-A -u 10.96.0.1:53 -s rr',
      '-A -t [fd00:96::1]:80 -s rr',
      '-a -t [fd00:96::1]:80 -r [fd00:1::1]:8080 -m -w 1',
    ])
  })

  it.each([
    ['persistence', line('10.0.0.1', 1, STICKY), '-s rr -p 10800'],
    ['its mask', line('10.0.0.1', 1, { ...STICKY, netmask: 0xffff_0000 }), '-s rr -p 10800 -M 255.255.0.0'],
    ['its prefix', line('fd00::1', 1, { ...STICKY, netmask: 64 }), '-s rr -p 10800 -M 64'],
    ['no mask without it', line('10.0.0.1', 1, { netmask: 0xffff_0000 }), '-s rr'],
    ['one packet', line('10.0.0.1', 1, { flags: 4 }), '-s rr -o'],
    ['flags of mh', line('10.0.0.1', 1, { scheduler: 'mh', flags: 0x18 }), '-s mh -b mh-fallback,mh-port'],
    ['flags of sh', line('10.0.0.1', 1, { scheduler: 'sh', flags: 0x10 }), '-s sh -b sh-port'],
    ['flags of others', line('10.0.0.1', 1, { flags: 0x38 }), '-s rr -b flag-1,flag-2,flag-3'],
  ])('tell %s', (_, printed, end) => {
    expect(printed.replace(/^-A -t \S+ /, '')).toBe(end)
  })
})

describe('an operation', () => {
  const pod = real('10.0.0.1', 8080)

  it('is described for errors, with the Service it is for', () => {
    expect(describeOperation(deleteServer(A))).toEqual({
      operation: 'delete',
      object: 'virtual server TCP 10.96.0.1:443 (ns1/web)',
    })
    expect(describeOperation({ ...newDestination(A, pod), group: '' })).toEqual({
      operation: 'set',
      object: 'real server 10.0.0.1:8080 of TCP 10.96.0.1:443',
    })
  })
})
