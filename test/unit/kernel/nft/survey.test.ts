import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  decodeForeignRule,
  type ForeignChain,
  type ForeignRule,
  type ForeignTable,
  type Owner,
  planRemoval,
} from '../../../../src/kernel/nft/survey.ts'
import { NetlinkError } from '../../../../src/netlink/errors.ts'
import {
  attribute,
  be32,
  datagram,
  firstMessage,
  message,
  nest,
} from '../../../support/scripted-transport.ts'
import { tolerant } from '../../../support/tolerant.ts'

describe('a rule of another program', () => {
  /** NFT_MSG_NEWRULE as iptables-nft makes the kernel tell it. */
  const NEWRULE = 0x0a06
  const handle = attribute(3, `${be32(0)}${be32(17)}`)
  const expression = (name: string, ...data: readonly string[]) =>
    nest(1, attribute(1, `${name}\0`), nest(2, ...data))
  const verdict = nest(2, attribute(1, be32(0xfffffffd)), attribute(2, 'KUBE-SERVICES\0'))
  const jump = expression('immediate', attribute(1, be32(0)), nest(2, verdict))
  const info = attribute(3, 'kubernetes service portals'.padEnd(256, '\0'))
  const matchOf = (name: string) =>
    expression('match', attribute(1, `${name}\0`), attribute(2, be32(0)), info)
  const place = attribute(1, 'nat\0') + attribute(2, 'PREROUTING\0')
  const decoded = (attributes: string) =>
    decodeForeignRule(
      ...firstMessage(datagram(message({ type: NEWRULE, payload: `\x02\0\0\0${attributes}` }))),
    )

  it('is told by its handle, the chain it leads to, and the comment of iptables', () => {
    expect(decoded(place + handle + nest(4, matchOf('comment') + jump))).toEqual({
      table: 'nat',
      chain: 'PREROUTING',
      rule: { handle: 17n, targets: ['KUBE-SERVICES'], sets: [], comments: ['kubernetes service portals'] },
    })
    const { rule } = decoded(place + handle + nest(4, matchOf('recent')))
    expect(rule).toEqual({ handle: 17n, targets: [], sets: [], comments: [] })
  })

  it('is malformed without its handle, and any bytes are a rule or a NetlinkError', () => {
    expect(() => decoded(place)).toThrow(NetlinkError)
    const octets = fc.uint8Array({ maxLength: 120 }).map(bytes => Buffer.from(bytes).toString('latin1'))
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.integer({ min: 0, max: 12 }), octets)), items => {
        const attributes = items.map(([type, payload]) => attribute(type, payload)).join('')
        tolerant(() => decoded(place + handle + attributes))
      }),
    )
  })
})

const OWNER: Owner = {
  ownsChain: name => name.startsWith('KUBE-'),
  ownsJump: ({ comments }) => comments.includes('kubernetes'),
}

/** Rules are written `TARGET` (a jump), `TARGET!` (a jump with the owner's comment) or `-` (no jump). */
function table(chains: Readonly<Record<string, readonly string[]>>): ForeignTable {
  let handle = 0n
  const rule = (text: string): ForeignRule => {
    handle += 1n
    const target = text.replace('!', '')
    return {
      handle,
      targets: target === '-' ? [] : [target],
      sets: [],
      comments: text.endsWith('!') ? ['kubernetes'] : [],
    }
  }
  const chain = ([name, rules]: [string, readonly string[]]): ForeignChain => ({
    name,
    isBase: /^[A-Z]+ROUTING$/.test(name),
    rules: rules.map(rule),
  })
  return { family: 'ip', name: 'nat', chains: Object.entries(chains).map(chain) }
}

/** The transaction in short. */
function steps(given: ForeignTable): readonly string[] {
  return planRemoval(given, OWNER).transaction.map(operation => {
    switch (operation.verb) {
      case 'delete-rule':
        return `rule ${operation.chain} ${operation.handle}`
      case 'flush-chain':
        return `flush ${operation.chain}`
      case 'delete-chain':
        return `chain ${operation.chain}`
      default:
        return operation.verb
    }
  })
}

describe('planRemoval', () => {
  it('deletes the rules that lead in, then empties the chains, then deletes them', () => {
    const given = table({
      PREROUTING: ['DOCKER', 'KUBE-SERVICES!', '-'],
      'KUBE-SERVICES': ['KUBE-SVC', '-'],
      'KUBE-SVC': [],
      DOCKER: ['-'],
    })
    expect(steps(given)).toEqual([
      'rule PREROUTING 2',
      'flush KUBE-SERVICES',
      'chain KUBE-SERVICES',
      'chain KUBE-SVC',
    ])
    expect(planRemoval(given, OWNER)).toMatchObject({
      chains: ['KUBE-SERVICES', 'KUBE-SVC'],
      jumps: 1,
      kept: [],
    })
  })

  it('keeps chains that chains of others lead to, with all they need, and empties none of them', () => {
    const given = table({
      PREROUTING: ['KUBE-SERVICES!', 'MINE'],
      MINE: ['KUBE-EXT'],
      'KUBE-SERVICES': ['KUBE-EXT', 'KUBE-OTHER'],
      'KUBE-EXT': ['KUBE-MARK'],
      'KUBE-MARK': ['-'],
      'KUBE-OTHER': ['KUBE-MARK'],
    })
    expect(steps(given)).toEqual([
      'rule PREROUTING 1',
      'flush KUBE-SERVICES',
      'flush KUBE-OTHER',
      'chain KUBE-SERVICES',
      'chain KUBE-OTHER',
    ])
    expect(planRemoval(given, OWNER).kept).toEqual([
      { chain: 'KUBE-EXT', usedBy: 'MINE' },
      { chain: 'KUBE-MARK', usedBy: 'KUBE-EXT' },
    ])
  })

  it("keeps a chain that somebody else's rule of a base chain leads to, with the owner's rule beside it", () => {
    const given = table({ PREROUTING: ['KUBE-SERVICES!', 'KUBE-SERVICES'], 'KUBE-SERVICES': ['-'] })
    expect(steps(given)).toEqual([])
    expect(planRemoval(given, OWNER).kept).toEqual([{ chain: 'KUBE-SERVICES', usedBy: 'PREROUTING' }])
  })

  it('comes to an end where chains lead to each other', () => {
    const given = table({ MINE: ['KUBE-A'], 'KUBE-A': ['KUBE-B'], 'KUBE-B': ['KUBE-A'] })
    expect(steps(given)).toEqual([])
  })
})
