import { formatIp } from '../../base/ip.ts'
import { type Octets, u16be, u32host } from '../../base/octets.ts'
import { NetlinkError, unencodable } from '../../netlink/errors.ts'
import * as nft from '../nft/constants.ts'
import { type IndexOfIpset, matchAttributesOf } from '../nft/ipset-match.ts'
import type { CompiledRule, NftFamily } from '../nft/state.ts'
import {
  cmp,
  compat,
  jump,
  limit,
  log,
  masked,
  meta,
  payload,
  range,
  rawExpression,
  verdict,
  ZERO_COUNTER,
} from './expressions.ts'
import * as match from './match.ts'
import {
  NFT_CMP_GT,
  NFT_CMP_LTE,
  NFT_RANGE_EQ,
  NFT_RANGE_NEQ,
  type XtAddress,
  type XtInterface,
  type XtMatch,
  type XtPorts,
  type XtProtocol,
  type XtRule,
  type XtTarget,
  type XtUnknown,
} from './rule.ts'
import { octetsOfText } from './struct.ts'
import * as target from './target.ts'

/**
 * Compiles a rule to the bytes that iptables-nft 1.8.9 sends to the kernel, in the form of the kernel's listings. Only
 * the protocol comes after the addresses: a packet matches the protocol of most rules in a list, and the address of one.
 * Throws NetlinkError: EMSGSIZE for a rule that cannot be expressed, ENOENT for a set that does not exist.
 */
export function compileRule(rule: XtRule, family: NftFamily, indexOfIpset?: IndexOfIpset): CompiledRule {
  const { protocol } = rule
  let compiled = ''
  if (rule.inInterface !== undefined) compiled += compileInterface(nft.NFT_META_IIFNAME, rule.inInterface)
  if (rule.outInterface !== undefined) compiled += compileInterface(nft.NFT_META_OIFNAME, rule.outInterface)
  if (rule.source !== undefined) compiled += compileAddress(rule.source, family, 'source')
  if (rule.destination !== undefined) compiled += compileAddress(rule.destination, family, 'destination')
  if (protocol !== undefined) compiled += compileProtocol(protocol)
  for (const match of rule.matches) compiled += compileMatch(match, family, indexOfIpset)
  compiled += ZERO_COUNTER
  if (rule.target !== undefined) compiled += compileTarget(rule.target, family)
  return {
    compiled,
    protocol: protocol?.number ?? 0,
    protocolInverted: protocol?.inverted ?? false,
    userdata: rule.userdata,
  }
}

const EQUAL = [nft.NFT_CMP_EQ, nft.NFT_CMP_NEQ] as const

function equality(inverted: boolean): number {
  return EQUAL[inverted ? 1 : 0]
}

const INTERFACE_LENGTH_MAX = 15
const IN = meta(nft.NFT_META_IIFNAME)
const OUT = meta(nft.NFT_META_OIFNAME)
/** The name that iptables compares with for a rule that matches no interface. */
export const NO_INTERFACE = 'INVAL/D\0'

function compileInterface(key: number, { name, inverted }: XtInterface): Octets {
  const octets = octetsOfText(name)
  if (octets.length === 0 || octets.length > INTERFACE_LENGTH_MAX || octets.includes('\0'))
    throw unencodable(`an interface of the name ${JSON.stringify(name)}`)
  const load = key === nft.NFT_META_IIFNAME ? IN : OUT
  if (octets === '+') return inverted ? load + cmp(nft.NFT_CMP_EQ, NO_INTERFACE) : load
  const compared = octets.endsWith('+') ? octets.slice(0, -1) : `${octets}\0`
  return load + cmp(equality(inverted), compared)
}

const PROTOCOL = meta(nft.NFT_META_L4PROTO)
/** Precompiled by number, for nearly all protocols. */
const PROTOCOL_IS = Array.from(
  { length: 256 },
  (_, number) => PROTOCOL + cmp(nft.NFT_CMP_EQ, String.fromCharCode(number)),
)

