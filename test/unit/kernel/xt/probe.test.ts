import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import {
  compatRequest,
  hasXtExtension,
  missingText,
  probeXt,
  XT_EXTENSIONS,
} from '../../../../src/kernel/xt/probe.ts'
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

/** A kernel that has everything but what `lacks` says of the request's bytes, by the error it gives. */
function kernelWithout(lacks: (request: string) => string | undefined): {
  readonly connection: Connection
  readonly asked: readonly Uint8Array[]
} {
  const transport = new ScriptedTransport(sent => {
    const sequence = sequenceOf(sent)
    const code = lacks(Buffer.from(sent).toString('latin1'))
    if (code !== undefined) return [datagram(errorMessage(sequence, errnoNumber(code)))]
    return [datagram(message({ type: 11 << 8, sequence, payload: '\x02\0\0\0' }))]
  })
  return { connection: new Connection({ transport, clock: systemClock }), asked: transport.sent }
}

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
  const has = (code: string) => hasXtExtension(kernelWithout(() => code).connection, MATCH)

  it.each(['EINVAL', 'ENOENT', 'EPROTONOSUPPORT'])('says no after %s', code => {
    expect(has(code)).toBe(false)
  })

  it('does not take another refusal for a no', () => {
    expect(() => has('EPERM')).toThrow(/EPERM/)
  })
})

it('asks for each match and target in both families, and misses none where all are there', () => {
  const { connection, asked } = kernelWithout(() => undefined)
  expect(probeXt(connection)).toEqual([])
  expect(missingText([])).toBe('')
  expect(asked.length).toBe(XT_EXTENSIONS.length * 2)
  const types = asked.map(bytes => bytes[bytes.length - 1])
  expect(types.filter(type => type === 1).length).toBe(
    XT_EXTENSIONS.filter(({ kind }) => kind === 'target').length * 2,
  )
})

it('says what is missing, in which family, and for what it is used', () => {
  const NFPROTO_IPV6 = 10
  const { connection } = kernelWithout(request => {
    if (request.includes('recent\0')) return 'ENOENT'
    return request.includes('DNAT\0') && request.charCodeAt(16) === NFPROTO_IPV6
      ? 'EPROTONOSUPPORT'
      : undefined
  })
  const missing = probeXt(connection)
  expect(missing.map(({ name, use, family }) => `${name} ${use} ${family}`)).toEqual([
    'recent affinity ip',
    'DNAT services ip6',
    'recent affinity ip6',
  ])
  expect(missingText(missing)).toBe(
    'match recent (revision 1) for ip and ip6, target DNAT (revision 2) for ip6: CONFIG_NFT_COMPAT, CONFIG_NETFILTER_XT_MATCH_RECENT, CONFIG_NETFILTER_XT_NAT',
  )
})
