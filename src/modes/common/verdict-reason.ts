import {
  CHAIN_FIREWALL,
  CHAIN_LATE_OUTPUT,
  CHAIN_LATE_PREROUTING,
  CHAIN_LOCALHOST,
  CHAIN_REJECT,
} from './rules.ts'

/** Why a rule of kprobe rejects or drops a packet; `unknown` where the rule does not say it. */
export type VerdictReason =
  | 'no-endpoints'
  | 'no-local-endpoints'
  | 'source-ranges'
  | 'no-such-port'
  | 'no-such-cluster-ip'
  | 'no-relay'
  | 'unknown'

interface RefusingRule {
  /** The name of the chain, without its table. */
  readonly chain: string
  /** The rule as it is listed, with its comment. */
  readonly text: string
  /** Whether a Service has the address and port. */
  readonly isServed: boolean
}

/** Reads the reason from the rule: its chain in our own tables, its comment in the tables of iptables. */
export function verdictReason({ chain, text, isServed }: RefusingRule): VerdictReason {
  if (chain === CHAIN_FIREWALL || isXtFirewall(chain)) return 'source-ranges'
  if (chain === CHAIN_LATE_PREROUTING || chain === CHAIN_LATE_OUTPUT) return 'no-such-cluster-ip'
  if (chain === CHAIN_LOCALHOST) return 'no-relay'
  if (chain === CHAIN_REJECT) return isServed ? 'no-endpoints' : 'no-such-port'
  if (/has no local endpoints/.test(text)) return 'no-local-endpoints'
  if (/has no endpoints/.test(text)) return 'no-endpoints'
  if (/^[A-Z0-9-]+$/.test(chain)) return 'unknown'
  return isServed ? 'no-local-endpoints' : 'unknown'
}

/** Reads the reason from the name that a logged packet has: a chain of our own tables, or in the tables of iptables the reason. */
export function loggedReason(name: string, isServed: boolean): VerdictReason {
  return isReason(name) ? name : verdictReason({ chain: name, text: '', isServed })
}

function isReason(name: string): name is VerdictReason {
  return Object.hasOwn(TEXTS, name)
}

/** Whether the rules of this chain, or for this reason, answer the client; those of others drop in silence. */
export function isRejecting(name: string): boolean {
  return name === CHAIN_REJECT || name === CHAIN_LOCALHOST || name === 'no-endpoints'
}

function isXtFirewall(chain: string): boolean {
  return /-(?:PROXY|SOURCE-RANGES)-FIREWALL(?:-IP(?:-[0-9A-F])?)?$/.test(chain)
}

const TEXTS: Readonly<Record<VerdictReason, string>> = {
  'no-endpoints': 'it has no endpoint that may serve',
  'no-local-endpoints': 'its traffic policy is Local, and no endpoint on this node may serve',
  'source-ranges': 'the client is not in loadBalancerSourceRanges',
  'no-such-port': 'no Service has this port at this address',
  'no-such-cluster-ip': 'no Service has this ClusterIP',
  'no-relay': 'the relay at localhost serves no SCTP',
  unknown: 'a rule of kprobe',
}

export function reasonText(reason: VerdictReason): string {
  return TEXTS[reason]
}
