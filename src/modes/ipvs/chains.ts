import { cidrOf, hostCidr } from '../../base/cidr.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import { XT_ADDRTYPE_LOCAL, XT_CONNTRACK_STATE_DNAT } from '../../kernel/xt/constants.ts'
import type { XtMatch, XtRule, XtTarget } from '../../kernel/xt/rule.ts'
import type { XtChain, XtJump, XtTableName } from '../../kernel/xt/scope.ts'
import type { Detector } from '../common/detector.ts'
import { LAYOUTS } from '../common/family.ts'
import {
  KUBE_IPVS_FILTER,
  KUBE_IPVS_OUT_FILTER,
  KUBE_LOAD_BALANCER,
  KUBE_NODE_PORT,
  KUBE_SOURCE_RANGES_FIREWALL,
} from '../xt-common/ipvs-chain-names.ts'
import { KUBE_CHAINS } from '../xt-common/layout.ts'
import {
  ACCEPT,
  addressOf,
  comment,
  DROP,
  fromPods,
  jump,
  KNOWN,
  NEW,
  NO_MATCHES,
  PROTOCOLS,
  REJECT,
  TO_LOCAL,
} from '../xt-common/rules-parts.ts'
import { NODE_PORT_SETS } from './layout.ts'
import { commentOfSet, type SetStem, setName } from './set-names.ts'

/* Chains of kube-proxy's IPVS mode (1.36). People and tools expect their names, order and comments. */

/** The inputs of the chains of one family. */
export interface ChainInputs {
  readonly family: NftFamily
  readonly masqueradeMark: number
  readonly masqueradeAll: boolean
  readonly detector: Detector | undefined
}

/**
 * Makes all chains of one family. No rule is about a single Service: the ipsets hold the addresses of
 * Services. Rules about empty sets exist as well (kube-proxy omits them), so that the chains stay when
 * Services come and go.
 */
export function chainsOf(inputs: ChainInputs): readonly XtChain[] {
  const { family } = inputs
  const chain = (table: XtTableName, name: string, rules: readonly XtRule[]): XtChain => {
    return { family, table, name, rules, last: [] }
  }
  const portal = new Words(inputs)
  return [
    chain('nat', KUBE_CHAINS.services, servicesRules(inputs, portal)),
    chain('nat', KUBE_CHAINS.postrouting, postroutingRules(inputs, portal)),
    chain('nat', KUBE_NODE_PORT, nodePortRules(portal)),
    chain('nat', KUBE_LOAD_BALANCER, [
      portal.named('LOAD-BALANCER-LOCAL', BOTH, RETURN),
      { matches: NO_MATCHES, target: MASQUERADE_LATER },
    ]),
    chain('nat', KUBE_CHAINS.markMasq, [markRule(inputs)]),
    chain('filter', KUBE_CHAINS.forward, forwardRules(inputs)),
    chain('filter', KUBE_NODE_PORT, [portal.named('HEALTH-CHECK-NODE-PORT', PORT, ACCEPT)]),
    chain('filter', KUBE_CHAINS.proxyFirewall, [
      portal.named('LOAD-BALANCER-FW', BOTH, jump(KUBE_SOURCE_RANGES_FIREWALL)),
    ]),
    chain('filter', KUBE_SOURCE_RANGES_FIREWALL, [
      portal.named('LOAD-BALANCER-SOURCE-CIDR', FROM, RETURN),
      portal.named('LOAD-BALANCER-SOURCE-IP', FROM, RETURN),
      { matches: NO_MATCHES, target: DROP },
    ]),
    chain('filter', KUBE_IPVS_FILTER, filterRules(inputs, portal)),
    // kube-proxy has a rule here for each address that the node may not use. Our own table drops these
    // packets earlier.
    chain('filter', KUBE_IPVS_OUT_FILTER, []),
  ]
}

type Way = readonly [table: XtTableName, from: string, to: string, comment: string]

