import { unreachable } from '../../base/errors.ts'
import { cString, hex, type Octets, prefixBits, readU32host, u32host } from '../../base/octets.ts'
import * as nft from './constants.ts'
import * as datatypes from './datatypes.ts'
import { flagNames, formatComment, formatDuration, formatValue, formatVerdict } from './print-data.ts'
import { COMMENT_MATCH, type Expression, type HookFamily, type NftSet, type Rule } from './state.ts'

interface RuleContext {
  readonly family: HookFamily
  /** Sets by name. A set defines the number of registers of its key; the key of a set missing here is printed as one. */
  readonly sets: ReadonlyMap<string, NftSet>
}

/**
 * Formats a rule as nft does, except for ipset matches. nft prints `xt match set` for all of them and warns that the
 * table belongs to iptables-nft; kprobe prints `match-set KUBE-CLUSTER-IP dst,dst`, as iptables does. The kernel's
 * rule is a program with registers; the formatter tracks the text of each register until the rule uses it.
 */
export function formatRule(rule: Rule, context: RuleContext): string {
  const state: RuleState = { context, registers: new Map(), words: [] }
  for (const expression of rule.expressions) step(state, expression)
  return `${state.words.join(' ')}${formatComment(rule.comment)}`
}

interface RuleState {
  readonly context: RuleContext
  readonly registers: Map<number, Source>
  readonly words: string[]
}

function step(state: RuleState, expression: Expression): void {
  const { context, registers, words } = state
  switch (expression.kind) {
    case 'payload':
      registers.set(expression.dreg, payloadSource(expression, context.family))
      return
    case 'meta':
      registers.set(expression.dreg, metaSource(expression.key))
      return
    case 'ct':
      registers.set(expression.dreg, ctSource(expression.key))
      return
    case 'numgen':
      registers.set(expression.dreg, numgenSource(expression))
      return
    case 'jhash':
      registers.set(expression.dreg, hashSource(state, expression))
      return
    case 'fib':
      registers.set(expression.dreg, { text: `fib ${fibFlags(expression.flags)} type`, length: 4, type: 0 })
      return
    case 'bitwise':
      registers.set(expression.dreg, bitwise(at(state, expression.sreg), expression))
      return
    case 'lookup':
      lookup(state, expression)
      return
    default:
      words.push(statement(state, expression))
  }
}

type Statement = Exclude<
  Expression,
  { kind: 'payload' | 'meta' | 'ct' | 'numgen' | 'jhash' | 'fib' | 'bitwise' | 'lookup' }
>

function statement(state: RuleState, expression: Statement): string {
  switch (expression.kind) {
    case 'meta-set':
      return `${metaSource(expression.key).text} set ${at(state, expression.sreg).text}`
    case 'cmp':
      return comparison(at(state, expression.sreg), expression)
    case 'verdict':
      return formatVerdict(expression.verdict)
    case 'dnat':
      return `dnat ${expression.family} to ${target(state, expression)}`
    case 'masquerade':
      return ['masquerade', ...natFlags(expression.flags)].join(' ')
    case 'reject':
      return reject(expression.code, state.context.family)
    case 'dynset':
      return dynset(state, expression)
    case 'counter':
      return 'counter'
    case 'limit':
      return `limit rate ${expression.perSecond}/second burst ${expression.burst} packets`
    case 'log': {
      const { prefix, group, packetBytes } = expression
      return `log prefix ${JSON.stringify(prefix)} group ${group} snaplen ${packetBytes} queue-threshold 1`
    }
    case 'ipset':
      return `${expression.inverted ? '! ' : ''}match-set ${expression.set} ${expression.dimensions.join(',')}`
    case 'match':
    case 'target':
      return extension(expression)
    case 'unknown':
      return `[${expression.name} 0x${hex(expression.data)}]`
    default:
      return unreachable(expression)
  }
}

/** nft prints only `xt match "recent"`, without the options. */
function extension({
  kind,
  name,
  revision,
  info,
}: Extract<Expression, { kind: 'match' | 'target' }>): string {
  const asked = name === COMMENT_MATCH ? JSON.stringify(cString(info)) : `0x${hex(info)}`
  return `xt ${kind} ${name} v${revision} ${asked}`
}

function at(state: RuleState, register: number): Source {
  return state.registers.get(register) ?? { text: `[register ${register}]`, length: 4, type: 0 }
}

/** Returns the content of the registers from `first`, over `length` bytes. */
function concatenation(state: RuleState, first: number, length: number): string {
  const texts: string[] = []
  let register = first
  for (let left = length; left > 0; ) {
    const source = at(state, register)
    const registers = Math.max(1, Math.ceil(source.length / 4))
    texts.push(source.text)
    register += registers
    left -= registers * 4
  }
  return texts.join(' . ')
}

