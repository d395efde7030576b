import { formatIp, formatIpAsC, formatIpPort } from '../../base/ip.ts'
import { hex, prefixBits } from '../../base/octets.ts'
import { NF_DROP } from '../nft/constants.ts'
import type { NameOfIpset } from '../nft/ipset-match.ts'
import type { NftFamily, Observed, ObservedChain, ObservedTable } from '../nft/state.ts'
import type { MatchOf } from './match.ts'
import { readRule } from './read.ts'
import {
  ADDRESS_TYPES,
  protocolWord,
  STATES,
  type XtAddress,
  type XtInterface,
  type XtMatch,
  type XtPorts,
  type XtProtocol,
  type XtRule,
  type XtTarget,
  type XtUnknown,
} from './rule.ts'
import { builtinChains } from './scope.ts'

/**
 * Prints a rule as iptables-save 1.8.9 does, from after `-A CHAIN`; empty for an empty rule. Parts that iptables has
 * no words for are in brackets, in hexadecimal; iptables rejects such a rule.
 */
export function printRule(rule: XtRule, family: NftFamily): string {
  const parts: string[] = []
  if (rule.source !== undefined) parts.push(printAddress('-s', rule.source))
  if (rule.destination !== undefined) parts.push(printAddress('-d', rule.destination))
  if (rule.inInterface !== undefined) parts.push(printInterface('-i', rule.inInterface))
  if (rule.outInterface !== undefined) parts.push(printInterface('-o', rule.outInterface))
  if (rule.protocol !== undefined) parts.push(printProtocol(rule.protocol))
  for (const match of rule.matches) parts.push(printMatch(match, family))
  if (rule.target !== undefined) parts.push(printTarget(rule.target))
  return parts.filter(part => part !== '').join(' ')
}

function not(inverted: boolean | undefined): string {
  return inverted ? '! ' : ''
}

function printInterface(option: string, { name, inverted }: XtInterface): string {
  // Matches any interface, so iptables-save omits it.
  return name === '+' && !inverted ? '' : `${not(inverted)}${option} ${name}`
}

function printProtocol({ number, inverted }: XtProtocol): string {
  return number === 0 ? '' : `${not(inverted)}-p ${protocolWord(number)}`
}

function printAddress(option: string, { ip, mask, inverted }: XtAddress): string {
  const bits = prefixBits(mask)
  if (bits === 0 && !inverted) return ''
  return `${not(inverted)}${option} ${formatIpAsC(ip)}/${bits ?? formatIpAsC(mask)}`
}

function printMatch(match: XtMatch, family: NftFamily): string {
  switch (match.kind) {
    case 'comment':
      return `-m comment --comment ${quoted(match.text)}`
    case 'tcp':
    case 'udp':
    case 'sctp':
      return printPorts(match)
    case 'conntrack':
      return `-m conntrack ${not(match.inverted)}--ctstate ${printStates(match.states)}`
    case 'statistic':
      return `-m statistic --mode random --probability ${printProbability(match.probability)}`
    case 'recent':
      return printRecent(match, family)
    case 'mark': {
      const mask = match.mask === 0xffffffff ? '' : `/0x${match.mask.toString(16)}`
      return `-m mark ${not(match.inverted)}--mark 0x${match.mark.toString(16)}${mask}`
    }
    case 'addrtype':
      return printAddrtype(match)
    case 'set':
      return `-m set ${not(match.inverted)}--match-set ${match.set} ${match.dimensions.join(',')}`
    case 'nfacct':
      // iptables-save prints two spaces here.
      return `-m nfacct --nfacct-name  ${match.name}`
    case 'physdev-is-in':
      return `-m physdev ${not(match.inverted)}--physdev-is-in`
    case 'ipvs':
      return printIpvs(match)
    case 'limit':
      return `-m limit --limit ${match.perSecond}/sec${match.burst === LIMIT_BURST ? '' : ` --limit-burst ${match.burst}`}`
    case 'unknown':
      return printUnknown('match', match)
  }
}

/** iptables-save omits this burst. */
const LIMIT_BURST = 5

/** Quotes as xtables_save_string does: unless every character may be part of a name. */
function quoted(text: string): string {
  return /^[\w-]+$/.test(text) ? text : `"${text.replace(/["\\']/g, '\\$&')}"`
}

type Ports = MatchOf<'tcp' | 'udp' | 'sctp'>

function printPorts({ kind, sourcePorts, destinationPorts }: Ports): string {
  const source = sourcePorts === undefined ? '' : printRange('--sport', sourcePorts, kind)
  const destination = destinationPorts === undefined ? '' : printRange('--dport', destinationPorts, kind)
  return `-m ${kind}${source}${destination}`
}

function printRange(option: string, { from, to, inverted }: XtPorts, kind: Ports['kind']): string {
  if (from === 0 && to === 0xffff && !inverted && kind !== 'sctp') return ''
  return ` ${not(inverted)}${option} ${from === to ? from : `${from}:${to}`}`
}

function printStates(states: number): string {
  return STATES.flatMap(([bit, word]) => ((states & bit) === 0 ? [] : [word])).join(',')
}

const DIGITS = 11
const SCALE = 10n ** BigInt(DIGITS)
const ONE = 1n << 31n

/** Formats as printf's %.11f: to the nearest, ties to even. */
function printProbability(probability: number): string {
  const scaled = BigInt(probability) * SCALE
  const floor = scaled / ONE
  const twice = (scaled % ONE) * 2n
  const isUp = twice > ONE || (twice === ONE && (floor & 1n) === 1n)
  const digits = `${isUp ? floor + 1n : floor}`.padStart(DIGITS + 1, '0')
  return `${digits.slice(0, -DIGITS)}.${digits.slice(-DIGITS)}`
}

