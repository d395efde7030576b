import { describe, expect, it } from 'vitest'
import { endpointsOf, rulesOfService } from '../../../../src/modes/iptables/render.ts'
import { backends, clusterIp, ip4, ip6, service as made } from '../../../support/frontends.ts'
import { endpoint, service, slice, tableOf } from '../../model/objects.ts'
import { fixedLines, jumpLines, serviceLines, staticsIn } from './rendered-text.ts'

/** Of IPv4, as kube-proxy counts what it hands to iptables-restore. */
function counts(services: number, endpoints: number): { readonly filter: number; readonly nat: number } {
  const addresses = Array.from({ length: endpoints }, (_, index) => endpoint(`10.1.0.${1 + index}`))
  const objects = Array.from({ length: services }, (_, index) => [
    service(`s${index}`, { clusterIP: `10.96.0.${1 + index}` }),
    slice(`s${index}-1`, `s${index}`, addresses),
  ])
  const table = tableOf(objects.flat())
  const lines = [
    ...fixedLines(),
    ...jumpLines().filter(line => line.includes(' KUBE-FIREWALL ')),
    ...[...table.services.values()].flatMap(its => serviceLines(its)),
  ]
  const count = (name: string): number => lines.filter(line => line.startsWith(`${name} `)).length
  return { filter: count('filter'), nat: count('nat') }
}

describe('the number of rules', () => {
  it.each([
    [0, 0, 4, 5],
    [1, 0, 5, 5],
    [1, 1, 4, 10],
    [1, 2, 4, 13],
    [1, 10, 4, 37],
    [10, 0, 14, 5],
    [10, 1, 4, 55],
    [10, 2, 4, 85],
    [10, 10, 4, 325],
  ])('for %i Services of %i endpoints is that of kube-proxy', (services, endpoints, filter, nat) => {
    expect(counts(services, endpoints)).toEqual({ filter, nat })
  })
})

describe('the number of endpoints', () => {
  const frontends = [clusterIp(ip4(10, 96, 0, 1), 80)]
  const ofV6 = [clusterIp(ip6(0x96, 1), 80)]

  it('counts each of a port once, whichever lists it is in', () => {
    const cluster = backends(3)
    const local = [...cluster.slice(0, 2), ...backends(1, { local: true })]
    expect(endpointsOf(made('ns/a', [{ frontends, cluster, local }]))).toBe(4)
    expect(endpointsOf(made('ns/a', [{ frontends, cluster }]))).toBe(3)
    expect(endpointsOf(made('ns/a', [{ frontends, local }]))).toBe(3)
  })

  it('adds up ports, and takes the family that has more', () => {
    const ports = [
      { name: 'a', frontends, cluster: backends(3) },
      { name: 'b', frontends, cluster: backends(3) },
      { name: 'a', v6: true, frontends: ofV6, cluster: backends(5, { v6: true }) },
    ]
    expect(endpointsOf(made('ns/a', ports))).toBe(6)
  })
})

describe('the share of an endpoint', () => {
  const COUNT = 2_500

  /** 1/n with ten decimals, rounded as Go does: half to even. */
  function tenDecimals(n: number): string {
    const scale = 10n ** 10n
    const [whole, rest] = [scale / BigInt(n), scale % BigInt(n)]
    const twice = 2n * rest
    const up = twice > BigInt(n) || (twice === BigInt(n) && whole % 2n === 1n)
    return `0.${(whole + (up ? 1n : 0n)).toString().padStart(10, '0')}`
  }

  it('is in the units that iptables makes of what kube-proxy writes', () => {
    const [frontends, cluster] = [[clusterIp(ip4(10, 96, 0, 1), 80)], backends(COUNT)]
    const { chains } = rulesOfService(made('ns/web', [{ frontends, cluster }]), staticsIn())
    const list = chains.find(({ name }) => name.startsWith('KUBE-SVC-'))
    const found = list?.rules.flatMap(({ matches }) =>
      matches.flatMap(match => (match.kind === 'statistic' ? [match.probability] : [])),
    )
    const expected = Array.from({ length: COUNT - 1 }, (_, index) =>
      Math.round(2 ** 31 * Number(tenDecimals(COUNT - index))),
    )
    expect(found).toEqual(expected)
  })
})
