import { isCompiled } from './compiled-rule.ts'
import { NF_DROP } from './constants.ts'
import { readCompiled } from './decode.ts'
import { wordsOf } from './describe.ts'
import { addsRule, isOnElements, type Operation } from './operation.ts'
import { formatElement, formatElementKey } from './print-data.ts'
import { formatRule } from './print-rule.ts'
import type { ChainHook, Element, NftSet } from './state.ts'

export interface DescribeOptions {
  /** Maximum number of elements to print per operation; the rest is counted. */
  readonly elements?: number
  /** Sets that the rules read, by name. */
  readonly sets?: ReadonlyMap<string, NftSet>
}

/**
 * Formats an operation as one line in nft's words: `add element ip kube-proxy frontends { 10.96.0.10 . tcp . 53 :
 * 8000:2010 }`.
 */
export function describeOperation(operation: Operation, options: DescribeOptions = {}): string {
  const words = wordsOf(operation)
  const verb = operation.verb === 'add-set' ? `add ${setKind(operation.set)}` : words.operation
  return `${verb} ${words.object}${detailOf(operation, options)}`
}

function detailOf(operation: Operation, options: DescribeOptions): string {
  const { family, verb } = operation
  if (verb === 'add-chain') {
    const { hook } = operation.chain
    return hook === undefined ? '' : ` { ${formatHook(hook)} }`
  }
  if (addsRule(operation)) {
    const rule = isCompiled(operation.rule) ? readCompiled(operation.rule) : operation.rule
    return ` ${formatRule(rule, { family, sets: options.sets ?? new Map() })}`
  }
  if (!isOnElements(operation)) return ''
  const { set, elements } = operation
  const isAddition = verb === 'add-elements'
  const format = (each: Element) => (isAddition ? formatElement(set, each) : formatElementKey(set, each.key))
  return ` ${list(elements, options, format)}`
}

export function setKind(set: NftSet): 'map' | 'set' {
  return set.dataType === undefined ? 'set' : 'map'
}

const ELEMENTS_SHOWN = 4

function list(
  elements: readonly Element[],
  options: DescribeOptions,
  format: (element: Element) => string,
): string {
  const texts = elements.slice(0, options.elements ?? ELEMENTS_SHOWN).map(format)
  const more = elements.length - texts.length
  if (more > 0) texts.push(`and ${more} more`)
  return `{ ${texts.join(', ')} }`
}

const HOOKS: readonly string[] = ['prerouting', 'input', 'forward', 'output', 'postrouting']

/** nft's names for common priorities, with the only hook of a name where it has just one. */
const PRIORITIES: readonly (readonly [priority: number, name: string, only?: string])[] = [
  [-300, 'raw'],
  [-150, 'mangle'],
  [-100, 'dstnat', 'prerouting'],
  [0, 'filter'],
  [50, 'security'],
  [100, 'srcnat', 'postrouting'],
]
/** Within this distance from a named priority, nft prints the name and the distance. */
const DISTANCE_MAX = 10

export function hookName(hooknum: number): string {
  return HOOKS[hooknum] ?? `hook ${hooknum}`
}

/** Formats a hook: `type nat hook prerouting priority dstnat; policy accept;`. */
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
