import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish } from '../../../../src/base/steps.ts'
import { DEFAULT_IPTABLES_OPTIONS, type IptablesOptions } from '../../../../src/modes/iptables/options.ts'
import { renderIptablesState } from '../../../../src/modes/iptables/render.ts'
import { RuleCounter, type RuleCounts, rulesWritten } from '../../../../src/modes/iptables/rule-counts.ts'
import { EMPTY_STATE, type IptablesState, type RenderedState } from '../../../../src/modes/iptables/state.ts'
import { wantedChains } from '../../../../src/modes/iptables/trace.ts'
import { runs } from '../../../support/runs.ts'
import { everyKind, plainService } from '../../../support/services.ts'
import { table } from '../nftables/frontends.ts'

function rendered(
  services: Parameters<typeof table>[0],
  options: Partial<IptablesOptions> = {},
  base: IptablesState = EMPTY_STATE,
  without: readonly string[] = [],
): RenderedState {
  const all = { ...DEFAULT_IPTABLES_OPTIONS, ...options }
  return finish(renderIptablesState(table(services), { base, without: new Set(without) }, all))
}

/** By walking over everything that is wanted. */
function walked(state: RenderedState): RuleCounts {
  const counts = new Map<string, number>()
  for (const { family, table: name, rules, last } of wantedChains(state)) {
    const key = `${family} ${name}`
    counts.set(key, (counts.get(key) ?? 0) + rules.length + last.length)
  }
  // The rule that stands in KUBE-FIREWALL, which is kubelet's as much as ours.
  counts.set('ip filter', (counts.get('ip filter') ?? 0) + 1)
  return counts
}

const positive = (counts: RuleCounts): RuleCounts =>
  new Map([...counts].filter(([, count]) => count > 0).sort())
const ALL = [...everyKind(false), ...everyKind(true), plainService(1, 4), plainService(2, 4)]

describe.each([false, true])('rules, optimized: %s', optimize => {
  it('are counted as the walk over all of them counts', () => {
    const state = rendered(ALL, { optimize })
    expect(positive(finish(new RuleCounter().count(state)))).toEqual(positive(walked(state)))
  })

  it('are counted by what changed since, whatever came and went', () => {
    const step = fc.record({
      chosen: fc.subarray(ALL),
      hidden: fc.subarray([...table(ALL).services.keys()], { maxLength: 2 }),
      masqueradeAll: fc.boolean(),
    })
    fc.assert(
      fc.property(fc.array(step, { minLength: 1, maxLength: 6 }), steps => {
        const counter = new RuleCounter()
        let base: IptablesState = EMPTY_STATE
        for (const { chosen, hidden, masqueradeAll } of steps) {
          const state = rendered(chosen, { optimize, masqueradeAll }, base, hidden)
          base = state
          expect(positive(finish(counter.count(state)))).toEqual(positive(walked(state)))
        }
      }),
      { numRuns: runs(60) },
    )
  })
})

it('those that a batch writes are the ones that it adds', () => {
  const at = { family: 'ip', table: 'nat', owner: undefined, chain: 'KUBE-SERVICES' } as const
  const rule = { matches: [], target: undefined }
  const counts = rulesWritten([
    { ...at, verb: 'flush-chain', rules: 3 },
    { ...at, verb: 'add-rule', rule },
    { ...at, verb: 'insert-rule', rule },
    { ...at, table: 'filter', verb: 'insert-rule', rule },
    { ...at, verb: 'delete-rule', rule },
  ])
  expect(counts).toEqual(
    new Map([
      ['ip nat', 2],
      ['ip filter', 1],
    ]),
  )
})
