import type { Cidr, Ip } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import type { Octets } from '../../base/octets.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import type { XtAddress, XtInterface, XtMatch, XtProtocol, XtRule, XtTarget } from '../../kernel/xt/rule.ts'
import * as xt from '../../kernel/xt/rule.ts'
import type { Protocol } from '../../model/service.ts'
import type { Detector } from '../common/detector.ts'
import { LOG_LIMIT, LOGGED_BYTES, logPrefix, nameOfPrefix, type VerdictReason } from '../common/logs.ts'
import { LOOPBACKS } from '../common/rules.ts'

/* Matches, targets and conditions that the rules of iptables mode and IPVS mode consist of. */

export const NO_MATCHES: readonly XtMatch[] = []
export const DROP: XtTarget = { kind: 'DROP' }
export const ACCEPT: XtTarget = { kind: 'ACCEPT' }

export function jump(chain: string): XtTarget {
  return { kind: 'jump', chain }
}

export const REJECT: Readonly<Record<NftFamily, XtTarget>> = {
  ip: { kind: 'REJECT', with: 'icmp-port-unreachable' },
  ip6: { kind: 'REJECT', with: 'icmp6-port-unreachable' },
}

export function comment(text: string): XtMatch {
  return { kind: 'comment', text }
}

export const PROTOCOLS: Readonly<Record<Protocol, XtProtocol>> = {
  TCP: { number: PROTOCOL_NUMBERS.TCP, inverted: false },
  UDP: { number: PROTOCOL_NUMBERS.UDP, inverted: false },
  SCTP: { number: PROTOCOL_NUMBERS.SCTP, inverted: false },
}

const MATCH_KINDS: Readonly<Record<Protocol, 'tcp' | 'udp' | 'sctp'>> = {
  TCP: 'tcp',
  UDP: 'udp',
  SCTP: 'sctp',
}

/** Makes the match `-m tcp`; with a port, `-m tcp --dport PORT`. */
export function transport(protocol: Protocol, port?: number): XtMatch {
  const kind = MATCH_KINDS[protocol]
  if (port === undefined) return { kind }
  return { kind, destinationPorts: { from: port, to: port, inverted: false } }
}

const KNOWN_STATES = xt.XT_CONNTRACK_STATE_RELATED | xt.XT_CONNTRACK_STATE_ESTABLISHED

export const NEW: XtMatch = states(xt.XT_CONNTRACK_STATE_NEW)
export const INVALID: XtMatch = states(xt.XT_CONNTRACK_STATE_INVALID)
const KNOWN: XtMatch = states(KNOWN_STATES)
const NEITHER_KNOWN_NOR_TRANSLATED: XtMatch = {
  kind: 'conntrack',
  states: KNOWN_STATES | xt.XT_CONNTRACK_STATE_DNAT,
  inverted: true,
}

function states(bits: number): XtMatch {
  return { kind: 'conntrack', states: bits, inverted: false }
}

export const FROM_LOCAL: XtMatch = {
  kind: 'addrtype',
  sourceTypes: xt.XT_ADDRTYPE_LOCAL,
  destinationTypes: 0,
}
export const TO_LOCAL: XtMatch = { kind: 'addrtype', sourceTypes: 0, destinationTypes: xt.XT_ADDRTYPE_LOCAL }

export function addressOf({ ip, bits }: Cidr, inverted = false): XtAddress {
  return { ip, mask: (ip.length === 4 ? MASKS_V4 : MASKS_V6)[bits] ?? '', inverted }
}

const MASKS_V4 = masks(4)
const MASKS_V6 = masks(16)

function masks(length: number): readonly Octets[] {
  return Array.from({ length: 8 * length + 1 }, (_, bits) => {
    let mask = ''
    for (let at = 0; at < length; at++) {
      const ones = Math.min(8, Math.max(0, bits - 8 * at))
      mask += String.fromCharCode((0xff00 >> ones) & 0xff)
    }
    return mask
  })
}

export function hostAddress(ip: Ip): XtAddress {
  return { ip, mask: ip.length === 4 ? HOST_V4 : HOST_V6, inverted: false }
}

const HOST_V4 = '\xff'.repeat(4)
const HOST_V6 = '\xff'.repeat(16)

/** Makes the condition for pods of this node, or with `inverted` for all other traffic. */
export function fromPods(detector: Detector, inverted: boolean): Pick<XtRule, 'source' | 'inInterface'> {
  if (detector.kind !== 'cidr') return { inInterface: interfaceOf(detector, inverted) }
  // The prefix contains all addresses: iptables omits such a condition.
  if (detector.cidr.bits === 0 && !inverted) return {}
  return { source: addressOf(detector.cidr, inverted) }
}

function interfaceOf(detector: Exclude<Detector, { kind: 'cidr' }>, inverted: boolean): XtInterface {
  const name = detector.kind === 'interface' ? detector.name : `${detector.prefix}+`
  return { name, inverted }
}

/**
 * The rule against martian packets. With route_localnet, neighbors could reach sockets that listen on loopback
 * addresses only (CVE-2020-8558). kubelet writes the same rule.
 */
export const MARTIAN: XtRule = {
  source: addressOf(LOOPBACKS.ip, true),
  destination: addressOf(LOOPBACKS.ip),
  matches: [comment('block incoming localnet connections'), NEITHER_KNOWN_NOR_TRANSLATED],
  target: DROP,
}

/** Makes the rule of KUBE-MARK-MASQ. */
export function markRule(mark: number): XtRule {
  return { matches: NO_MATCHES, target: { kind: 'MARK', value: mark, mask: mark } }
}

/** Makes the rules of KUBE-POSTROUTING that masquerade marked packets. */
export function masqueradeRules(mark: number): readonly [XtRule, ...XtRule[]] {
  return [
    { matches: [{ kind: 'mark', mark, mask: mark, inverted: true }], target: { kind: 'RETURN' } },
    // A packet that passes these chains a second time is not masqueraded again.
    { matches: NO_MATCHES, target: { kind: 'MARK', value: mark, mask: 0 } },
    {
      matches: [comment('kubernetes service traffic requiring SNAT')],
      target: { kind: 'MASQUERADE', randomFully: true },
    },
  ]
}

/** Makes the rules of KUBE-FORWARD that accept packets of Services. */
export function forwardRules(mark: number): readonly XtRule[] {
  const marked: XtMatch = { kind: 'mark', mark, mask: mark, inverted: false }
  return [
    { matches: [comment('kubernetes forwarding rules'), marked], target: ACCEPT },
    { matches: [comment('kubernetes forwarding conntrack rule'), KNOWN], target: ACCEPT },
  ]
}

/** Makes the rule that logs, within the limit, what another rule refuses for this reason. */
export function loggingRule(rule: XtRule, group: number, reason: VerdictReason): XtRule {
  return {
    ...rule,
    matches: [...rule.matches, { kind: 'limit', ...LOG_LIMIT }],
    target: { kind: 'NFLOG', group, prefix: logPrefix(reason), packetBytes: LOGGED_BYTES },
  }
}

/** Gives the NFLOG group of such a rule; undefined for any other. */
export function logGroupOfRule({ target }: XtRule): number | undefined {
  return target?.kind === 'NFLOG' && nameOfPrefix(target.prefix) !== undefined ? target.group : undefined
}
