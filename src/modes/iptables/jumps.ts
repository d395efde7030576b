import type { NftFamily } from '../../kernel/nft/state.ts'
import type { XtMatch } from '../../kernel/xt/rule.ts'
import type { XtJump, XtTableName } from '../../kernel/xt/scope.ts'
import { NFT_FAMILIES } from '../common/family.ts'
import type { ChainNames } from '../xt-common/layout.ts'
import { comment, jump, MARTIAN, NEW } from '../xt-common/rules-parts.ts'
import type { Statics } from './statics.ts'

interface Way {
  readonly table: XtTableName
  readonly from: string
  readonly to: string
  readonly matches: readonly XtMatch[]
}

/** Returns the jumps to our chains. Their comments, besides the hash, distinguish the names of proxies. */
function waysOf(names: ChainNames): readonly Way[] {
  const say = (text: string) => comment(names.proxy === undefined ? text : `${text} of ${names.proxy}`)
  const way = (table: XtTableName, from: string, to: string, ...matches: readonly XtMatch[]): Way => {
    return { table, from, to, matches }
  }
  const external = [NEW, say('kubernetes externally-visible service portals')]
  const portals = say('kubernetes service portals')
  const firewall = [NEW, say('kubernetes load balancer firewall')]
  return [
    way('filter', 'INPUT', names.externalServices, ...external),
    way('filter', 'FORWARD', names.externalServices, ...external),
    way('filter', 'INPUT', names.nodePorts, say('kubernetes health check service ports')),
    way('filter', 'FORWARD', names.services, NEW, portals),
    way('filter', 'OUTPUT', names.services, NEW, portals),
    way('filter', 'FORWARD', names.forward, say('kubernetes forwarding rules')),
    way('filter', 'INPUT', names.proxyFirewall, ...firewall),
    way('filter', 'OUTPUT', names.proxyFirewall, ...firewall),
    way('filter', 'FORWARD', names.proxyFirewall, ...firewall),
    way('nat', 'OUTPUT', names.services, portals),
    way('nat', 'PREROUTING', names.services, portals),
    way('nat', 'POSTROUTING', names.postrouting, say('kubernetes postrouting rules')),
  ]
}

/**
 * Returns the jumps to the firewall chain. For the unnamed proxy, kubelet writes the same jumps with the same comments,
 * and no program removes them.
 */
function martianWays({ proxy, firewall }: ChainNames): readonly Way[] {
  const matches = proxy === undefined ? [] : [comment(`kubernetes martian packets of ${proxy}`)]
  return ['INPUT', 'OUTPUT'].map(from => ({ table: 'filter', from, to: firewall, matches }))
}

/**
 * Returns the jumps to our chains, in the order in which they are inserted: of several in one chain, the last one ends
 * up first. Jumps to KUBE-FIREWALL need that chain even if it is empty.
 */
export function jumpsTo(names: ChainNames): readonly XtJump[] {
  const isOurs = names.proxy !== undefined
  return NFT_FAMILIES.flatMap(family => [
    ...waysOf(names).map(way => jumpOf(family, way, true)),
    ...martianWays(names).map(way => jumpOf(family, way, isOurs)),
  ])
}

/** Returns all rules of ours in chains of other programs. */
export function jumpsOf({ options: { names }, families }: Statics): readonly XtJump[] {
  const guarded = NFT_FAMILIES.filter(family => families[family].loopback && names.proxy === undefined)
  return [...jumpsTo(names), ...guarded.map(family => martianRule(family, names))]
}

function jumpOf(family: NftFamily, { table, from, to, matches }: Way, removed: boolean): XtJump {
  return { family, table, chain: from, rule: { matches, target: jump(to) }, removed }
}

function martianRule(family: NftFamily, { firewall }: ChainNames): XtJump {
  return { family, table: 'filter', chain: firewall, rule: MARTIAN, removed: false }
}
