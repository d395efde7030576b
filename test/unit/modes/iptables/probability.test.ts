import { expect, it } from 'vitest'
import { rulesOfService } from '../../../../src/modes/iptables/render.ts'
import { backends, clusterIp, ip4, service } from '../../../support/frontends.ts'
import { staticsIn } from './rendered-text.ts'

const COUNT = 2_500

/** 1/n with ten decimals, rounded as Go does: half to even. */
function tenDecimals(n: number): string {
  const scale = 10n ** 10n
  const [whole, rest] = [scale / BigInt(n), scale % BigInt(n)]
  const twice = 2n * rest
  const up = twice > BigInt(n) || (twice === BigInt(n) && whole % 2n === 1n)
  return `0.${(whole + (up ? 1n : 0n)).toString().padStart(10, '0')}`
}

it('gives each endpoint its share, in the units that iptables makes of what kube-proxy writes', () => {
  const [frontends, cluster] = [[clusterIp(ip4(10, 96, 0, 1), 80)], backends(COUNT)]
  const { chains } = rulesOfService(service('ns/web', [{ frontends, cluster }]), staticsIn())
  const list = chains.find(({ name }) => name.startsWith('KUBE-SVC-'))
  const found = list?.rules.flatMap(({ matches }) =>
    matches.flatMap(match => (match.kind === 'statistic' ? [match.probability] : [])),
  )
  const expected = Array.from({ length: COUNT - 1 }, (_, index) =>
    Math.round(2 ** 31 * Number(tenDecimals(COUNT - index))),
  )
  expect(found).toEqual(expected)
})