const WAYS: readonly Way[] = [
  ['nat', 'OUTPUT', KUBE_CHAINS.services, 'kubernetes service portals'],
  ['nat', 'PREROUTING', KUBE_CHAINS.services, 'kubernetes service portals'],
  ['nat', 'POSTROUTING', KUBE_CHAINS.postrouting, 'kubernetes postrouting rules'],
  ['filter', 'FORWARD', KUBE_CHAINS.forward, 'kubernetes forwarding rules'],
  ['filter', 'INPUT', KUBE_NODE_PORT, 'kubernetes health check rules'],
  ['filter', 'INPUT', KUBE_CHAINS.proxyFirewall, 'kube-proxy firewall rules'],
  ['filter', 'FORWARD', KUBE_CHAINS.proxyFirewall, 'kube-proxy firewall rules'],
  ['filter', 'INPUT', KUBE_IPVS_FILTER, 'kubernetes ipvs access filter'],
  ['filter', 'OUTPUT', KUBE_IPVS_OUT_FILTER, 'kubernetes ipvs access filter'],
]

/** Gives the jumps in the order in which they are inserted: of several in one chain, the last one ends up first. */
export function jumpsOf(family: NftFamily): readonly XtJump[] {
  return WAYS.map(([table, chain, to, text]): XtJump => {
    const rule: XtRule = { matches: [comment(text)], target: jump(to) }
    return { family, table, chain, rule, removed: true }
  })
}

/** The only rule that kube-proxy does not have: it marks these chains as kprobe's. */
export const SENT_ON: XtRule = {
  matches: [
    comment('sent on to another virtual server'),
    { kind: 'conntrack', states: XT_CONNTRACK_STATE_DNAT, inverted: false },
  ],
  target: { kind: 'RETURN' },
}

const RETURN: XtTarget = { kind: 'RETURN' }
const MASQUERADE_LATER = jump(KUBE_CHAINS.markMasq)

const BOTH = ['dst', 'dst'] as const
const PORT = ['dst'] as const
const FROM = ['dst', 'dst', 'src'] as const

type Dimensions = readonly ('src' | 'dst')[]

/** Makes rules that match with the sets of one family. */
class Words {
  readonly #family: NftFamily

  constructor({ family }: ChainInputs) {
    this.#family = family
  }

