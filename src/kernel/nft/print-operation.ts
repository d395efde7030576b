import { unreachable } from '../../base/assert.ts'
import { isCompiled } from './compiled-rule.ts'
import { NF_DROP } from './constants.ts'
import { readCompiled } from './decode.ts'
import type { Operation } from './operation.ts'
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
  const { family, table } = operation
  const where = `${family} ${table}`
  switch (operation.verb) {
    case 'add-table':
      return `add table ${where}`
    case 'delete-table':
      return `delete table ${where}`
    case 'add-chain': {
      const { name, hook } = operation.chain
      return `add chain ${where} ${name}${hook === undefined ? '' : ` { ${formatHook(hook)} }`}`
    }
    case 'flush-chain':
      return `flush chain ${where} ${operation.chain}`
    case 'delete-chain':
      return `delete chain ${where} ${operation.chain}`
    case 'add-rule':
    case 'insert-rule': {
      const rule = isCompiled(operation.rule) ? readCompiled(operation.rule) : operation.rule
      const text = formatRule(rule, { family, sets: options.sets ?? new Map() })
      return `${operation.verb === 'add-rule' ? 'add' : 'insert'} rule ${where} ${operation.chain} ${text}`
    }
    case 'delete-rule':
      return `delete rule ${where} ${operation.chain} handle ${operation.handle}`
    case 'add-set':
      return `add ${setKind(operation.set)} ${where} ${operation.set.name}`
    case 'delete-set':
      return `delete set ${where} ${operation.set}`
    case 'add-elements':
      return `add element ${where} ${operation.set.name} ${list(operation.elements, options, e => formatElement(operation.set, e))}`
    case 'delete-elements':
      return `delete element ${where} ${operation.set.name} ${list(operation.elements, options, e => formatElementKey(operation.set, e.key))}`
    default:
      return unreachable(operation)
  }
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
