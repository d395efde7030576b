import * as nft from '../nft/constants.ts'
import type { ChainHook } from '../nft/state.ts'
import type { XtTableName } from './scope.ts'

/** linux/netfilter_ipv4.h, the same in both families. */
const NF_IP_PRI_MANGLE = -150
const NF_IP_PRI_FILTER = 0

const { NF_INET_PRE_ROUTING, NF_INET_LOCAL_IN, NF_INET_FORWARD, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING } =
  nft

function hook(type: ChainHook['type'], hooknum: number, priority: number): ChainHook {
  return { type, hooknum, priority }
}

/** Chains that packets enter without a jump, as iptables-nft creates them: policy ACCEPT. */
const BUILTIN: Readonly<Record<XtTableName, ReadonlyMap<string, ChainHook>>> = {
  filter: new Map([
    ['INPUT', hook('filter', NF_INET_LOCAL_IN, NF_IP_PRI_FILTER)],
    ['FORWARD', hook('filter', NF_INET_FORWARD, NF_IP_PRI_FILTER)],
    ['OUTPUT', hook('filter', NF_INET_LOCAL_OUT, NF_IP_PRI_FILTER)],
  ]),
  nat: new Map([
    ['PREROUTING', hook('nat', NF_INET_PRE_ROUTING, nft.NF_IP_PRI_NAT_DST)],
    ['INPUT', hook('nat', NF_INET_LOCAL_IN, nft.NF_IP_PRI_NAT_SRC)],
    ['OUTPUT', hook('nat', NF_INET_LOCAL_OUT, nft.NF_IP_PRI_NAT_DST)],
    ['POSTROUTING', hook('nat', NF_INET_POST_ROUTING, nft.NF_IP_PRI_NAT_SRC)],
  ]),
  mangle: new Map([
    ['PREROUTING', hook('filter', NF_INET_PRE_ROUTING, NF_IP_PRI_MANGLE)],
    ['INPUT', hook('filter', NF_INET_LOCAL_IN, NF_IP_PRI_MANGLE)],
    ['FORWARD', hook('filter', NF_INET_FORWARD, NF_IP_PRI_MANGLE)],
    ['OUTPUT', hook('route', NF_INET_LOCAL_OUT, NF_IP_PRI_MANGLE)],
    ['POSTROUTING', hook('filter', NF_INET_POST_ROUTING, NF_IP_PRI_MANGLE)],
  ]),
}

/** Returns the hook of a chain; undefined for a chain that packets reach only by jumps. */
export function builtinHook(table: XtTableName, chain: string): ChainHook | undefined {
  return BUILTIN[table].get(chain)
}

/** Returns the built-in chains of one table, in the order of their hooks. */
export function builtinChains(table: XtTableName): readonly string[] {
  return [...BUILTIN[table].keys()]
}
