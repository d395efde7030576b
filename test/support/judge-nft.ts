import { execFileSync } from 'node:child_process'
import type { JudgedRules } from './judge-evaluator.ts'

/* Random rules of nft that kprobe does not write: constants, intervals, redirects, resets and untracked packets. */

type Random = (bound: number) => number

const CONDITIONS = [
  'ip daddr { 198.51.100.2-198.51.100.5, 198.51.101.0/29 }',
  'ip daddr @nets',
  'ip daddr . udp dport @pairs',
  'udp dport != { 53, 400-500 }',
  'ip daddr >= 198.51.101.0',
  'ct state untracked',
  'ct state new',
  'meta mark 7',
  'ct mark 9',
  'ip protocol { tcp, udp }',
] as const
const ENDS = [
  'counter',
  'counter drop',
  'counter reject with icmp type host-unreachable',
  'counter meta mark set 7',
  'counter ct mark set 9',
] as const

export const OF_NFT: JudgedRules = {
  ownership: { ownName: 't' },
  async put(random) {
    execFileSync('conntrack', ['-F'], { stdio: 'ignore' })
    execFileSync('nft', ['-f', '-'], { input: randomRules(random) })
  },
}

function randomRules(random: Random): string {
  const pick = (texts: readonly string[]) => texts[random(texts.length)]
  const rules = (chain: string, ends: readonly string[], more: number) =>
    Array.from(
      { length: 1 + random(more) },
      () => `add rule ip t ${chain} meta l4proto udp ${pick(CONDITIONS)} ${pick(ends)}`,
    )
  const notrack = `add rule ip t early meta l4proto udp ${pick(CONDITIONS.slice(0, 5))} counter notrack`
  // Without a rule about connections the kernel tracks none, and the nat chain sees no packet.
  const nat = [
    'counter drop',
    `counter redirect to :${9000 + random(9)}`,
    'counter dnat to 198.51.101.7:5353',
    'counter dnat to 198.51.101.6:53',
  ]
  return [
    'table ip t {',
    'set nets { type ipv4_addr; flags interval; elements = { 198.51.100.0/30, 198.51.100.4, 198.51.101.4/30 }; }',
    'set pairs { type ipv4_addr . inet_service; flags interval; elements = { 198.51.100.0/29 . 50-100, 198.51.101.0/30 . 443 }; }',
    'chain early { type filter hook output priority -300; }',
    'chain nat { type nat hook output priority -100; }',
    'chain older { type filter hook output priority 0; }',
    'chain newer { type filter hook output priority 0; }',
    'chain last { type filter hook output priority 50; }',
    '}',
    // The kernel's own answers, which are ICMP, meet no rule.
    ...(random(2) === 0 ? [notrack] : []),
    `add rule ip t nat meta l4proto udp ${pick(CONDITIONS.slice(0, 5))} ${pick(nat)}`,
    ...rules('older', ENDS, 4),
    ...rules('newer', ENDS, 4),
    'add rule ip t last udp dport 5353 counter',
    'add rule ip t last meta l4proto udp fib daddr type local counter',
    '',
  ].join('\n')
}
