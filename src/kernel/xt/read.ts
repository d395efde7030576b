import { type Octets, readU16be, readU32host } from '../../base/octets.ts'
import * as nft from '../nft/constants.ts'
import { ipsetMatchOf, type NameOfIpset } from '../nft/ipset-match.ts'
import { EXPRESSIONS } from '../nft/schema.ts'
import type { NftFamily } from '../nft/state.ts'
import { ADDRESS_OFFSETS, NO_INTERFACE } from './compile.ts'
import { type Condition, conditionAt, isInterface, type Load, type Test } from './condition.ts'
import { attributesOf, type RawExpression, splitExpressions } from './expressions.ts'
import { askedPorts, portsMatch, readLimit, readMatch } from './match.ts'
import type {
  XtAddress,
  XtInterface,
  XtMatch,
  XtPorts,
  XtProtocol,
  XtRule,
  XtTarget,
  XtUnknown,
} from './rule.ts'
import { isZero, textOfOctets } from './struct.ts'
import { readLog, readTarget } from './target.ts'

/**
 * Decodes the rule of any program from its bytes. Parts without a value type stay in their position as `unknown`;
 * nothing throws. A set without a known name is called by its number, `[ipset 7]`.
 */
export function readRule(compiled: Octets, family: NftFamily, nameOfIpset?: NameOfIpset): XtRule {
  return new RuleReader(splitExpressions(compiled), family, nameOfIpset).read()
}

type Draft = { -readonly [K in Exclude<keyof XtRule, 'matches' | 'target'>]?: XtRule[K] } & {
  readonly matches: XtMatch[]
  target: XtTarget | undefined
}

/** Matches with side effects in the kernel, or unknown ones: their order matters. */
const IMPURE: readonly XtMatch['kind'][] = ['statistic', 'recent', 'nfacct', 'limit', 'unknown']

class RuleReader {
  readonly #expressions: readonly RawExpression[]
  readonly #family: NftFamily
  readonly #nameOfIpset: NameOfIpset | undefined
  readonly #draft: Draft = { matches: [], target: undefined }
  #counted = false

  constructor(
    expressions: readonly RawExpression[],
    family: NftFamily,
    nameOfIpset: NameOfIpset | undefined,
  ) {
    this.#expressions = expressions
    this.#family = family
    this.#nameOfIpset = nameOfIpset
  }

