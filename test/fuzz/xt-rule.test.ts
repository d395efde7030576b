import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { decodeAccount } from '../../src/kernel/nfacct/client.ts'
import { compileRule } from '../../src/kernel/xt/compile.ts'
import { printRule } from '../../src/kernel/xt/print.ts'
import { readRule } from '../../src/kernel/xt/read.ts'
import { viewOf } from '../../src/netlink/attribute.ts'
import { NetlinkError } from '../../src/netlink/errors.ts'
import { readMessages } from '../../src/netlink/message.ts'
import { octets } from '../support/nft-arbitraries.ts'
import { runs } from '../support/runs.ts'
import { IPSETS, ruleOf } from '../support/xt-arbitraries.ts'

const indexOf = (name: string) => (IPSETS.includes(name) ? IPSETS.indexOf(name) : undefined)
const family = fc.constantFrom('ip' as const, 'ip6' as const)

describe('rules of anybody', () => {
  it('are read whatever their bytes are', () => {
    fc.assert(
      fc.property(octets(0, 300), family, (bytes, family) => {
        const rule = readRule(bytes, family)
        expect(printRule(rule, family)).toBeTypeOf('string')
      }),
      { seed: 71, numRuns: runs(3000) },
    )
  })

  it('are read with bytes changed, cut off or put in: what was not understood is told', () => {
    const change = fc.record({
      at: fc.nat(),
      byte: fc.nat({ max: 255 }),
      how: fc.constantFrom('set', 'cut', 'insert'),
    })
    const rules = family.chain(family => ruleOf(family).map(rule => ({ family, rule })))
    let different = 0
    fc.assert(
      fc.property(rules, fc.array(change, { minLength: 1, maxLength: 4 }), ({ family, rule }, changes) => {
        const { compiled } = compileRule(rule, family, indexOf)
        const bytes = changes.reduce((bytes, { at, byte, how }) => {
          const place = at % (bytes.length + 1)
          if (how === 'cut') return bytes.slice(0, place)
          return (
            bytes.slice(0, place) + String.fromCharCode(byte) + bytes.slice(how === 'set' ? place + 1 : place)
          )
        }, compiled)
        const read = readRule(bytes, family, index => IPSETS[index])
        expect(printRule(read, family)).toBeTypeOf('string')
        if (read.matches.some(match => match.kind === 'unknown')) different++
      }),
      { seed: 72, numRuns: runs(1500) },
    )
    expect(different).toBeGreaterThan(200)
  })
})

describe('answers of nfacct', () => {
  it('are counters or NetlinkError, whatever their bytes are', () => {
    const message = fc.record({ body: octets(4, 90) }).map(({ body }) => {
      const bytes = Buffer.alloc(16 + body.length)
      bytes.writeUInt32LE(bytes.length, 0)
      bytes.write(body, 16, 'latin1')
      return bytes
    })
    fc.assert(
      fc.property(message, bytes => {
        const view = viewOf(bytes)
        for (const each of readMessages(view)) {
          try {
            expect(decodeAccount(view, each).packets).toBeTypeOf('bigint')
          } catch (error) {
            expect(error).toBeInstanceOf(NetlinkError)
          }
        }
      }),
      { seed: 73, numRuns: runs(2000) },
    )
  })
})