function printRecent({ mode, name, seconds, reap }: MatchOf<'recent'>, family: NftFamily): string {
  const age = seconds === 0 ? '' : ` --seconds ${seconds}`
  const mask = formatIp('\xff'.repeat(family === 'ip' ? 4 : 16))
  return `-m recent --${mode}${age}${reap ? ' --reap' : ''} --name ${name} --mask ${mask} --rsource`
}

function printAddrtype(match: MatchOf<'addrtype'>): string {
  const { sourceTypes, destinationTypes, sourceInverted, destinationInverted } = match
  const source = sourceTypes === 0 ? '' : ` ${not(sourceInverted)}--src-type ${printTypes(sourceTypes)}`
  const destination =
    destinationTypes === 0 ? '' : ` ${not(destinationInverted)}--dst-type ${printTypes(destinationTypes)}`
  return `-m addrtype${source}${destination}`
}

function printTypes(types: number): string {
  return ADDRESS_TYPES.filter((_, bit) => (types & (1 << bit)) !== 0).join(',')
}

/** iptables prints the protocol as --proto, an option that it does not accept; it reads --vproto. */
function printIpvs({ vproto, vaddr, vport }: MatchOf<'ipvs'>): string {
  const protocol = vproto === undefined ? '' : ` --proto ${vproto}`
  const bits = prefixBits(vaddr.mask)
  const mask = bits === vaddr.mask.length * 8 ? '' : `/${bits ?? formatIpAsC(vaddr.mask)}`
  return `-m ipvs${protocol} ${not(vaddr.inverted)}--vaddr ${formatIpAsC(vaddr.ip)}${mask} --vport ${vport}`
}

function printTarget(target: XtTarget): string {
  switch (target.kind) {
    case 'ACCEPT':
    case 'DROP':
    case 'RETURN':
      return `-j ${target.kind}`
    case 'jump':
      return `-j ${target.chain}`
    case 'goto':
      return `-g ${target.chain}`
    case 'REJECT':
      return `-j REJECT --reject-with ${target.with}`
    case 'MARK':
      return `-j MARK --set-xmark 0x${target.value.toString(16)}/0x${target.mask.toString(16)}`
    case 'MASQUERADE':
      return `-j MASQUERADE${target.randomFully ? ' --random-fully' : ''}`
    case 'DNAT': {
      const to = target.port === 0 ? formatIp(target.ip) : formatIpPort(target.ip, target.port)
      return `-j DNAT --to-destination ${to}`
    }
    case 'NFLOG': {
      const { prefix, group, packetBytes } = target
      return `-j NFLOG --nflog-prefix ${quoted(prefix)} --nflog-group ${group} --nflog-size ${packetBytes} --nflog-threshold 1`
    }
    case 'unknown':
      return printUnknown('target', target)
  }
}

function printUnknown(kind: 'match' | 'target', { name, revision, info, native }: XtUnknown): string {
  if (native) return `[nf_tables ${name === '' ? 'bytes' : name} 0x${hex(info)}]`
  return `[${kind} ${name} revision ${revision} 0x${hex(info)}]`
}

/** Tables in the order of iptables-nft-save, with their built-in chains. */
const TABLES = [
  { table: 'mangle', builtin: builtinChains('mangle') },
  { table: 'raw', builtin: ['PREROUTING', 'OUTPUT'] },
  { table: 'filter', builtin: builtinChains('filter') },
  { table: 'nat', builtin: builtinChains('nat') },
  { table: 'security', builtin: ['INPUT', 'FORWARD', 'OUTPUT'] },
] as const

/**
 * Prints the tables of one family as iptables-save does, without its comments: all chains and rules that were read,
 * and built-in chains even if they do not exist. A rule with brackets is one that iptables prints differently, or not
 * at all.
 */
export function printTables(observed: Observed, family: NftFamily, nameOfIpset?: NameOfIpset): string {
  let text = ''
  for (const line of tableLines(observed, family, nameOfIpset)) text += `${line}\n`
  return text
}

function* tableLines(
  observed: Observed,
  family: NftFamily,
  nameOfIpset: NameOfIpset | undefined,
): Generator<string> {
  for (const { table, builtin } of TABLES) {
    const found = observed.get(`${family} ${table}`)
    if (found === undefined) continue
    const chains = inOrder(found, builtin)
    yield `*${table}`
    for (const chain of chains) yield `:${chain.name} ${policyOf(chain)} [0:0]`
    for (const { name, rules } of chains)
      for (const { compiled } of rules)
        yield `-A ${name} ${printRule(readRule(compiled, family, nameOfIpset), family)}`.trimEnd()
    yield 'COMMIT'
  }
}

type PrintedChain = Pick<ObservedChain, 'name' | 'rules'> & {
  readonly hook: { readonly policy?: number } | undefined
}

/** Returns built-in chains first, including those that do not exist; then the others by their bytes. */
function inOrder({ chains }: ObservedTable, builtin: readonly string[]): readonly PrintedChain[] {
  const entered = builtin.map(name => chains.get(name) ?? { name, hook: {}, rules: [] })
  const others = [...chains.values()].filter(({ name }) => !builtin.includes(name))
  return [...entered, ...others.toSorted((a, b) => Buffer.compare(Buffer.from(a.name), Buffer.from(b.name)))]
}

function policyOf({ hook }: PrintedChain): string {
  if (hook === undefined) return '-'
  return hook.policy === NF_DROP ? 'DROP' : 'ACCEPT'
}
