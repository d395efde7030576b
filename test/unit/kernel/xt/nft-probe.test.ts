import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { compatRequest, hasXtExtension } from '../../../../src/kernel/xt/probe.ts'
import { Connection } from '../../../../src/netlink/connection.ts'
import { errnoNumber } from '../../../../src/netlink/errors.ts'
import {
  datagram,
  errorMessage,
  message,
  ScriptedTransport,
  sequenceOf,
} from '../../../support/scripted-transport.ts'

const MATCH = { name: 'set', revision: 4, family: 2 }
const TYPE = 11 << 8

it('asks for a match of a revision as linux/netfilter/nf_tables_compat.h has it', () => {
  expect(Buffer.from(compatRequest(MATCH, 7)).toString('hex')).toBe(
    // nlmsghdr, nfgenmsg, NFTA_COMPAT_NAME "set", NFTA_COMPAT_REV 4, NFTA_COMPAT_TYPE 0.
    ['2c000000', '000b', '0100', '07000000', '00000000', '02', '00', '0000'].join('') +
      '0800010073657400' +
      '0800020000000004' +
      '0800030000000000',
  )
})

describe('hasXtExtension', () => {
  function answering(answer: (sequence: number) => ReturnType<typeof datagram>): boolean {
    const transport = new ScriptedTransport(sent => [answer(sequenceOf(sent))])
    return hasXtExtension(new Connection({ transport, clock: systemClock }), MATCH)
  }

  it('says yes when the kernel answers with the match', () => {
    expect(answering(sequence => datagram(message({ type: TYPE, sequence, payload: '\x02\0\0\0' })))).toBe(
      true,
    )
  })

  it.each(['EINVAL', 'ENOENT', 'EPROTONOSUPPORT'])('says no after %s', code => {
    expect(answering(sequence => datagram(errorMessage(sequence, errnoNumber(code))))).toBe(false)
  })

  it('does not take another refusal for a no', () => {
    expect(() => answering(sequence => datagram(errorMessage(sequence, errnoNumber('EPERM'))))).toThrow(
      /EPERM/,
    )
  })
})