function compileProtocol({ number, inverted }: XtProtocol): Octets {
  const is = PROTOCOL_IS[number]
  if (is === undefined) throw unencodable(`protocol ${number}`)
  if (number === 0) return ''
  return inverted ? PROTOCOL + cmp(nft.NFT_CMP_NEQ, String.fromCharCode(number)) : is
}

/** Offsets of addresses in the headers of both families. */
export const ADDRESS_OFFSETS = {
  ip: { source: 12, destination: 16, length: 4 },
  ip6: { source: 8, destination: 24, length: 16 },
} as const

type Direction = 'source' | 'destination'

/** Loads of the first bytes of an address, by their number. */
const ADDRESS_LOADS = {
  ip: { source: addressLoads('ip', 'source'), destination: addressLoads('ip', 'destination') },
  ip6: { source: addressLoads('ip6', 'source'), destination: addressLoads('ip6', 'destination') },
} as const

function addressLoads(family: NftFamily, direction: Direction): readonly Octets[] {
  const { length, [direction]: offset } = ADDRESS_OFFSETS[family]
  return Array.from({ length: length + 1 }, (_, bytes) =>
    payload(nft.NFT_PAYLOAD_NETWORK_HEADER, offset, bytes),
  )
}

/** Loads and compares only the whole bytes of a prefix; any other mask loads the whole address. */
function compileAddress({ ip, mask, inverted }: XtAddress, family: NftFamily, direction: Direction): Octets {
  const { length } = ADDRESS_OFFSETS[family]
  if (ip.length !== length || mask.length !== length)
    throw unencodable(`the address ${formatIp(ip)} in a rule of ${family}`)
  const loads = ADDRESS_LOADS[family][direction]
  const bytes = wholeBytes(mask)
  if (bytes === 0) {
    if (inverted) throw unencodable('the negation of all addresses')
    return ''
  }
  const op = equality(inverted)
  if (bytes !== undefined) return (loads[bytes] ?? '') + cmp(op, ip.slice(0, bytes))
  return (loads[length] ?? '') + masked(mask) + cmp(op, and(ip, mask))
}

/** Returns the number of leading 0xff bytes of a mask that is zero after them; undefined for any other mask. */
function wholeBytes(mask: Octets): number | undefined {
  let bytes = 0
  while (bytes < mask.length && mask.charCodeAt(bytes) === 0xff) bytes++
  for (let at = bytes; at < mask.length; at++) if (mask.charCodeAt(at) !== 0) return undefined
  return bytes
}

function and(ip: Octets, mask: Octets): Octets {
  let octets = ''
  for (let at = 0; at < ip.length; at++)
    octets += String.fromCharCode(ip.charCodeAt(at) & mask.charCodeAt(at))
  return octets
}

function compileMatch(one: XtMatch, family: NftFamily, indexOfIpset: IndexOfIpset | undefined): Octets {
  switch (one.kind) {
    case 'comment':
      return match.COMMENT.write(one, family)
    case 'tcp':
    case 'udp':
      return compilePorts(one, family)
    case 'sctp':
      return match.SCTP.write({ ...one, kind: 'sctp' }, family)
    case 'conntrack':
      return match.CONNTRACK.write(one, family)
    case 'statistic':
      return match.STATISTIC.write(one, family)
    case 'recent':
      return match.RECENT.write(one, family)
    case 'mark':
      return compileMark(one)
    case 'addrtype':
      return match.ADDRTYPE.write(one, family)
    case 'set': {
      const { name, revision, info } = matchAttributesOf({ ...one, kind: 'ipset' }, indexOfIpset)
      return compat('match', name, revision, info)
    }
    case 'nfacct':
      return match.NFACCT.write(one, family)
    case 'physdev-is-in':
      return match.PHYSDEV.write(one, family)
    case 'ipvs':
      return match.IPVS.write(one, family)
    case 'limit':
      return limit(one.perSecond, one.burst)
    case 'unknown':
      return compileUnknown('match', one)
  }
}

