import { isLoopback } from '../../base/ip.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import { encodeUserdata } from '../../kernel/nft/userdata.ts'
import type { XtMatch, XtRule } from '../../kernel/xt/rule.ts'
import type { XtChain, XtJump, XtTableName } from '../../kernel/xt/scope.ts'
import { LOOPBACKS, markOf } from '../common/rules.ts'
import { NFT_FAMILIES } from '../common/tables.ts'
import { type ChainNames, KUBE_PROXY_CANARY } from '../xt-common/layout.ts'
import {
  addressOf,
  comment,
  DROP,
  forwardRules,
  hostAddress,
  INVALID,
  jump,
  MARTIAN,
  markRule,
  masqueradeRules,
  NEW,
  TO_LOCAL,
} from '../xt-common/rules-parts.ts'
import { divideFixed } from './optimize/dispatch.ts'
import { NFACCT_INVALID_DROPPED } from './settings.ts'
import type { Statics } from './state.ts'

/** Makes the chains of both families that exist without Services. Some of them also hold entries of Services. */
export function fixedChains(statics: Statics): readonly XtChain[] {
  const chains = NFT_FAMILIES.flatMap(family => chainsOf(statics, family))
  return statics.options.optimize ? divideFixed(chains, statics) : chains
}

function chainsOf(statics: Statics, family: NftFamily): readonly XtChain[] {
  const chain = (table: XtTableName, name: string, rules: readonly XtRule[] = NONE): XtChain => {
    return { family, table, name, rules, last: NONE }
  }
  const { names, masqueradeBit } = statics.options
  const mark = markOf(masqueradeBit)
  return [
    chain('filter', names.services),
    chain('filter', names.externalServices),
    chain('filter', names.nodePorts),
    chain('filter', names.proxyFirewall),
    chain('filter', names.forward, [...invalidRules(statics), ...forwardRules(mark)]),
    { ...chain('nat', names.services), last: nodePortJumps(statics, family) },
    chain('nat', names.nodePorts),
    chain('nat', names.postrouting, signed(names, masqueradeRules(mark))),
    chain('nat', names.markMasq, [markRule(mark)]),
    ...outerChains(names, statics.families[family].loopback).map(([table, name, rules]) =>
      chain(table, name, rules),
    ),
  ]
}

/**
 * Signs the first rule of KUBE-POSTROUTING, which kube-proxy writes anew in each of its syncs, and then without the
 * signature. A named proxy has chains of its own.
 */
function signed({ proxy }: ChainNames, [first, ...rest]: readonly [XtRule, ...XtRule[]]): readonly XtRule[] {
  return proxy === undefined ? [{ ...first, userdata: SIGNATURE }, ...rest] : [first, ...rest]
}

/** Its type is none of nft's and iptables', which ignore it. */
export const SIGNATURE = encodeUserdata([{ type: 0x6b, value: 'kprobe' }])

/**
 * Makes the outer chains. The unnamed proxy shares the tables with kubelet and kube-proxy. A named proxy relies on
 * neither, so it has a firewall chain of its own.
 */
function outerChains(
  { proxy, firewall }: ChainNames,
  loopback: boolean,
): readonly (readonly [table: XtTableName, name: string, rules: readonly XtRule[]])[] {
  return proxy === undefined
    ? (['filter', 'nat', 'mangle'] as const).map(table => [table, KUBE_PROXY_CANARY, NONE])
    : [['filter', firewall, loopback ? [MARTIAN] : NONE]]
}

const NONE: readonly XtRule[] = []

/** These packets would reset connections of clients whose packets arrive out of window: k/k#74839. */
function invalidRules({ options: { tcpBeLiberal, nfacct } }: Statics): readonly XtRule[] {
  if (tcpBeLiberal) return NONE
  const counted: readonly XtMatch[] = nfacct.invalidDropped
    ? [INVALID, { kind: 'nfacct', name: NFACCT_INVALID_DROPPED }]
    : [INVALID]
  return [{ matches: counted, target: DROP }]
}

const NODE_PORTS_COMMENT = comment(
  'kubernetes service nodeports; NOTE: this must be the last rule in this chain',
)

/** Makes the jumps to the chain of node ports, for packets that no other rule has matched. */
function nodePortJumps(statics: Statics, family: NftFamily): readonly XtRule[] {
  const { nodePorts, loopback } = statics.families[family]
  const target = jump(statics.options.names.nodePorts)
  if (nodePorts.kind === 'only') {
    return nodePorts.ips
      .filter(ip => loopback || !isLoopback(ip))
      .map(ip => ({
        destination: hostAddress(ip),
        matches: [NODE_PORTS_COMMENT],
        target,
      }))
  }
  const except = addressOf(LOOPBACKS[family], true)
  return [
    {
      ...(loopback ? {} : { destination: except }),
      matches: [NODE_PORTS_COMMENT, TO_LOCAL],
      target,
    },
  ]
}

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
