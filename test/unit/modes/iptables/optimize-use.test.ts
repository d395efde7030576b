import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { CommitResult, NftClient } from '../../../../src/kernel/nft/client.ts'
import { compileRule } from '../../../../src/kernel/xt/compile.ts'
import type { XtRule } from '../../../../src/kernel/xt/rule.ts'
import {
  BusiestFirst,
  type BusiestFirstEvent,
  type CountedEntry,
  noteUse,
  orderByUse,
} from '../../../../src/modes/iptables/optimize/busiest-first.ts'
import { KUBE_CHAINS } from '../../../../src/modes/xt-common/layout.ts'
import { hostAddress, jump, PROTOCOLS, transport } from '../../../../src/modes/xt-common/rules-parts.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { ip4 } from '../../../support/frontends.ts'
import { runs } from '../../../support/runs.ts'

function singles(...rates: readonly number[]) {
  return rates.map(rate => ({ size: 1, rate }))
}

function applied<T>(parts: readonly T[], moves: readonly number[]): readonly T[] {
  const moved = moves.toReversed().flatMap(index => parts[index] ?? [])
  return [...moved, ...parts.filter((_, index) => !moves.includes(index))]
}

describe('the order of entries', () => {
  it('lets those alone that are used about alike, and those that hardly anybody uses', () => {
    expect(orderByUse(singles(9_000, 10_000, 11_000, 17_000), 4)).toEqual([])
    expect(orderByUse(singles(9_000, 18_000), 4)).toEqual([1])
    expect(orderByUse(singles(0, 0, 0, 0, 1_000), 4)).toEqual([])
    expect(orderByUse(singles(), 4)).toEqual([])
  })

  it('puts what most connections meet first', () => {
    expect(orderByUse(singles(0, 0, 0, 3_000), 4)).toEqual([3])
    expect(orderByUse(singles(0, 3_000, 0, 9_000), 4)).toEqual([3])
    expect(orderByUse(singles(0, 0, 3_000, 0, 9_000), 4)).toEqual([4])
  })

  it('moves no more than it may, and weighs rules that move together', () => {
    const rates = [...Array.from({ length: 20 }, () => 0), 5_000, 50_000, 500_000]
    expect(orderByUse(singles(...rates), 1)).toEqual([22])
    expect(orderByUse(singles(...rates), 0)).toEqual([])
    const pair = [
      { size: 1, rate: 6_000 },
      { size: 3, rate: 18_000 },
    ]
    expect(orderByUse(pair, 4)).toEqual([])
  })

  it('comes to rest, and saves rules with each move', () => {
    const cost = (parts: readonly { readonly rate: number }[]) =>
      parts.reduce((sum, { rate }, index) => sum + rate * (index + 1), 0)
    fc.assert(
      fc.property(fc.array(fc.nat({ max: 100_000 }), { maxLength: 40 }), rates => {
        let parts: readonly { readonly size: number; readonly rate: number }[] = singles(...rates)
        for (let looks = 0; ; looks++) {
          expect(looks).toBeLessThan(200)
          const moves = orderByUse(parts, 4)
          if (moves.length === 0) break
          const after = applied(parts, moves)
          expect(cost(after)).toBeLessThan(cost(parts))
          parts = after
        }
      }),
      { numRuns: runs(300) },
    )
  })
})

describe('rates', () => {
  const entry = (packets: number, handle = 1): CountedEntry => {
    return { compiled: 'a', handle: BigInt(handle), packets: BigInt(packets) }
  }
  const rateOf = (use: ReturnType<typeof noteUse>) => use.entries.get('a')?.rate

  it('follow from two looks, and fade', () => {
    const first = noteUse(undefined, [entry(5_000)], 0)
    expect(rateOf(first)).toBe(undefined)
    const second = noteUse(first, [entry(15_000)], 10_000)
    expect(rateOf(second)).toBe(1_000)
    const idle = noteUse(second, [entry(15_000)], 310_000)
    expect(rateOf(idle)).toBe(500)
  })

  it('begin anew with a counter that does', () => {
    const first = noteUse(undefined, [entry(5_000)], 0)
    expect(rateOf(noteUse(first, [entry(6_000, 2)], 10_000))).toBe(600)
    expect(rateOf(noteUse(first, [entry(40)], 10_000))).toBe(4)
    expect(noteUse(first, [], 10_000).entries.size).toBe(0)
  })
})

interface Held extends CountedEntry {
  readonly chain: string
}

