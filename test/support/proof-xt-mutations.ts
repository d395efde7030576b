import type { XtMatch, XtRule, XtTarget } from '../../src/kernel/xt/rule.ts'
import { builtinHook } from '../../src/kernel/xt/scope.ts'
import type { HeldChain } from './proof-iptables.ts'

/** Changed chains of iptables, and what was changed. */
interface XtMutation {
  readonly what: string
  readonly chains: readonly HeldChain[]
}

type Random = (bound: number) => number

/** Changes one thing in the chains, chosen by `random`; undefined where there is nothing of the chosen kind. */
export function mutateChains(chains: readonly HeldChain[], random: Random): XtMutation | undefined {
  const change = CHANGES[random(CHANGES.length)]
  // Chains of the hooks and empty ones would be half of all.
  const full = chains.filter(({ rules }) => rules.length > 0)
  const chain = full[random(full.length)]
  const changed = chain === undefined ? undefined : change?.(chain, { random, chains })
  if (chain === undefined || changed === undefined) return undefined
  const { family, table, name } = changed.chain ?? chain
  const at = chains.findIndex(its => its.family === family && its.table === table && its.name === name)
  const its = chains[at]
  if (its === undefined) return undefined
  return {
    what: `${family} ${table} ${name}: ${changed.what}`,
    chains: [...chains.slice(0, at), { ...its, rules: changed.rules }, ...chains.slice(at + 1)],
  }
}

interface Around {
  readonly random: Random
  readonly chains: readonly HeldChain[]
}

interface Changed {
  readonly what: string
  readonly rules: readonly XtRule[]
  /** Another chain than the given one. */
  readonly chain?: HeldChain
}

type Change = (chain: HeldChain, around: Around) => Changed | undefined

const removedRule: Change = ({ rules }, { random }) => {
  const at = random(rules.length)
  return { what: `removed rule ${at + 1}`, rules: rules.filter((_, index) => index !== at) }
}

const swappedRules: Change = ({ rules }, { random }) => {
  const at = random(Math.max(1, rules.length - 1))
  const [first, second] = [rules[at], rules[at + 1]]
  if (first === undefined || second === undefined) return undefined
  return {
    what: `swapped rules ${at + 1} and ${at + 2}`,
    rules: [...rules.slice(0, at), second, first, ...rules.slice(at + 2)],
  }
}

function inRule(change: (rule: XtRule, chain: HeldChain, around: Around) => XtRule | undefined): Change {
  return (chain, around) => {
    const at = around.random(chain.rules.length)
    const rule = chain.rules[at]
    const changed = rule === undefined ? undefined : change(rule, chain, around)
    if (changed === undefined) return undefined
    const rules = chain.rules.map((its, index) => (index === at ? changed : its))
    return { what: `changed rule ${at + 1} to ${JSON.stringify(changed)}`, rules }
  }
}

const otherMatch = inRule((rule, _, { random }) => {
  const at = random(rule.matches.length)
  const match = rule.matches[at]
  const other = match === undefined ? undefined : otherThan(match, random)
  if (other === undefined) return undefined
  return { ...rule, matches: rule.matches.map((its, index) => (index === at ? other : its)) }
})

function otherThan(match: XtMatch, random: Random): XtMatch | undefined {
  switch (match.kind) {
    case 'statistic':
      return { ...match, probability: Math.floor(match.probability / (2 + random(3))) }
    case 'recent':
      return match.mode === 'rcheck' ? { ...match, seconds: match.seconds + 1 } : { ...match, name: 'OTHER' }
    case 'conntrack':
    case 'mark':
      return { ...match, inverted: !match.inverted }
    case 'tcp':
    case 'udp':
    case 'sctp': {
      const { destinationPorts: ports } = match
      if (ports === undefined) return undefined
      const port = ports.from ^ (1 << random(16))
      return port === 0 ? undefined : { ...match, destinationPorts: { ...ports, from: port, to: port } }
    }
    case 'addrtype':
      return { ...match, sourceTypes: match.destinationTypes, destinationTypes: match.sourceTypes }
    default:
      return undefined
  }
}

