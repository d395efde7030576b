import { describe, expect, it } from 'vitest'
import {
  type ForeignChain,
  type ForeignRule,
  type ForeignTable,
  type Owner,
  planRemoval,
} from '../../../../src/kernel/nft/survey.ts'

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