/** One table of rules that can be counted, inserted and deleted. */
class FakeRules {
  readonly chains = new Map<string, Held[]>()
  handle = 1n
  moment = 7
  refuse: Error | undefined
  onCount: () => void = () => undefined
  readonly client: Pick<NftClient, 'generation' | 'ruleCounters' | 'commit'> = {
    generation: () => this.moment,
    ruleCounters: ({ family, chain }) => {
      this.onCount()
      return Promise.resolve(family === 'ip' ? [...(this.chains.get(chain) ?? [])] : [])
    },
    commit: (operations, options = {}) => {
      if (this.refuse !== undefined) throw this.refuse
      if (options.generation !== this.moment) return Promise.resolve(this.#result('stale'))
      for (const operation of operations) {
        if (operation.verb === 'insert-rule' && 'compiled' in operation.rule)
          this.#chain(operation.chain).unshift(this.#rule(operation.chain, operation.rule.compiled))
        if (operation.verb === 'delete-rule')
          this.chains.set(
            operation.chain,
            this.#chain(operation.chain).filter(({ handle }) => handle !== operation.handle),
          )
      }
      this.moment++
      return Promise.resolve(this.#result('committed'))
    },
  }

  add(chain: string, rule: XtRule): void {
    this.#chain(chain).push(this.#rule(chain, compileRule(rule, 'ip').compiled))
  }

  count(chain: string, which: number | string | undefined, packets: number): void {
    const rules = this.#chain(chain)
    const index = typeof which === 'number' ? which : rules.findIndex(({ compiled }) => compiled === which)
    const rule = rules[index]
    if (rule !== undefined) rules[index] = { ...rule, packets: rule.packets + BigInt(packets) }
  }

  #chain(name: string): Held[] {
    const known = this.chains.get(name) ?? []
    this.chains.set(name, known)
    return known
  }

  #rule(chain: string, compiled: string): Held {
    return { chain, compiled, handle: this.handle++, packets: 0n }
  }

  #result(outcome: CommitResult['outcome']): CommitResult {
    return {
      outcome,
      generation: this.moment,
      foreign: false,
      failures: [],
      bytes: 0,
      messages: 0,
      durationMs: 0,
    }
  }
}

const LEAF = 'KUBE-SVC-IP-07'

function entryOf(n: number, more: Partial<XtRule> = {}): XtRule {
  return {
    protocol: PROTOCOLS.TCP,
    destination: hostAddress(ip4(10, 96, n, 7)),
    matches: [transport('TCP', 80)],
    target: jump(`KUBE-SVC-${n}`),
    ...more,
  }
}

const ROUND_MS = 300_000

describe('the busiest entries', () => {
  async function play(count: number) {
    const rules = new FakeRules()
    for (let n = 0; n < count; n++) rules.add(LEAF, entryOf(n))
    const clock = new FakeClock()
    const events: BusiestFirstEvent[] = []
    const busiest = new BusiestFirst({
      client: rules.client,
      clock,
      names: KUBE_CHAINS,
      report: event => events.push(event),
    })
    busiest.start()
    await clock.advance(ROUND_MS)
    return {
      rules,
      clock,
      events,
      busiest,
      names: () => rules.chains.get(LEAF)?.map(({ compiled }) => compiled),
    }
  }

  it('wait where somebody else was faster', async () => {
    const { rules, clock, events, busiest, names } = await play(30)
    const before = names()
    rules.count(LEAF, 20, 1_000_000)
    rules.onCount = () => {
      rules.moment++
    }
    await clock.advance(ROUND_MS)
    expect(events).toEqual([{ kind: 'overtaken' }])
    expect(names()).toEqual(before)
    rules.onCount = () => undefined
    await clock.advance(ROUND_MS)
    expect(events.at(-1)?.kind).toBe('moved')
    await busiest.close()
  })

  it('are tried again after a failure', async () => {
    const { rules, clock, events, busiest } = await play(30)
    rules.count(LEAF, 20, 1_000_000)
    rules.refuse = new Error('no')
    await clock.advance(ROUND_MS)
    expect(events).toEqual([{ kind: 'failed', error: rules.refuse }])
    rules.refuse = undefined
    await clock.advance(ROUND_MS)
    expect(events.at(-1)?.kind).toBe('moved')
    await busiest.close()
  })

  it('keep the order of rules about the same packets', async () => {
    const { rules, clock, busiest } = await play(0)
    const port = 'KUBE-SVC-TCP-30000-30043'
    for (let n = 0; n < 30; n++) {
      const { destination, ...rest } = entryOf(n, { matches: [transport('TCP', 30_000 + n)] })
      const loopback = { ip: ip4(127, 0, 0, 0), mask: '\xff\0\0\0', inverted: false }
      rules.add(port, { ...rest, destination: loopback })
      rules.add(port, rest)
    }
    await clock.advance(ROUND_MS)
    const before = rules.chains.get(port)?.map(({ compiled }) => compiled) ?? []
    rules.count(port, 41, 1_000_000)
    await clock.advance(ROUND_MS)
    const after = rules.chains.get(port)?.map(({ compiled }) => compiled) ?? []
    expect(after.slice(0, 2)).toEqual(before.slice(40, 42))
    expect(after.length).toBe(60)
    await busiest.close()
  })
})
