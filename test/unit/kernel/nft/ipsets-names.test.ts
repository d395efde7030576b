import { expect, it } from 'vitest'
import { unwritableRules } from '../../../../src/kernel/nft/failures.ts'
import { rememberIpsets } from '../../../../src/kernel/nft/ipset-match.ts'
import type { Operation } from '../../../../src/kernel/nft/transaction.ts'
import { SystemError } from '../../../../src/netlink/transport.ts'

function ruleAbout(...sets: readonly string[]): Operation {
  const expressions = sets.map(set => ({ kind: 'ipset', set, dimensions: ['dst'], inverted: false }) as const)
  return { family: 'ip', table: 't', verb: 'add-rule', chain: 'c', rule: { expressions, comment: '' } }
}

it('asks once about each set, whatever the answer', () => {
  const asked: unknown[] = []
  const names = rememberIpsets({
    indexOf(name) {
      asked.push(name)
      return name === 'a' ? 3 : undefined
    },
    nameOf(index) {
      asked.push(index)
      return index === 3 ? 'a' : undefined
    },
  })
  for (let i = 0; i < 2; i++) {
    expect([names.indexOf('a'), names.indexOf('b'), names.nameOf(3), names.nameOf(4)]).toEqual([
      3,
      undefined,
      'a',
      undefined,
    ])
  }
  expect(asked).toEqual(['a', 'b', 3, 4])
})

it('knows nothing without anybody to ask', () => {
  const names = rememberIpsets(undefined)
  expect([names.indexOf('a'), names.nameOf(0)]).toEqual([undefined, undefined])
})

it('finds the rules about sets that are missing, and those that nobody can tell about', () => {
  const broken = new SystemError('sendmsg', 1, 'EPERM')
  const indexOf = (name: string): number | undefined => {
    if (name === 'broken') throw broken
    return name === 'a' ? 0 : undefined
  }
  const good = [ruleAbout(), ruleAbout('a', 'a')]
  const bad = [ruleAbout('a', 'gone', 'broken'), ruleAbout('broken')]
  const found = unwritableRules([...good, ...bad], indexOf)
  expect(found.map(({ operation }) => operation)).toEqual(bad)
  expect(found[0]?.error.message).toContain('ipset gone')
  expect(found[1]?.error).toBe(broken)
})

it('lets errors of ours through', () => {
  const indexOf = (): number => {
    throw new TypeError('a bug')
  }
  expect(() => unwritableRules([ruleAbout('a')], indexOf)).toThrow('a bug')
})