function lookup(state: RuleState, expression: Extract<Expression, { kind: 'lookup' }>): void {
  const set = state.context.sets.get(expression.set)
  const key = concatenation(state, expression.sreg, set?.keyLength ?? 4)
  const { dreg, inverted } = expression
  if (dreg === undefined) state.words.push(`${key} ${inverted ? '!= ' : ''}@${expression.set}`)
  else if (dreg === 'verdict') state.words.push(`${key} vmap @${expression.set}`)
  else {
    const text = `${key} map @${expression.set}`
    state.registers.set(dreg, { text, length: set?.dataLength ?? 4, type: set?.dataType ?? 0 })
  }
}

/** Formats (x & mask) ^ xor, with the bits that are always set printed separately, as nft does. */
function bitwise(source: Source, { mask, xor }: { readonly mask: Octets; readonly xor: Octets }): Source {
  const or = zip(xor, mask, (x, m) => x & ~m)
  const and = zip(mask, or, (m, o) => m | o)
  const flip = zip(xor, mask, (x, m) => x & m)
  let text = source.text
  if (!every(and, 0xff)) text += ` & ${constant(source, and)}`
  if (!every(or, 0)) text += ` | ${constant(source, or)}`
  if (!every(flip, 0)) text += ` ^ ${constant(source, flip)}`
  const plain = every(or, 0) && every(flip, 0)
  return plain ? { ...source, text, masked: { text: source.text, mask } } : { ...source, text }
}

function comparison(source: Source, expression: Extract<Expression, { kind: 'cmp' }>): string {
  const { op, data } = expression
  const { masked } = source
  const not = op === 'neq' ? '!= ' : ''
  if (source.text.startsWith('fib ')) return `${source.text} ${not}${addressType(data)}`
  if (source.text.startsWith('ct status &') && op === 'neq' && every(data, 0)) return ctStatus(source)
  const bits = masked === undefined ? undefined : prefixBits(masked.mask)
  if (masked !== undefined && bits !== undefined && source.prefixes === true) {
    return `${masked.text} ${not}${constant(source, data)}/${bits}`
  }
  if (source.beginningOf !== undefined && masked === undefined)
    return `${source.text} ${not}${constant(source, data.padEnd(source.beginningOf, '\0'))}/${data.length * 8}`
  return `${source.text} ${not}${constant(source, data)}`
}

function ctStatus(source: Source): string {
  return source.masked?.mask === u32host(nft.IPS_DST_NAT) ? 'ct status dnat' : `${source.text} != 0x0`
}

function constant(source: Source, data: Octets): string {
  if (source.isName === true) return `"${cString(data)}${data.length < source.length ? '*' : ''}"`
  const isNumber = source.isNumber === true && data.length === 4
  return isNumber ? `0x${readU32host(data).toString(16)}` : formatValue(source.type, data)
}

/** Formats an RTN_* type of linux/rtnetlink.h. */
function addressType(data: Octets): string {
  const names = [
    'unspec',
    'unicast',
    'local',
    'broadcast',
    'anycast',
    'multicast',
    'blackhole',
    'unreachable',
  ]
  return names[data.charCodeAt(0)] ?? `0x${hex(data)}`
}

function target(state: RuleState, expression: Extract<Expression, { kind: 'dnat' }>): string {
  const { addressReg, portReg } = expression
  const address = at(state, addressReg)
  const inOneValue = portReg === undefined || (portReg - addressReg) * 4 < address.length
  return inOneValue ? address.text : `${address.text} : ${at(state, portReg).text}`
}

function dynset(state: RuleState, expression: Extract<Expression, { kind: 'dynset' }>): string {
  const { op, set: name, keyReg, dataReg, timeoutMs } = expression
  const key = concatenation(state, keyReg, state.context.sets.get(name)?.keyLength ?? 4)
  const timeout = timeoutMs > 0 ? ` timeout ${formatDuration(timeoutMs)}` : ''
  const data = dataReg === undefined ? '' : ` : ${at(state, dataReg).text}`
  return `${op} @${name} { ${key}${timeout}${data} }`
}

function reject(code: number, family: HookFamily): string {
  if (family === 'inet') return `reject with icmpx ${code}`
  if (code === (family === 'ip' ? nft.ICMP_PORT_UNREACH : nft.ICMPV6_PORT_UNREACH)) return 'reject'
  return `reject with ${family === 'ip' ? 'icmp' : 'icmpv6'} ${code}`
}

function natFlags(flags: number): readonly string[] {
  return flagNames(flags, [
    [nft.NF_NAT_RANGE_PROTO_RANDOM, 'random'],
    [nft.NF_NAT_RANGE_PROTO_RANDOM_FULLY, 'fully-random'],
    [nft.NF_NAT_RANGE_PERSISTENT, 'persistent'],
  ])
}

function fibFlags(flags: number): string {
  const names = flagNames(flags, [
    [nft.NFTA_FIB_F_SADDR, 'saddr'],
    [nft.NFTA_FIB_F_DADDR, 'daddr'],
    [nft.NFTA_FIB_F_IIF, 'iif'],
  ])
  return names.join(' . ')
}