  inSet(stem: SetStem, dimensions: Dimensions): XtMatch {
    const set = setName(stem, LAYOUTS[this.#family].model)
    return { kind: 'set', set, dimensions, inverted: false }
  }

  /** Makes a match with a set, with kube-proxy's comment for the set. */
  matches(stem: SetStem, dimensions: Dimensions): readonly XtMatch[] {
    return [comment(commentOfSet(stem)), this.inSet(stem, dimensions)]
  }

  named(stem: SetStem, dimensions: Dimensions, target: XtTarget): XtRule {
    return { matches: this.matches(stem, dimensions), target }
  }

  plain(stem: SetStem, dimensions: Dimensions, target: XtTarget): XtRule {
    return { matches: [this.inSet(stem, dimensions)], target }
  }
}

const LOOPBACK: Readonly<Record<NftFamily, ReturnType<typeof addressOf>>> = {
  ip: addressOf(cidrOf('\x7f\0\0\0', 8)),
  ip6: addressOf(hostCidr(`${'\0'.repeat(15)}\x01`)),
}

function servicesRules(inputs: ChainInputs, portal: Words): readonly XtRule[] {
  return [
    { source: LOOPBACK[inputs.family], matches: NO_MATCHES, target: RETURN },
    portal.named('LOAD-BALANCER', BOTH, jump(KUBE_LOAD_BALANCER)),
    clusterIpRule(inputs, portal),
    portal.named('EXTERNAL-IP', BOTH, MASQUERADE_LATER),
    ...externalRules(portal.matches('EXTERNAL-IP', BOTH)),
    ...externalRules(portal.matches('EXTERNAL-IP-LOCAL', BOTH)),
    { matches: [TO_LOCAL], target: jump(KUBE_NODE_PORT) },
    portal.plain('CLUSTER-IP', BOTH, ACCEPT),
    portal.plain('LOAD-BALANCER', BOTH, ACCEPT),
  ]
}

/** Makes the masquerade rule of ClusterIPs. The node's own packets have the ClusterIP itself as their source. */
function clusterIpRule({ masqueradeAll, detector }: ChainInputs, portal: Words): XtRule {
  if (masqueradeAll) return portal.named('CLUSTER-IP', BOTH, MASQUERADE_LATER)
  if (detector === undefined) return portal.named('CLUSTER-IP', ['src', 'dst'], MASQUERADE_LATER)
  return { ...fromPods(detector, true), ...portal.named('CLUSTER-IP', BOTH, MASQUERADE_LATER) }
}

const NOT_BRIDGED: XtMatch = { kind: 'physdev-is-in', inverted: true }
const NOT_FROM_LOCAL: XtMatch = {
  kind: 'addrtype',
  sourceTypes: XT_ADDRTYPE_LOCAL,
  destinationTypes: 0,
  sourceInverted: true,
}

function externalRules(matches: readonly XtMatch[]): readonly XtRule[] {
  return [
    { matches: [...matches, NOT_BRIDGED, NOT_FROM_LOCAL], target: ACCEPT },
    { matches: [...matches, TO_LOCAL], target: ACCEPT },
  ]
}

function nodePortRules(portal: Words): readonly XtRule[] {
  return (['TCP', 'UDP', 'SCTP'] as const).flatMap(protocol => {
    const { all, local } = NODE_PORT_SETS[protocol]
    const dimensions = protocol === 'SCTP' ? BOTH : PORT
    return [
      { protocol: PROTOCOLS[protocol], ...portal.named(local, dimensions, RETURN) },
      { protocol: PROTOCOLS[protocol], ...portal.named(all, dimensions, MASQUERADE_LATER) },
    ]
  })
}

function postroutingRules({ masqueradeMark: mark }: ChainInputs, portal: Words): readonly XtRule[] {
  return [
    portal.named('LOOP-BACK', FROM, { kind: 'MASQUERADE', randomFully: false }),
    { matches: [{ kind: 'mark', mark, mask: mark, inverted: true }], target: RETURN },
    // A packet that passes these chains a second time is not masqueraded again.
    { matches: NO_MATCHES, target: { kind: 'MARK', value: mark, mask: 0 } },
    {
      matches: [comment('kubernetes service traffic requiring SNAT')],
      target: { kind: 'MASQUERADE', randomFully: true },
    },
  ]
}

function markRule({ masqueradeMark: mark }: ChainInputs): XtRule {
  return { matches: NO_MATCHES, target: { kind: 'MARK', value: mark, mask: mark } }
}

function forwardRules({ masqueradeMark: mark }: ChainInputs): readonly XtRule[] {
  const marked: XtMatch = { kind: 'mark', mark, mask: mark, inverted: false }
  return [
    { matches: [comment('kubernetes forwarding rules'), marked], target: ACCEPT },
    { matches: [comment('kubernetes forwarding conntrack rule'), KNOWN], target: ACCEPT },
  ]
}

/** Makes the rules that hide the node's own ports behind addresses of Services: k/k#72236. */
function filterRules({ family }: ChainInputs, portal: Words): readonly XtRule[] {
  return [
    portal.plain('LOAD-BALANCER', BOTH, RETURN),
    portal.plain('CLUSTER-IP', BOTH, RETURN),
    portal.plain('EXTERNAL-IP', BOTH, RETURN),
    portal.plain('EXTERNAL-IP-LOCAL', BOTH, RETURN),
    portal.plain('HEALTH-CHECK-NODE-PORT', PORT, RETURN),
    // Private virtual servers are in no set, so packets reach them only by a redirect.
    SENT_ON,
    { matches: [NEW, portal.inSet('IPVS-IPS', PORT)], target: REJECT[family] },
  ]
}
