import { cidrOf } from '../../base/cidr.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import type { XtMatch } from '../../kernel/xt/rule.ts'
import type { XtJump, XtTableName } from '../../kernel/xt/scope.ts'
import { NFT_FAMILIES } from '../common/family.ts'
import {
  KUBE_EXTERNAL_SERVICES,
  KUBE_FIREWALL,
  KUBE_FORWARD,
  KUBE_NODEPORTS,
  KUBE_POSTROUTING,
  KUBE_PROXY_FIREWALL,
  KUBE_SERVICES,
} from './layout.ts'
import { addressOf, comment, DROP, jump, NEITHER_KNOWN_NOR_TRANSLATED, NEW } from './rules-parts.ts'
import type { Statics } from './statics.ts'

type Way = readonly [table: XtTableName, from: string, to: string, matches: readonly XtMatch[]]

const EXTERNAL: readonly XtMatch[] = [NEW, comment('kubernetes externally-visible service portals')]
const HEALTH: readonly XtMatch[] = [comment('kubernetes health check service ports')]
const PORTALS = comment('kubernetes service portals')
const NEW_PORTALS: readonly XtMatch[] = [NEW, PORTALS]
const FIREWALL: readonly XtMatch[] = [NEW, comment('kubernetes load balancer firewall')]

const WAYS: readonly Way[] = [
  ['filter', 'INPUT', KUBE_EXTERNAL_SERVICES, EXTERNAL],
  ['filter', 'FORWARD', KUBE_EXTERNAL_SERVICES, EXTERNAL],
  ['filter', 'INPUT', KUBE_NODEPORTS, HEALTH],
  ['filter', 'FORWARD', KUBE_SERVICES, NEW_PORTALS],
  ['filter', 'OUTPUT', KUBE_SERVICES, NEW_PORTALS],
  ['filter', 'FORWARD', KUBE_FORWARD, [comment('kubernetes forwarding rules')]],
  ['filter', 'INPUT', KUBE_PROXY_FIREWALL, FIREWALL],
  ['filter', 'OUTPUT', KUBE_PROXY_FIREWALL, FIREWALL],
  ['filter', 'FORWARD', KUBE_PROXY_FIREWALL, FIREWALL],
  ['nat', 'OUTPUT', KUBE_SERVICES, [PORTALS]],
  ['nat', 'PREROUTING', KUBE_SERVICES, [PORTALS]],
  ['nat', 'POSTROUTING', KUBE_POSTROUTING, [comment('kubernetes postrouting rules')]],
]

/** Kubelet puts the same ones there, and nobody takes them away. */
const KUBELET_WAYS: readonly Way[] = [
  ['filter', 'INPUT', KUBE_FIREWALL, []],
  ['filter', 'OUTPUT', KUBE_FIREWALL, []],
]

/**
 * What stands in chains that are not ours, in the order in which it is put first: of several in one chain, the last one
 * comes to stand first. Jumps to KUBE-FIREWALL need that chain even where nothing is in it.
 */
export function jumpsOf(statics: Statics): readonly XtJump[] {
  return NFT_FAMILIES.flatMap(family => [
    ...WAYS.map(way => jumpOf(family, way, true)),
    ...KUBELET_WAYS.map(way => jumpOf(family, way, false)),
    ...(statics.families[family].loopback ? [martianRule(family)] : []),
  ])
}

function jumpOf(family: NftFamily, [table, chain, to, matches]: Way, removed: boolean): XtJump {
  return { family, table, chain, rule: { matches, target: jump(to) }, removed }
}

const LOOPBACK = cidrOf('\x7f\0\0\0', 8)

/**
 * With route_localnet, neighbours could reach what listens on loopback addresses only (CVE-2020-8558). Kubelet's copy of
 * this rule is the same one.
 */
function martianRule(family: NftFamily): XtJump {
  return {
    family,
    table: 'filter',
    chain: KUBE_FIREWALL,
    rule: {
      source: addressOf(LOOPBACK, true),
      destination: addressOf(LOOPBACK),
      matches: [comment('block incoming localnet connections'), NEITHER_KNOWN_NOR_TRANSLATED],
      target: DROP,
    },
    removed: false,
  }
}
