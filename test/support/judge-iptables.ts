import { execFileSync } from 'node:child_process'
import { formatIp } from '../../src/base/ip.ts'
import type { JudgedRules } from './judge-evaluator.ts'
import { anyDestination, OWN_ADDRESSES, PORTS } from './proof-rulesets.ts'

/* Random rules that iptables-nft writes, so that neither our encoder nor our decoders are trusted. */

type Random = (bound: number) => number

const CHAINS = ['OUTPUT', 'one', 'two', 'three', 'four'] as const
const RULES_MAX = 6

/** Every rule is ours: an expression that is beyond the evaluator fails. */
const OWNERSHIP = { ownName: 'filter', owns: (table: string) => table === 'raw' } as const

export const OF_IPTABLES: JudgedRules = {
  ownership: OWNERSHIP,
  async put(random) {
    execFileSync('iptables-nft-restore', { input: randomRules(random) })
  },
}

function randomRules(random: Random): string {
  const rules = CHAINS.flatMap((chain, index) =>
    Array.from(
      { length: 2 + random(RULES_MAX) },
      () => `-A ${chain} ${randomRule(random, CHAINS.slice(index + 1))}`,
    ),
  )
  const chains = CHAINS.map(chain => `:${chain} ${chain === 'OUTPUT' ? 'ACCEPT' : '-'} [0:0]`)
  // A connection keeps its mark from packet to packet, and each is to be the first.
  const first = '-A OUTPUT -j CONNMARK --set-xmark 0x0/0xffffffff'
  return `*filter\n${[...chains, first, ...rules].join('\n')}\nCOMMIT\n${earlyRules(random)}`
}

/** Rules before connection tracking, which ask for what it says of packets. */
function earlyRules(random: Random): string {
  const targets = ['', '-j ACCEPT', '-j CONNMARK --set-xmark 0x5/0x7', '-j MARK --or-mark 0x2'] as const
  const rules = Array.from(
    { length: 2 + random(RULES_MAX) },
    () => `-A OUTPUT ${pick(EARLY_CONDITIONS, random)(random)} ${pick(targets, random)}`,
  )
  return `*raw\n:OUTPUT ACCEPT [0:0]\n${rules.join('\n')}\nCOMMIT\n`
}

function randomRule(random: Random, further: readonly string[]): string {
  const conditions = Array.from({ length: random(3) }, () => pick(CONDITIONS, random))
  const once = [...new Set(conditions)].map(condition => condition(random))
  // Ports belong to a protocol.
  const protocol = once.some(text => /port|sport/.test(text)) ? ['-p udp'] : []
  return [...protocol, ...once, randomTarget(random, further)].join(' ')
}

function randomTarget(random: Random, further: readonly string[]): string {
  const jumps = further.flatMap(chain => [`-j ${chain}`, `-j ${chain}`, `-g ${chain}`])
  const targets = [
    '',
    '-j ACCEPT',
    '-j DROP',
    '-j RETURN',
    `-j MARK --set-xmark 0x${random(8)}/0x${random(8)}`,
    `-j MARK --or-mark 0x${random(8)}`,
    `-j CONNMARK --set-xmark 0x${random(8)}/0x${random(8)}`,
    '-j CONNMARK --save-mark --nfmask 0x5 --ctmask 0x7',
    '-j CONNMARK --restore-mark --nfmask 0x7 --ctmask 0x6',
    '-j NFLOG --nflog-group 77',
    ...jumps,
    ...jumps,
  ]
  return pick(targets, random)
}

function pick<T>(values: readonly T[], random: Random): T {
  const value = values[random(values.length)]
  if (value === undefined) throw new Error('nothing to pick from')
  return value
}

const not = (random: Random) => (random(2) === 0 ? '' : '! ')
const port = (random: Random) => pick(PORTS, random)
const anyAddress = (random: Random) => formatIp(pick([anyDestination(random), ...OWN_ADDRESSES], random))

function range(random: Random): string {
  const [a, b] = [port(random), port(random)]
  return `${Math.min(a, b)}:${Math.max(a, b)}`
}

type Condition = (random: Random) => string

const CONDITIONS: readonly Condition[] = [
  random => `${not(random)}-s ${anyAddress(random)}/${pick([8, 16, 17, 23, 24, 29, 32], random)}`,
  random => `${not(random)}-d ${anyAddress(random)}/${pick([8, 16, 17, 23, 24, 29, 32], random)}`,
  random => `-m udp ${not(random)}--dport ${port(random)}`,
  random => `-m udp ${not(random)}--dport ${range(random)}`,
  random => `-m multiport ${not(random)}--dports ${port(random)},${pick(['60:100', '400:9000'], random)}`,
  random => `-m multiport ${not(random)}--ports ${port(random)},${pick(['1000:65535', '2:70'], random)}`,
  random => `-m addrtype ${not(random)}--dst-type ${pick(['LOCAL', 'UNICAST', 'LOCAL,UNICAST'], random)}`,
  random => `-m addrtype ${not(random)}--src-type LOCAL`,
  random => `-m mark ${not(random)}--mark 0x${random(8)}/0x${pick([1, 3, 7], random)}`,
  random => `-m connmark ${not(random)}--mark 0x${random(8)}/0x${pick([1, 3, 7], random)}`,
  random =>
    `-m conntrack ${not(random)}--ctstate ${pick(['NEW', 'RELATED,ESTABLISHED', 'NEW,DNAT', 'DNAT'], random)}`,
  random => `-m statistic --mode random ${not(random)}--probability ${pick(['0', '1'], random)}`,
  random => `-m comment --comment "number ${random(9)}"`,
]

const EARLY_CONDITIONS: readonly Condition[] = [
  random =>
    `-m conntrack ${not(random)}--ctstate ${pick(['INVALID', 'NEW', 'NEW,DNAT', 'INVALID,NEW'], random)}`,
  random => `-m connmark ${not(random)}--mark 0x${random(2)}/0x7`,
  random => `-m mark ${not(random)}--mark 0x${random(4)}/0x3`,
  random => `-m addrtype ${not(random)}--dst-type LOCAL`,
]
