import { describe, expect, it } from 'vitest'
import { describeOperation, isGone, meetsOtherServers } from '../../../../src/kernel/ipvs/refusals.ts'
import {
  destinationKey,
  type IpvsOperation,
  printSave,
  serverKey,
} from '../../../../src/kernel/ipvs/state.ts'
import {
  changeDestination,
  changeServer,
  deleteDestination,
  deleteServer,
  newDestination,
  newServer,
  real,
  virtual,
} from '../../../support/ipvs-objects.ts'

const A = virtual('10.96.0.1', 443)
const B = virtual('10.96.0.2', 80)
const POD = real('10.0.0.1', 8080)

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

it('describes an operation for errors, with the Service it is for', () => {
  expect(describeOperation(deleteServer(A))).toEqual({
    operation: 'delete',
    object: 'virtual server TCP 10.96.0.1:443 (ns1/web)',
  })
  expect(describeOperation({ ...newDestination(A, POD), group: '' })).toEqual({
    operation: 'set',
    object: 'real server 10.0.0.1:8080 of TCP 10.96.0.1:443',
  })
  expect(serverKey(virtual('2001:db8::1', 53, { protocol: 'UDP' }))).toBe('UDP [2001:db8::1]:53')
  expect(destinationKey(real('2001:db8::1', 0))).toBe('[2001:db8::1]:0')
})

const failed = (operation: IpvsOperation, code: string) => ({ operation, code, error: new Error(code) })

describe('deletions', () => {
  it.each([
    ['a server that is gone', deleteServer(A), 'ESRCH', true],
    ['a real server that is gone', deleteDestination(A, POD), 'ENOENT', true],
    ['a real server of a server that is gone', deleteDestination(A, POD), 'ESRCH', true],
    ['a server without the right to', deleteServer(A), 'EPERM', false],
    ['nothing that is set', changeServer(A), 'ESRCH', false],
  ])('are done for %s', (_, operation, code, expected) => {
    expect(isGone(failed(operation, code))).toBe(expected)
  })
})

describe('another state of the kernel', () => {
  it.each([
    ['a new server exists', newServer(A), 'EEXIST', true],
    ['a server is missing', changeServer(A), 'ESRCH', true],
    ['a new real server exists', newDestination(A, POD), 'EEXIST', true],
    ['a real server is missing', changeDestination(A, POD), 'ENOENT', true],
    ['the server of a real server is missing', newDestination(A, POD), 'ESRCH', true],
    ['no scheduler', newServer(A), 'ENOENT', false],
    ['no scheduler for a change', changeServer(A), 'ENOENT', false],
    ['a wrong address', newDestination(A, POD), 'EINVAL', false],
  ])('%s', (_, operation, code, expected) => {
    expect(meetsOtherServers([failed(operation, code)])).toBe(expected)
  })

  it('is not what a server without scheduler leaves to its real servers, and is for those of others', () => {
    const rejected = failed(newServer(A), 'ENOENT')
    expect(meetsOtherServers([rejected, failed(newDestination(A, POD), 'ESRCH')])).toBe(false)
    expect(meetsOtherServers([rejected, failed(newDestination(B, POD), 'ESRCH')])).toBe(true)
  })
})
