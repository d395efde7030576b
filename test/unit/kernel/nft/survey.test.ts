import * as fc from 'fast-check'
import { expect, it } from 'vitest'
import { decodeForeignRule } from '../../../../src/kernel/nft/survey.ts'
import { viewOf } from '../../../../src/netlink/attribute.ts'
import { NetlinkError } from '../../../../src/netlink/errors.ts'
import { readMessages } from '../../../../src/netlink/message.ts'
import { attribute, be32, datagram, message, nest } from '../../../support/scripted-transport.ts'

/** NFT_MSG_NEWRULE as iptables-nft makes the kernel tell it. */
const NEWRULE = 0x0a06
const handle = attribute(3, `${be32(0)}${be32(17)}`)
const expression = (name: string, ...data: readonly string[]) =>
  nest(1, attribute(1, `${name}\0`), nest(2, ...data))
const verdict = nest(2, attribute(1, be32(0xfffffffd)), attribute(2, 'KUBE-SERVICES\0'))
const jump = expression('immediate', attribute(1, be32(0)), nest(2, verdict))
const info = attribute(3, 'kubernetes service portals'.padEnd(256, '\0'))
const matchOf = (name: string) => expression('match', attribute(1, `${name}\0`), attribute(2, be32(0)), info)
const place = attribute(1, 'nat\0') + attribute(2, 'PREROUTING\0')

function decoded(attributes: string) {
  const bytes = datagram(message({ type: NEWRULE, payload: `\x02\0\0\0${attributes}` }))
  const view = viewOf(bytes)
  const [first] = readMessages(view)
  if (first === undefined) throw new Error('no message')
  return decodeForeignRule(view, first)
}

it('tells a rule by its handle, the chain it leads to, and the comment of iptables', () => {
  expect(decoded(place + handle + nest(4, matchOf('comment') + jump))).toEqual({
    table: 'nat',
    chain: 'PREROUTING',
    rule: { handle: 17n, targets: ['KUBE-SERVICES'], sets: [], comments: ['kubernetes service portals'] },
  })
})

it('takes nothing else for a comment', () => {
  const { rule } = decoded(place + handle + nest(4, matchOf('recent')))
  expect(rule).toEqual({ handle: 17n, targets: [], sets: [], comments: [] })
})

it('says that a rule without its handle is malformed', () => {
  expect(() => decoded(place)).toThrow(NetlinkError)
})

it('turns any bytes into a rule or a NetlinkError', () => {
  const octets = fc.uint8Array({ maxLength: 120 }).map(bytes => Buffer.from(bytes).toString('latin1'))
  fc.assert(
    fc.property(fc.array(fc.tuple(fc.integer({ min: 0, max: 12 }), octets)), items => {
      const attributes = items.map(([type, payload]) => attribute(type, payload)).join('')
      try {
        decoded(place + handle + attributes)
      } catch (error) {
        expect(error).toBeInstanceOf(NetlinkError)
      }
    }),
  )
})