const otherAddress = inRule((rule, _, { random }) => {
  const side = random(2) === 0 ? 'source' : 'destination'
  const address = rule[side]
  if (address === undefined) return undefined
  if (random(3) === 0) return { ...rule, [side]: { ...address, inverted: !address.inverted } }
  const at = random(address.ip.length)
  const octet = String.fromCharCode(address.ip.charCodeAt(at) ^ (1 << random(8)))
  return { ...rule, [side]: { ...address, ip: address.ip.slice(0, at) + octet + address.ip.slice(at + 1) } }
})

const withoutField = inRule(({ source, destination, inInterface, ...rule }, _, { random }) => {
  const fields = { source, destination, inInterface }
  const named = (['source', 'destination', 'inInterface'] as const).filter(name => fields[name] !== undefined)
  const gone = named[random(Math.max(1, named.length))]
  if (gone === undefined) return undefined
  const kept = named.filter(name => name !== gone).map(name => [name, fields[name]])
  return { ...rule, ...Object.fromEntries(kept) }
})

const otherTarget = inRule((rule, chain, { random, chains }) => {
  const { target } = rule
  if (target === undefined) return undefined
  const other = targetInsteadOf(target, chain, { random, chains })
  return other === undefined ? undefined : { ...rule, target: other }
})

function targetInsteadOf(
  target: XtTarget,
  { family, table, name: own }: HeldChain,
  { random, chains }: Around,
): XtTarget | undefined {
  switch (target.kind) {
    case 'jump': {
      // Only to chains that lead nowhere else: the kernel rejects loops.
      const others = chains.filter(
        ({ name, rules, ...its }) =>
          its.family === family &&
          its.table === table &&
          name !== own &&
          builtinHook(table, name) === undefined &&
          rules.every(rule => rule.target?.kind !== 'jump' || rule.target.chain.endsWith('MARK-MASQ')),
      )
      const chain = others[random(Math.max(1, others.length))]?.name
      return chain === undefined || chain === target.chain || !/SEP|MASQ|POSTROUTING/.test(chain)
        ? undefined
        : { kind: 'jump', chain }
    }
    case 'DNAT':
      return random(2) === 0
        ? { ...target, port: target.port ^ (1 << random(15)) || 1 }
        : {
            ...target,
            ip: target.ip.slice(0, -1) + String.fromCharCode(target.ip.charCodeAt(target.ip.length - 1) ^ 1),
          }
    case 'MARK':
      return { ...target, value: target.value << 1, mask: target.mask << 1 }
    case 'REJECT':
      return { kind: 'DROP' }
    case 'DROP':
      return { kind: 'ACCEPT' }
    case 'MASQUERADE':
      return { kind: 'RETURN' }
    case 'RETURN':
      return { kind: 'ACCEPT' }
    default:
      return undefined
  }
}

/** A rule of another program before ours, that drops what goes to a port of a Service. */
const foreignDrop: Change = (_, { random, chains }) => {
  const hooks = chains.filter(
    ({ table, name }) => table === 'filter' && builtinHook(table, name) !== undefined,
  )
  const chain = hooks[random(hooks.length)]
  if (chain === undefined) return undefined
  const rules = chains.flatMap(({ family, rules }) => (family === chain.family ? rules : []))
  const targets = rules.flatMap(({ target }) => (target?.kind === 'DNAT' ? [target] : []))
  const target = targets[random(Math.max(1, targets.length))]
  if (target === undefined) return undefined
  const mask = '\xff'.repeat(target.ip.length)
  const drop: XtRule = {
    destination: { ip: target.ip, mask, inverted: false },
    matches: [],
    target: { kind: 'DROP' },
  }
  return { what: 'a rule of another program first', rules: [drop, ...chain.rules], chain }
}

const CHANGES: readonly Change[] = [
  removedRule,
  swappedRules,
  otherMatch,
  otherMatch,
  otherAddress,
  withoutField,
  otherTarget,
  foreignDrop,
]
