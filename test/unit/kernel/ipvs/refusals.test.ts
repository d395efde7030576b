import { describe, expect, it } from 'vitest'
import { isGone, meetsOtherServers } from '../../../../src/kernel/ipvs/refusals.ts'
import type { IpvsOperation } from '../../../../src/kernel/ipvs/state.ts'
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

const A = virtual('10.96.0.1', 80)
const B = virtual('10.96.0.2', 80)
const POD = real('10.0.0.1', 80)

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
