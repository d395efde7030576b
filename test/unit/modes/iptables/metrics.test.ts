import { describe, expect, it } from 'vitest'
import { FAMILIES } from '../../../../src/base/ip.ts'
import { type IptablesNumbers, iptablesMetrics } from '../../../../src/modes/iptables/metrics.ts'
import { createMetrics } from '../../../support/metrics.ts'

describe("kube-proxy's metrics of its iptables mode", () => {
  const NUMBERS: IptablesNumbers = {
    rules: [
      { table: 'filter', family: 'IPv4', total: 20, last: 1 },
      { table: 'nat', family: 'IPv6', total: 40, last: 6 },
    ],
    failures: { full: 1, partial: 2 },
    invalidDropped: 5,
    localhostAccepted: undefined,
  }
  const ofMode = async (metrics: { text(): Promise<string> }) =>
    (await metrics.text()).split('\n').filter(line => /^(?:# TYPE )?kubeproxy_\w*iptables/.test(line))

  it('are there in that mode alone, also after a change of it', async () => {
    let numbers: IptablesNumbers | undefined
    const metrics = createMetrics({
      ofMode: () => Promise.resolve(numbers === undefined ? {} : iptablesMetrics(numbers, FAMILIES)),
    })
    expect(await ofMode(metrics)).toEqual([])
    numbers = NUMBERS
    const lines = await ofMode(metrics)
    expect(lines.filter(line => line.startsWith('#')).toSorted()).toEqual([
      '# TYPE kubeproxy_iptables_ct_state_invalid_dropped_packets_total counter',
      '# TYPE kubeproxy_sync_proxy_rules_iptables_last gauge',
      '# TYPE kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total counter',
      '# TYPE kubeproxy_sync_proxy_rules_iptables_restore_failures_total counter',
      '# TYPE kubeproxy_sync_proxy_rules_iptables_total gauge',
    ])
    expect(await Promise.all([ofMode(metrics), ofMode(metrics)])).toEqual([lines, lines])
    numbers = undefined
    expect(await ofMode(metrics)).toEqual([])
    numbers = NUMBERS
    expect(await ofMode(metrics)).toEqual(lines)
  })
})
