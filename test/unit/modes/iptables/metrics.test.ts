import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish } from '../../../../src/base/clock.ts'
import { FAMILIES } from '../../../../src/base/ip.ts'
import type { ObservedChain } from '../../../../src/kernel/nft/state.ts'
import { compileRule, type RuleCodec } from '../../../../src/kernel/xt/compile.ts'
import type { XtRule } from '../../../../src/kernel/xt/rule.ts'
import { diffStates } from '../../../../src/modes/iptables/diff.ts'
import { type IptablesNumbers, iptablesMetrics, RuleCounts } from '../../../../src/modes/iptables/metrics.ts'
import { wantedChains } from '../../../../src/modes/iptables/mode.ts'
import { renderIptablesState } from '../../../../src/modes/iptables/render.ts'
import { DEFAULT_IPTABLES_OPTIONS, type IptablesOptions } from '../../../../src/modes/iptables/settings.ts'
import { EMPTY_STATE, type IptablesState, type RenderedState } from '../../../../src/modes/iptables/state.ts'
import { KUBE_CHAINS } from '../../../../src/modes/xt-common/layout.ts'
import { MARTIAN } from '../../../../src/modes/xt-common/rules-parts.ts'
import { table } from '../../../support/frontends.ts'
import { createMetrics } from '../../../support/metrics.ts'
import { IS_QUICK, runs } from '../../../support/runs.ts'
import { everyKind, plainService } from '../../../support/services.ts'

const CODEC: RuleCodec = { compile: (rule, family) => compileRule(rule, family) }

function rendered(
  services: Parameters<typeof table>[0],
  options: Partial<IptablesOptions> = {},
  base: IptablesState = EMPTY_STATE,
  without: readonly string[] = [],
): RenderedState {
  const all = { ...DEFAULT_IPTABLES_OPTIONS, ...options }
  return finish(renderIptablesState(table(services), { base, without: new Set(without) }, all))
}

/** The number of rules by table, from a walk over all wanted chains. */
function walked(state: RenderedState): Readonly<Record<string, number>> {
  const counts: Record<string, number> = { 'IPv4 filter': 0, 'IPv4 nat': 0, 'IPv6 filter': 0, 'IPv6 nat': 0 }
  for (const { family, table: name, rules, last } of wantedChains(state)) {
    if (name === 'mangle') continue
    const key = `${family === 'ip' ? 'IPv4' : 'IPv6'} ${name}`
    counts[key] = (counts[key] ?? 0) + rules.length + last.length
  }
  // The rule in KUBE-FIREWALL, which kubelet writes as well.
  return { ...counts, 'IPv4 filter': (counts['IPv4 filter'] ?? 0) + 1 }
}

function totals(counts: RuleCounts): Readonly<Record<string, number>> {
  return Object.fromEntries(counts.numbers().rules.map(each => [`${each.family} ${each.table}`, each.total]))
}

const ALL = [...everyKind(false), ...everyKind(true), plainService(1, 4), plainService(2, 4)]

describe.each([false, true])('rules, optimized: %s', optimize => {
  it.skipIf(IS_QUICK)('are counted by the operations that were committed', () => {
    const step = fc.record({
      chosen: fc.subarray(ALL),
      hidden: fc.subarray([...table(ALL).services.keys()], { maxLength: 2 }),
      masqueradeAll: fc.boolean(),
    })
    fc.assert(
      fc.property(fc.array(step, { minLength: 1, maxLength: 6 }), steps => {
        const counts = new RuleCounts(KUBE_CHAINS)
        let base: IptablesState = EMPTY_STATE
        for (const { chosen, hidden, masqueradeAll } of steps) {
          const state = rendered(chosen, { optimize, masqueradeAll }, base, hidden)
          counts.committed(finish(diffStates(base, state, CODEC)).operations)
          base = state
          expect(totals(counts)).toEqual(walked(state))
        }
      }),
      { numRuns: runs(60) },
    )
  })

  it('are counted in what was read, without those of other programs', () => {
    const state = rendered(ALL, { optimize })
    const observed = new Map<string, { chains: Map<string, ObservedChain> }>()
    const put = (key: 'ip' | 'ip6', of: string, name: string, rules: readonly XtRule[]) => {
      const chains = observed.get(`${key} ${of}`)?.chains ?? new Map<string, ObservedChain>()
      const read = rules.map(rule => ({ handle: 1n, compiled: compileRule(rule, key).compiled }))
      observed.set(`${key} ${of}`, { chains: chains.set(name, { name, hook: undefined, rules: read }) })
    }
    for (const { family, table: of, name, rules, last } of wantedChains(state))
      put(family, of, name, [...rules, ...last])
    const theirs: XtRule = { matches: [], target: { kind: 'DROP' } }
    put('ip', 'filter', 'KUBE-FIREWALL', [theirs, MARTIAN])
    put('ip', 'nat', 'DOCKER', [theirs])
    const counts = new RuleCounts(KUBE_CHAINS)
    counts.observed(observed)
    expect(totals(counts)).toEqual(walked(state))
  })
})

it('the last batch counts by the rules that it adds', () => {
  const at = { family: 'ip', table: 'nat', owner: undefined, chain: 'KUBE-SERVICES' } as const
  const rule = { matches: [], target: undefined }
  const counts = new RuleCounts(KUBE_CHAINS)
  counts.committed([
    { ...at, verb: 'flush-chain', rules: 3 },
    { ...at, verb: 'add-rule', rule },
    { ...at, verb: 'insert-rule', rule },
    { ...at, table: 'filter', verb: 'insert-rule', rule },
    { ...at, verb: 'delete-rule', rule: { handle: 1n, compiled: '' } },
  ])
  expect(counts.numbers().rules.map(({ last }) => last)).toEqual([1, 2, 0, 0])
})

it("gives kube-proxy's metrics of its iptables mode, and none in another mode", async () => {
  const all: IptablesNumbers = {
    rules: [
      { table: 'filter', family: 'IPv4', total: 20, last: 1 },
      { table: 'nat', family: 'IPv6', total: 40, last: 6 },
    ],
    failures: { full: 1, partial: 2 },
    invalidDropped: 5,
    localhostAccepted: undefined,
  }
  let numbers: IptablesNumbers | undefined = all
  const metrics = createMetrics({
    ofMode: () => Promise.resolve(numbers === undefined ? {} : iptablesMetrics(numbers, FAMILIES)),
  })
  const types = async () =>
    (await metrics.text()).match(/^# TYPE kubeproxy_\w*iptables.*$/gm)?.map(line => line.slice(7)) ?? []
  expect((await types()).toSorted()).toEqual([
    'kubeproxy_iptables_ct_state_invalid_dropped_packets_total counter',
    'kubeproxy_sync_proxy_rules_iptables_last gauge',
    'kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total counter',
    'kubeproxy_sync_proxy_rules_iptables_restore_failures_total counter',
    'kubeproxy_sync_proxy_rules_iptables_total gauge',
  ])
  numbers = undefined
  expect(await types()).toEqual([])
  numbers = all
  expect(await Promise.all([types(), types()])).toEqual([await types(), await types()])
})