function compileUnknown(kind: 'match' | 'target', { name, revision, info, native }: XtUnknown): Octets {
  if (native === undefined) return compat(kind, name, revision, info)
  return name === '' ? info : rawExpression({ name, data: info })
}

const MARK = meta(nft.NFT_META_MARK)
const ALL_BITS = 0xffffffff

function compileMark({ mark, mask, inverted }: match.MatchOf<'mark'>): Octets {
  const bits = mask === ALL_BITS ? '' : masked(u32host(mask))
  return MARK + bits + cmp(equality(inverted), u32host(mark))
}

const SOURCE_PORT = payload(nft.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2)
const DESTINATION_PORT = payload(nft.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)
const BOTH_PORTS = payload(nft.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4)

/** Compiles to nf_tables expressions where there is a port to compare. */
function compilePorts(one: match.MatchOf<'tcp' | 'udp' | 'sctp'>, family: NftFamily): Octets {
  const source = match.askedPorts(one.sourcePorts)
  const destination = match.askedPorts(one.destinationPorts)
  if (source === undefined && destination === undefined)
    return one.kind === 'tcp'
      ? match.TCP.write({ kind: 'tcp' }, family)
      : match.UDP.write({ kind: 'udp' }, family)
  if (isOnePort(source) && isOnePort(destination) && source.inverted === destination.inverted)
    return BOTH_PORTS + cmp(equality(source.inverted), u16be(source.from) + u16be(destination.from))
  return (
    (source === undefined ? '' : SOURCE_PORT + comparePorts(source)) +
    (destination === undefined ? '' : DESTINATION_PORT + comparePorts(destination))
  )
}

function isOnePort(ports: XtPorts | undefined): ports is XtPorts {
  return ports !== undefined && ports.from === ports.to && ports.from !== 0
}

function comparePorts({ from, to, inverted }: XtPorts): Octets {
  if (from === to) return cmp(equality(inverted), u16be(from))
  if (from === 0 && to !== 0xffff) return cmp(inverted ? NFT_CMP_GT : NFT_CMP_LTE, u16be(to))
  return range(inverted ? NFT_RANGE_NEQ : NFT_RANGE_EQ, u16be(from), u16be(to))
}

const VERDICTS = {
  ACCEPT: verdict(nft.NF_ACCEPT),
  DROP: verdict(nft.NF_DROP),
  RETURN: verdict(nft.NFT_RETURN),
} as const

function compileTarget(one: XtTarget, family: NftFamily): Octets {
  switch (one.kind) {
    case 'ACCEPT':
    case 'DROP':
    case 'RETURN':
      return VERDICTS[one.kind]
    case 'jump':
      return jump(nft.NFT_JUMP, octetsOfText(one.chain))
    case 'goto':
      return jump(nft.NFT_GOTO, octetsOfText(one.chain))
    case 'REJECT':
      return target.REJECT.write(one, family)
    case 'MARK':
      return target.MARK.write(one, family)
    case 'MASQUERADE':
      return target.MASQUERADE[family].write(one, family)
    case 'DNAT':
      return target.DNAT.write(one, family)
    case 'NFLOG':
      return log(one.prefix, one.group, one.packetBytes)
    case 'unknown':
      return compileUnknown('target', one)
  }
}

/** Compiles as compileRule does, with access to ipsets. Throws NetlinkError for a rule that the kernel cannot hold. */
type CompileRule = (rule: XtRule, family: NftFamily) => CompiledRule

export interface RuleCodec {
  readonly compile: CompileRule
  readonly nameOfIpset?: (index: number) => string | undefined
}

/** Compiles a rule; undefined for a rule that the kernel cannot hold. */
export function bytesOf({ compile }: RuleCodec, rule: XtRule, family: NftFamily): Octets | undefined {
  try {
    return compile(rule, family).compiled
  } catch (error) {
    if (!(error instanceof NetlinkError)) throw error
    return undefined
  }
}
