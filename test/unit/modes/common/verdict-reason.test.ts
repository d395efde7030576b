import { expect, it } from 'vitest'
import { reasonText, verdictReason } from '../../../../src/modes/common/logs.ts'

it.each([
  ['refuse', 'counter reject', true, 'no-endpoints'],
  ['refuse', 'counter reject', false, 'no-such-port'],
  ['firewall-check', 'counter drop', true, 'source-ranges'],
  ['late-output', 'counter drop', false, 'no-such-cluster-ip'],
  ['localhost-nodeports', 'counter reject', true, 'no-relay'],
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
] as const)('%s: %s', (chain, text, isServed, reason) => {
  expect(verdictReason({ chain, text, isServed })).toBe(reason)
  expect(reasonText(reason)).not.toBe('')
})