function zip(a: Octets, b: Octets, combine: (a: number, b: number) => number): Octets {
  let out = ''
  for (let i = 0; i < a.length; i++)
    out += String.fromCharCode(combine(a.charCodeAt(i), b.charCodeAt(i)) & 255)
  return out
}

function every(octets: Octets, value: number): boolean {
  for (let i = 0; i < octets.length; i++) if (octets.charCodeAt(i) !== value) return false
  return true
}

/** The content of a register in nft's words. */
interface Source {
  readonly text: string
  /** Bytes. */
  readonly length: number
  /** nft's datatype, for the notation of constants; 0 for plain bytes. */
  readonly type: number
  /** Constants are numbers in host order, without leading zeros. */
  readonly isNumber?: boolean
  /** Constants are interface names, or with fewer bytes prefixes of names. */
  readonly isName?: boolean
  /** Masked values are printed as `value/bits`. */
  readonly prefixes?: boolean
  /** Set for the first bytes of a field of this length: a comparison compares a prefix. */
  readonly beginningOf?: number
  /** Set when a mask is the only change to the original. */
  readonly masked?: { readonly text: string; readonly mask: Octets }
}

interface Field {
  readonly base: number
  readonly offset: number
  readonly length: number
}

function payloadSource(field: Field, hook: HookFamily): Source {
  const { base, offset, length } = field
  // In a table of both families, the length shows the family of the address.
  const family = hook === 'inet' ? (length === ADDRESSES.ip6.length ? 'ip6' : 'ip') : hook
  const type = family === 'ip' ? datatypes.TYPE_IPADDR : datatypes.TYPE_IP6ADDR
  const address = ADDRESSES[family]
  if (base === nft.NFT_PAYLOAD_NETWORK_HEADER && length <= address.length) {
    const beginningOf = length < address.length ? { beginningOf: address.length } : {}
    const of = { length, type, prefixes: true, ...beginningOf }
    if (offset === address.saddr) return { text: `${family} saddr`, ...of }
    if (offset === address.daddr) return { text: `${family} daddr`, ...of }
  }
  if (base === nft.NFT_PAYLOAD_TRANSPORT_HEADER && length === 2) {
    if (offset === 0) return { text: 'th sport', length, type: datatypes.TYPE_INET_SERVICE }
    if (offset === 2) return { text: 'th dport', length, type: datatypes.TYPE_INET_SERVICE }
  }
  const header =
    base === nft.NFT_PAYLOAD_NETWORK_HEADER ? 'nh' : base === nft.NFT_PAYLOAD_TRANSPORT_HEADER ? 'th' : 'll'
  return { text: `@${header},${offset * 8},${length * 8}`, length, type: 0 }
}

/** Position of addresses in the network header. */
const ADDRESSES = {
  ip: { length: 4, saddr: 12, daddr: 16 },
  ip6: { length: 16, saddr: 8, daddr: 24 },
} as const

export function metaSource(key: number): Source {
  switch (key) {
    case nft.NFT_META_MARK:
      return { text: 'meta mark', length: 4, type: datatypes.TYPE_MARK }
    case nft.NFT_META_PRIORITY:
      return { text: 'meta priority', length: 4, type: datatypes.TYPE_CLASSID }
    case nft.NFT_META_L4PROTO:
      return { text: 'meta l4proto', length: 1, type: datatypes.TYPE_INET_PROTOCOL }
    case nft.NFT_META_NFTRACE:
      return { text: 'meta nftrace', length: 1, type: 0 }
    case nft.NFT_META_NFPROTO:
      return { text: 'meta nfproto', length: 1, type: datatypes.TYPE_NFPROTO }
    case nft.NFT_META_IIFNAME:
      return { text: 'iifname', length: 16, type: 0, isName: true }
    case nft.NFT_META_OIFNAME:
      return { text: 'oifname', length: 16, type: 0, isName: true }
    default:
      return { text: `meta ${key}`, length: 4, type: 0 }
  }
}

function numgenSource({ modulus, offset = 0 }: Extract<Expression, { kind: 'numgen' }>): Source {
  const text = `numgen random mod ${modulus}${offset === 0 ? '' : ` offset ${offset}`}`
  return { text, length: 4, type: 0 }
}

function hashSource(state: RuleState, expression: Extract<Expression, { kind: 'jhash' }>): Source {
  const { sreg, length, modulus, seed, offset = 0 } = expression
  const of = concatenation(state, sreg, length)
  const text = `jhash ${of} mod ${modulus} seed 0x${seed.toString(16)}${offset === 0 ? '' : ` offset ${offset}`}`
  return { text, length: 4, type: 0 }
}

function ctSource(key: number): Source {
  const name = key === nft.NFT_CT_STATE ? 'state' : key === nft.NFT_CT_STATUS ? 'status' : String(key)
  return { text: `ct ${name}`, length: 4, type: 0, isNumber: true }
}
