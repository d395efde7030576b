import { NF_INET_LOCAL_OUT, NF_INET_PRE_ROUTING, NF_IP_PRI_NAT_DST } from '../../kernel/nft/constants.ts'
import type { ChainHook } from '../../kernel/nft/state.ts'
import { natPriorityOf } from '../common/rules.ts'

/** These facts decide where kprobe's chains stand among nat chains. */
interface OwnOrder {
  readonly writesIptables: boolean
  readonly proxy?: string | undefined
  readonly usesIpvs?: boolean
}

/** Says which of two programs decides about a connection: the first nat chain that translates it is the only one. */
export function orderAdvice(
  hook: ChainHook | undefined,
  { writesIptables, proxy, usesIpvs = false }: OwnOrder,
): string {
  if (hook?.hooknum !== NF_INET_PRE_ROUTING && hook?.hooknum !== NF_INET_LOCAL_OUT)
    return 'connections whose source this chain translates first are not masqueraded by kprobe'
  const own = writesIptables ? NF_IP_PRI_NAT_DST : natPriorityOf(proxy)
  if (hook.priority < own || usesIpvs)
    return 'this chain runs before kprobe; connections that it translates never reach a Service'
  return hook.priority === own
    ? 'it has the priority of kprobe, and the newer chain runs first; connections that it translates first never reach a Service'
    : 'this chain runs after kprobe; it translates only connections to no Service'
}
