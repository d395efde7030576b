import { describe, expect, it } from 'vitest'
import { firstStep } from '../../../../src/kernel/ipvs/messages.ts'
import { followUp, lastFailures, type Refusal } from '../../../../src/kernel/ipvs/refusals.ts'
import {
  IPVS_CMD_DEL_DEST,
  IPVS_CMD_DEL_SERVICE,
  IPVS_CMD_NEW_DEST,
  IPVS_CMD_NEW_SERVICE,
  IPVS_CMD_SET_DEST,
  IPVS_CMD_SET_SERVICE,
  type IpvsOperation,
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

const A = virtual('10.96.0.1', 80)
const B = virtual('10.96.0.2', 80)
const POD = real('10.0.0.1', 80)

const refused = (operation: IpvsOperation, code: string): Refusal => ({
  step: firstStep(operation),
  code,
  error: new Error(code),
})
const summary = (...refusals: readonly Refusal[]) => {
  const { again, failures } = followUp(refusals)
  return [again.map(({ command }) => command), failures.map(({ code }) => code)]
}

describe('the first command of an operation', () => {
  it.each([
    [newServer(A), IPVS_CMD_NEW_SERVICE],
    [changeServer(A), IPVS_CMD_SET_SERVICE],
    [deleteServer(A), IPVS_CMD_DEL_SERVICE],
    [newDestination(A, POD), IPVS_CMD_NEW_DEST],
    [changeDestination(A, POD), IPVS_CMD_SET_DEST],
    [deleteDestination(A, POD), IPVS_CMD_DEL_DEST],
  ])('$verb', (operation, command) => {
    expect(firstStep(operation)).toEqual({ operation, command })
  })
})

describe('what follows a refusal', () => {
  it.each([
    ['a new server that is there is changed', newServer(A), 'EEXIST', [[IPVS_CMD_SET_SERVICE], []]],
    ['a server that is not there is made', changeServer(A), 'ESRCH', [[IPVS_CMD_NEW_SERVICE], []]],
    ['a scheduler that is missing is a failure', newServer(A), 'ENOENT', [[], ['ENOENT']]],
    ['so it is for a change', changeServer(A), 'ENOENT', [[], ['ENOENT']]],
    [
      'a new real server that is there is changed',
      newDestination(A, POD),
      'EEXIST',
      [[IPVS_CMD_SET_DEST], []],
    ],
    [
      'a real server that is not there is made',
      changeDestination(A, POD),
      'ENOENT',
      [[IPVS_CMD_NEW_DEST], []],
    ],
    ['a real server without its server is a failure', newDestination(A, POD), 'ESRCH', [[], ['ESRCH']]],
    ['deleting a server that is gone is done', deleteServer(A), 'ESRCH', [[], []]],
    ['deleting a real server that is gone is done', deleteDestination(A, POD), 'ENOENT', [[], []]],
    ['deleting a real server of a server that is gone is done', deleteDestination(A, POD), 'ESRCH', [[], []]],
    ['anything else is a failure', deleteServer(A), 'EPERM', [[], ['EPERM']]],
  ])('%s', (_, operation, code, expected) => {
    expect(summary(refused(operation, code))).toEqual(expected)
  })

  it('brings the real servers of a server that is made anew, and of no other', () => {
    const refusals = [
      refused(changeServer(A), 'ESRCH'),
      refused(changeDestination(A, POD), 'ESRCH'),
      refused(newDestination(A, real('10.0.0.2', 80)), 'ESRCH'),
      refused(newDestination(B, POD), 'ESRCH'),
    ]
    expect(summary(...refusals)).toEqual([
      [IPVS_CMD_NEW_SERVICE, IPVS_CMD_NEW_DEST, IPVS_CMD_NEW_DEST],
      ['ESRCH'],
    ])
  })

  it('ends with the second round', () => {
    const refusals = [refused(newServer(A), 'EEXIST'), refused(deleteServer(A), 'ESRCH')]
    expect(lastFailures(refusals)).toEqual([refusals[0]])
  })
})
