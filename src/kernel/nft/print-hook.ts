import { NF_DROP } from './constants.ts'
import type { ChainHook } from './state.ts'

const HOOKS: readonly string[] = ['prerouting', 'input', 'forward', 'output', 'postrouting']

/** nft's names for the usual priorities; two of them have their name at some hooks only. */
const PRIORITIES: ReadonlyMap<number, string> = new Map([
  [-300, 'raw'],
  [-150, 'mangle'],
  [0, 'filter'],
  [50, 'security'],
])
const DSTNAT_PREROUTING = 'dstnat'
const SRCNAT_POSTROUTING = 'srcnat'

export function hookName(hooknum: number): string {
  return HOOKS[hooknum] ?? `hook ${hooknum}`
}

/** `type nat hook prerouting priority dstnat; policy accept;`. */
export function formatHook({ type, hooknum, priority, policy }: ChainHook): string {
  const hook = hookName(hooknum)
  const fate = policy === NF_DROP ? 'drop' : 'accept'
  return `type ${type} hook ${hook} priority ${priorityName(priority, hook)}; policy ${fate};`
}

function priorityName(priority: number, hook: string): string {
  if (priority === -100 && hook === 'prerouting') return DSTNAT_PREROUTING
  if (priority === 100 && hook === 'postrouting') return SRCNAT_POSTROUTING
  return PRIORITIES.get(priority) ?? String(priority)
}
