import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { createNftClient } from '../../../../src/kernel/nft/client.ts'
import type { CompiledRule } from '../../../../src/kernel/nft/state.ts'
import type { Operation } from '../../../../src/kernel/nft/transaction.ts'
import { compileRule, type RuleCodec } from '../../../../src/kernel/xt/compile.ts'
import type { XtMatch, XtRule } from '../../../../src/kernel/xt/rule.ts'
import { chainKey, type DeleteRule } from '../../../../src/kernel/xt/scope.ts'
import { HandleCache, resolveDeletions } from '../../../../src/kernel/xt/scope-handles.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'

const PLACE = { family: 'ip', table: 'nat' } as const
const KEY = chainKey(PLACE, 'LIST')
const ALL_PORTS = '\0\0\xff\xff'
const CODEC: RuleCodec = { compile: (rule, family) => compileRule(rule, family) }

function returning(...texts: readonly string[]): XtRule {
  const matches = texts.map((text): XtMatch => ({ kind: 'comment', text }))
  return { matches, target: { kind: 'RETURN' } }
}

function going(rule: DeleteRule['rule']): DeleteRule {
  return { ...PLACE, verb: 'delete-rule', chain: 'LIST', rule, owner: undefined }
}

async function world(...rules: readonly (XtRule | CompiledRule)[]) {
  const client = createNftClient({ transport: new FakeKernel().open(), clock: systemClock })
  const handleCache = new HandleCache()
  const counts = { asked: 0, listed: 0 }
  const counting: Pick<typeof client, 'rule' | 'ruleCounters'> = {
    rule(place) {
      counts.asked++
      return client.rule(place)
    },
    ruleCounters(chain) {
      counts.listed++
      return client.ruleCounters(chain)
    },
  }
  const put = async (...rules: readonly (XtRule | CompiledRule)[]): Promise<void> => {
    const operations: readonly Operation[] = [
      { ...PLACE, verb: 'add-table', flags: 0, comment: undefined },
      { ...PLACE, verb: 'add-chain', chain: { name: 'LIST', hook: undefined, rules: [] } },
      ...rules.map((rule): Operation => {
        const compiled = 'compiled' in rule ? rule : compileRule(rule, 'ip')
        return { ...PLACE, verb: 'add-rule', chain: 'LIST', rule: compiled }
      }),
    ]
    expect((await client.commit(operations)).outcome).toBe('committed')
  }
  const there = () => client.ruleCounters({ ...PLACE, chain: 'LIST' })
  const remake = async (...rules: readonly XtRule[]): Promise<void> => {
    await client.commit([{ ...PLACE, verb: 'delete-table' }])
    await put(...rules)
  }
  const learn = async (): Promise<void> => {
    handleCache.reached(client.generation())
    handleCache.learn(KEY, await there())
  }
  const resolve = async (...deletions: readonly DeleteRule[]) => {
    handleCache.reached(client.generation())
    const resolved = await resolveDeletions({ client: counting, handleCache, codec: CODEC }, deletions)
    return resolved && deletions.map(deletion => resolved.get(deletion)?.handle)
  }
  await put(...rules)
  await learn()
  return { put, remake, learn, there, resolve, counts }
}

describe('the number of a rule that goes', () => {
  it('is looked up anew when another rule has it, since the table was made anew', async () => {
    const { there, remake, resolve, counts } = await world(returning('a'), returning('b'))
    const before = await there()
    await remake(returning('b'), returning('a'))
    const after = await there()
    expect(after.map(({ handle }) => handle)).toEqual(before.map(({ handle }) => handle))
    expect(await resolve(going(returning('b')))).toEqual([after[0]?.handle])
    expect(counts).toEqual({ asked: 1, listed: 1 })
  })

  it('is unknown when the rule is gone', async () => {
    const { remake, resolve } = await world(returning('a'), returning('b'))
    await remake(returning('a'))
    expect(await resolve(going(returning('b')))).toBeUndefined()
    expect(await resolve(going(returning('a')), going(returning('a')))).toBeUndefined()
  })

  it('is another one for each of equal rules, and its own for one that was read', async () => {
    const { there, resolve } = await world(returning('a'), returning('a'), returning('a'))
    const all = await there()
    const two = await resolve(going(returning('a')), going(returning('a')))
    expect(new Set(two).size).toBe(2)
    for (const rule of all) expect(await resolve(going(rule))).toEqual([rule.handle])
  })

  it('is found by the words of a rule that others wrote in other bytes', async () => {
    const tcp = { protocol: { number: 6, inverted: false }, target: { kind: 'RETURN' } } as const
    const ports = { from: 80, to: 80, inverted: false }
    const native: XtRule = { ...tcp, matches: [{ kind: 'tcp', destinationPorts: ports }] }
    // As versions of iptables write it that know no native comparison of ports.
    const any = compileRule({ ...tcp, matches: [{ kind: 'tcp' }] }, 'ip')
    const compiled = any.compiled.replace(ALL_PORTS + ALL_PORTS, `${ALL_PORTS}\x50\0\x50\0`)
    const { there, resolve } = await world(returning('a'), { ...any, compiled })
    const [, theirs] = await there()
    expect(theirs?.compiled).not.toBe(compileRule(native, 'ip').compiled)
    expect(await resolve(going(native))).toEqual([theirs?.handle])
  })
})