  read(): XtRule {
    let at = 0
    while (at < this.#expressions.length) at += this.#take(at)
    return this.#draft
  }

  /** Decodes the expressions at `at`; returns how many it used. */
  #take(at: number): number {
    const one = this.#expressions[at]
    if (one === undefined) return 1
    if (this.#takeWhole(one)) return 1
    const condition = conditionAt(this.#expressions, at)
    const field = condition === undefined ? undefined : fieldOf(condition, this.#draft, this.#family)
    if (condition !== undefined && field !== undefined && this.#merge(field)) return condition.length
    this.#draft.matches.push({ kind: 'unknown', name: one.name, revision: 0, info: one.data, native: true })
    return 1
  }

  /** Decodes an expression that has a meaning by itself. Nothing may follow the target. */
  #takeWhole(one: RawExpression): boolean {
    if (this.#draft.target !== undefined) return false
    if (one.name === 'match') return this.#addMatch(this.#matchOf(one))
    if (one.name === 'counter') return this.#count()
    if (one.name === 'limit') return this.#addMatch(readLimit(one))
    this.#draft.target = one.name === 'target' ? this.#targetOf(one) : (verdictOf(one) ?? readLog(one))
    return this.#draft.target !== undefined
  }

  #addMatch(match: XtMatch | undefined): boolean {
    if (match !== undefined) this.#draft.matches.push(match)
    return match !== undefined
  }

  #count(): boolean {
    if (this.#counted) return false
    this.#counted = true
    return true
  }

  #matchOf(one: RawExpression): XtMatch | undefined {
    const unknown = compatOf(one)
    if (unknown === undefined) return undefined
    const set = ipsetMatchOf(unknown, this.#nameOfIpset)
    if (set !== undefined) return { ...set, kind: 'set' }
    return readMatch(unknown, this.#family) ?? unknown
  }

  #targetOf(one: RawExpression): XtTarget | undefined {
    const unknown = compatOf(one)
    return unknown === undefined ? undefined : (readTarget(unknown, this.#family) ?? unknown)
  }

  /** Returns false where the position changes the meaning: after a match that counts or remembers packets. */
  #merge(field: NonNullable<ReturnType<typeof fieldOf>>): boolean {
    const { matches } = this.#draft
    if ('match' in field) {
      if (field.replaces !== undefined) matches.pop()
      matches.push(field.match)
      return true
    }
    if (matches.some(({ kind }) => IMPURE.includes(kind))) return false
    Object.assign(this.#draft, field)
    return true
  }
}

/** Decodes the match or target of an nft_compat expression: both have the same attributes. */
function compatOf(one: RawExpression): XtUnknown | undefined {
  const { name, revision, info } = attributesOf(EXPRESSIONS.match, one) ?? {}
  if (name === undefined || revision === undefined || info === undefined) return undefined
  return { kind: 'unknown', name, revision, info }
}

function verdictOf(one: RawExpression): XtTarget | undefined {
  if (one.name !== 'immediate') return undefined
  const { dreg, data } = attributesOf(EXPRESSIONS.immediate, one) ?? {}
  const { code, chain } = data?.verdict ?? {}
  // The kernel allows names that are not UTF-8.
  if (dreg !== nft.NFT_REG_VERDICT || code === undefined || chain?.includes('\ufffd')) return undefined
  return targetOfCode(code, chain)
}

function targetOfCode(code: number, chain: string | undefined): XtTarget | undefined {
  if (code === nft.NFT_JUMP || code === nft.NFT_GOTO)
    return chain === undefined ? undefined : { kind: code === nft.NFT_JUMP ? 'jump' : 'goto', chain }
  if (chain !== undefined) return undefined
  if (code === nft.NF_ACCEPT) return { kind: 'ACCEPT' }
  if (code === nft.NF_DROP) return { kind: 'DROP' }
  return code === nft.NFT_RETURN ? { kind: 'RETURN' } : undefined
}

/** A field of the rule, or a match; `replaces` is the preceding match, which this one extends. */
type RuleField =
  | { readonly inInterface: XtInterface }
  | { readonly outInterface: XtInterface }
  | { readonly protocol: XtProtocol }
  | { readonly source: XtAddress }
  | { readonly destination: XtAddress }
  | { readonly match: XtMatch; readonly replaces?: XtMatch }

/** Returns the meaning of a condition after the fields read so far; undefined where iptables prints it otherwise. */
function fieldOf(
  condition: Condition,
  rule: Omit<XtRule, 'target'>,
  family: NftFamily,
): RuleField | undefined {
  const { load } = condition
  if (load.from === 'meta') return metaField(load.key, condition, rule)
  if (load.base === nft.NFT_PAYLOAD_NETWORK_HEADER) return addressField(load, condition, { rule, family })
  return load.base === nft.NFT_PAYLOAD_TRANSPORT_HEADER ? portField(load, condition, rule) : undefined
}

type Known = Omit<XtRule, 'target'>

function metaField(key: number, { mask, test }: Condition, rule: Known): RuleField | undefined {
  if (isInterface(key)) {
    const isIn = key === nft.NFT_META_IIFNAME
    const one = mask === undefined ? interfaceOf(test) : undefined
    if (one === undefined || (isIn ? rule.inInterface : rule.outInterface) !== undefined) return undefined
    return isIn ? { inInterface: one } : { outInterface: one }
  }
  if (test === undefined || test.from !== test.to) return undefined
  if (key === nft.NFT_META_L4PROTO && mask === undefined) return protocolField(test, rule)
  if (key !== nft.NFT_META_MARK || test.from.length !== 4 || (mask ?? test.from).length !== 4)
    return undefined
  const bits = mask === undefined ? 0xffffffff : readU32host(mask)
  return { match: { kind: 'mark', mark: readU32host(test.from), mask: bits, inverted: test.inverted } }
}

function interfaceOf(test: Test | undefined): XtInterface | undefined {
  if (test === undefined) return { name: '+', inverted: false }
  const { from, to, inverted } = test
  if (from !== to) return undefined
  if (from === NO_INTERFACE && !inverted) return { name: '+', inverted: true }
  const nul = from.indexOf('\0')
  const octets = nul < 0 ? `${from}+` : from.slice(0, nul)
  const name = textOfOctets(octets)
  // A name that itself ends in a plus would read as another rule.
  const isPlain = nul < 0 || (isZero(from, nul, from.length) && !octets.endsWith('+') && octets !== '')
  return name === undefined || !isPlain || octets.length > 15 ? undefined : { name, inverted }
}

function protocolField({ from, inverted }: Test, rule: Known): RuleField | undefined {
  const number = from.charCodeAt(0)
  if (from.length !== 1 || number === 0 || rule.protocol !== undefined) return undefined
  return { protocol: { number, inverted } }
}

const IPV4_PROTOCOL_OFFSET = 9

function addressField(
  { offset, length }: Extract<Load, { readonly from: 'payload' }>,
  { mask, test }: Condition,
  { rule, family }: { readonly rule: Known; readonly family: NftFamily },
): RuleField | undefined {
  if (test === undefined || test.from !== test.to || test.from.length !== length) return undefined
  if (family === 'ip' && offset === IPV4_PROTOCOL_OFFSET && mask === undefined)
    return protocolField(test, rule)
  const place = ADDRESS_OFFSETS[family]
  const isWhole = mask === undefined || (length === place.length && mask.length === length)
  if (length === 0 || length > place.length || !isWhole) return undefined
  const ip = test.from + '\0'.repeat(place.length - length)
  const ones = mask ?? '\xff'.repeat(length) + '\0'.repeat(place.length - length)
  // Bits outside the mask never match, and no iptables option expresses that.
  if (!isWithin(ip, ones)) return undefined
  const address = { ip, mask: ones, inverted: test.inverted }
  if (offset === place.source) return rule.source === undefined ? { source: address } : undefined
  if (offset !== place.destination || rule.destination !== undefined) return undefined
  return { destination: address }
}

function isWithin(ip: Octets, mask: Octets): boolean {
  for (let at = 0; at < ip.length; at++)
    if ((ip.charCodeAt(at) & ~mask.charCodeAt(at) & 0xff) !== 0) return false
  return true
}

const PORTS_OF: ReadonlyMap<number, 'tcp' | 'udp' | 'sctp'> = new Map([
  [nft.IPPROTO_TCP, 'tcp'],
  [nft.IPPROTO_UDP, 'udp'],
  [nft.IPPROTO_SCTP, 'sctp'],
])

function portField(
  { offset, length }: Extract<Load, { readonly from: 'payload' }>,
  { mask, test }: Condition,
  { protocol, matches }: Known,
): RuleField | undefined {
  const kind = protocol === undefined || protocol.inverted ? undefined : PORTS_OF.get(protocol.number)
  if (kind === undefined || mask !== undefined || test === undefined) return undefined
  const { from, to, inverted } = test
  if (offset === 0 && length === 4 && from.length === 4 && from === to) {
    const source = onePort(readU16be(from), inverted)
    return { match: portsMatch(kind, { source, destination: onePort(readU16be(from, 2), inverted) }) }
  }
  if (length !== 2 || from.length !== 2) return undefined
  const ports = { from: readU16be(from), to: readU16be(to), inverted }
  // It matches every port, and iptables would omit it.
  if (askedPorts(ports) === undefined) return undefined
  if (offset === 0) return { match: portsMatch(kind, { source: ports }) }
  return offset === 2 ? destinationField(kind, ports, matches.at(-1)) : undefined
}

function onePort(port: number, inverted: boolean): XtPorts {
  return { from: port, to: port, inverted }
}

/** Extends the preceding match if that compares the source port. */
function destinationField(
  kind: 'tcp' | 'udp' | 'sctp',
  destination: XtPorts,
  before: XtMatch | undefined,
): RuleField {
  const isSame = before !== undefined && before.kind === kind
  if (!isSame || before.sourcePorts === undefined || before.destinationPorts !== undefined)
    return { match: portsMatch(kind, { destination }) }
  return { match: portsMatch(kind, { source: before.sourcePorts, destination }), replaces: before }
}
