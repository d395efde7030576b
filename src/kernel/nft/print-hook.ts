import { NF_DROP } from './constants.ts'
import type { ChainHook } from './state.ts'

const HOOKS: readonly string[] = ['prerouting', 'input', 'forward', 'output', 'postrouting']

/** nft's names for the usual priorities, and the only hook at which one has its name. */
const PRIORITIES: readonly (readonly [priority: number, name: string, only?: string])[] = [
  [-300, 'raw'],
  [-150, 'mangle'],
  [-100, 'dstnat', 'prerouting'],
  [0, 'filter'],
  [50, 'security'],
  [100, 'srcnat', 'postrouting'],
]
/** So far from one of them, nft prints the distance. */
const DISTANCE_MAX = 10

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
  for (const [usual, name, only = hook] of PRIORITIES) {
    const distance = priority - usual
    if (only !== hook || Math.abs(distance) > DISTANCE_MAX) continue
    if (distance === 0) return name
    return `${name} ${distance < 0 ? '-' : '+'} ${Math.abs(distance)}`
  }
  return String(priority)
}
