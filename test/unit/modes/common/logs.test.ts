import { describe, expect, it } from 'vitest'
import { NF_DROP } from '../../../../src/kernel/nft/constants.ts'
import { isLogOnly } from '../../../../src/kernel/nft/state.ts'
import {
  isLogging,
  nameOfPrefix,
  reasonText,
  verdictReason,
  withLogs,
} from '../../../../src/modes/common/logs.ts'
import { dropCounted, goTo, matches, rule } from '../../../../src/modes/common/rules.ts'

const drop = rule([matches('cluster-ips'), ...dropCounted], 'why')
const chain = { name: 'firewall-check', hook: undefined, rules: [rule([goTo('services')]), drop] }

describe('withLogs', () => {
  it('gives the chain itself without a group, and where nothing is refused', () => {
    expect(withLogs(chain, { logGroup: 0 })).toBe(chain)
    expect(withLogs(chain, {})).toBe(chain)
    const passing = { ...chain, rules: chain.rules.slice(0, 1) }
    expect(withLogs(passing, { logGroup: 7 })).toBe(passing)
  })

  it('adds a rule that logs what the next one refuses, and decides nothing', () => {
    const { rules } = withLogs(chain, { logGroup: 7 })
    expect(rules.map(isLogging)).toEqual([false, true, false])
    expect(rules.map(isLogOnly)).toEqual([false, true, false])
    expect(rules[2]).toBe(drop)
    expect(rules[1]?.expressions.map(({ kind }) => kind)).toEqual(['lookup', 'limit', 'log'])
    const log = rules[1]?.expressions.at(-1)
    expect(log?.kind === 'log' && nameOfPrefix(log.prefix)).toBe('firewall-check')
  })

  it('leaves alone a rule that changes the packet on its way to the end', () => {
    const verdict = { kind: 'verdict', verdict: { code: NF_DROP, chain: undefined } } as const
    const changing = { ...chain, rules: [rule([{ kind: 'meta-set', key: 3, sreg: 0 }, verdict])] }
    expect(withLogs(changing, { logGroup: 7 })).toBe(changing)
  })
})

it('takes the prefix of another program for no chain', () => {
  expect(nameOfPrefix('[UFW BLOCK] ')).toBeUndefined()
})

it.each([
  ['refuse', 'counter reject', true, 'no-endpoints'],
  ['refuse', 'counter reject', false, 'no-such-port'],
  ['firewall-check', 'counter drop', true, 'source-ranges'],
  ['late-output', 'counter drop', false, 'no-such-cluster-ip'],
  ['localhost-nodeports', 'counter reject', true, 'no-relay'],
  ['no-local-endpoints', 'counter drop', false, 'no-local-endpoints'],
  ['services', 'dispatch', true, 'no-local-endpoints'],
  ['loc-2-0', 'counter drop', true, 'no-local-endpoints'],
  ['KUBE-SERVICES', '--comment "shop/web:http has no endpoints" -j REJECT', true, 'no-endpoints'],
  [
    'KUBE-EXTERNAL-SERVICES',
    '--comment "shop/web:http has no local endpoints" -j DROP',
    true,
    'no-local-endpoints',
  ],
  ['KUBE-PROXY-FIREWALL', '-j DROP', true, 'source-ranges'],
  ['KUBE-PROXY-FIREWALL-IP-0', '-j DROP', true, 'source-ranges'],
  ['KUBE-FORWARD', '-m conntrack --ctstate INVALID -j DROP', true, 'unknown'],
] as const)('gives the reason of a verdict in %s: %s', (chain, text, isServed, reason) => {
  expect(verdictReason({ chain, text, isServed })).toBe(reason)
  expect(reasonText(reason)).not.toBe('')
})
