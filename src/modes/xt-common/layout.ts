import * as crypto from 'node:crypto'
import { type Octets, readU32be } from '../../base/octets.ts'
import type { Touched } from '../../kernel/nft/monitor.ts'
import type { Observed, ObservedRule } from '../../kernel/nft/state.ts'
import { readRule } from '../../kernel/xt/read.ts'
import { targetChain } from '../../kernel/xt/rule.ts'
import {
  chainKey,
  type IsOurs,
  placeOfTable,
  type ScopeOperations,
  type XtPlace,
  type XtTableName,
} from '../../kernel/xt/scope.ts'
import type { Protocol } from '../../model/service.ts'

const BASE32 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'

/** Returns the first 16 characters of SHA-256 in base32 (RFC 4648): names of chains have room for 28. */
export function base32Hash(text: string): string {
  const digest = sha256(text)
  return base32(readU32be(digest), digest.charCodeAt(4)) + base32(readU32be(digest, 5), digest.charCodeAt(9))
}

/**
 * Hashes without an object for each hash, which takes a fifth of the time: every endpoint has its hash. Node has this
 * function since 20.12.
 */
const sha256: (text: string) => Octets =
  'hash' in crypto
    ? text => crypto.hash('sha256', text, 'binary')
    : text => crypto.createHash('sha256').update(text).digest('binary')

/** Formats five bytes as eight characters. The bytes are a number of four bytes and a number of one byte. */
export function base32(high: number, low: number): string {
  let text = ''
  for (let shift = 27; shift > 0; shift -= 5) text += BASE32.charAt((high >>> shift) & 31)
  return text + BASE32.charAt(((high & 3) << 3) | (low >>> 5)) + BASE32.charAt(low & 31)
}

/** The prefix of kube-proxy's chains, without the hyphen. */
const KUBE = 'KUBE'

/** The names of the chains of one proxy. Beside these it has chains of Services, and chains that the optimizer adds. */
export interface ChainNames {
  /** The value of --service-proxy-name; undefined for the unnamed proxy. */
  readonly proxy: string | undefined
  /** The prefix of all names, without the hyphen. */
  readonly prefix: string
  readonly services: string
  readonly externalServices: string
  readonly nodePorts: string
  readonly forward: string
  readonly proxyFirewall: string
  readonly postrouting: string
  readonly markMasq: string
  /** The chain that protects 127.0.0.0/8 from neighbors. The unnamed proxy shares it with kubelet. */
  readonly firewall: string
}

/**
 * Returns the names of the chains of a proxy. Those of the unnamed proxy are the names of kube-proxy's iptables mode
 * (1.36): people and tools expect them, and either program can take over from the other. kube-proxy removes unknown
 * chains with its own prefix. The prefix of a named proxy is as long as chain names of 28 characters allow.
 */
export function chainNames(proxy: string | undefined): ChainNames {
  const prefix = proxy === undefined ? KUBE : `KP${base32Hash(proxy).slice(0, 5)}`
  return {
    proxy,
    prefix,
    services: `${prefix}-SERVICES`,
    externalServices: `${prefix}-EXTERNAL-SERVICES`,
    nodePorts: `${prefix}-NODEPORTS`,
    forward: `${prefix}-FORWARD`,
    proxyFirewall: `${prefix}-PROXY-FIREWALL`,
    postrouting: `${prefix}-POSTROUTING`,
    markMasq: `${prefix}-MARK-MASQ`,
    firewall: `${prefix}-FIREWALL`,
  }
}

export const KUBE_CHAINS = chainNames(undefined)

/** A chain in every table of the unnamed proxy. If it is gone, another program flushed the rules. */
export const KUBE_PROXY_CANARY = 'KUBE-PROXY-CANARY'

const OF_A_NAME = /^(KP[A-Z2-7]{5})-/

/** Returns the prefix of a named proxy that a chain has, if any. Only a hint: other programs may use such names. */
export function namedPrefixOf(chain: string): string | undefined {
  return OF_A_NAME.exec(chain)?.[1]
}

function fixedNames(names: ChainNames, table: XtTableName): readonly string[] {
  const { proxy, services, externalServices, nodePorts, forward, proxyFirewall, firewall } = names
  const outer = proxy === undefined ? [KUBE_PROXY_CANARY] : []
  switch (table) {
    case 'filter': {
      const ours = proxy === undefined ? [] : [firewall]
      return [services, externalServices, nodePorts, forward, proxyFirewall, ...ours, ...outer]
    }
    case 'nat':
      return [services, nodePorts, names.postrouting, names.markMasq, ...outer]
    case 'mangle':
      return outer
  }
}

/** Tests whether this mode writes such a chain. Without a proxy name, our chains have the names of kube-proxy's. */
export function isOurChain(names: ChainNames, table: XtTableName, name: string): boolean {
  if (!name.startsWith(names.prefix)) return false
  return (
    isServiceChain(names, table, name) ||
    fixedNames(names, table).includes(name) ||
    isDispatchChain(names.prefix, table, name)
  )
}

/** Returns whether the chain is always written as a whole, never rule by rule. */
export function isServiceChain(names: ChainNames, table: XtTableName, name: string): boolean {
  return table === 'nat' && serviceChainKind(names, name) !== undefined
}

type ServiceChainKind = 'SVC' | 'SVL' | 'EXT' | 'FW' | 'SEP'

const KINDS: readonly ServiceChainKind[] = ['SEP', 'SVC', 'SVL', 'EXT', 'FW']
const HASH = /^[A-Z2-7]{16}$/

/** Returns the purpose of a chain of a Service; undefined for all other chains. */
export function serviceChainKind({ prefix }: ChainNames, name: string): ServiceChainKind | undefined {
  if (!name.startsWith(`${prefix}-`) || !HASH.test(name.slice(-16))) return undefined
  const middle = name.slice(prefix.length, -16)
  return KINDS.find(kind => middle === `-${kind}-`)
}

export interface PortChains {
  /**
   * Endpoints anywhere, endpoints on this node, entry for outside clients, and source ranges of load-balancer
   * addresses.
   */
  readonly svc: string
  readonly svl: string
  readonly ext: string
  readonly fw: string
}

const PROTOCOLS: Readonly<Record<Protocol, string>> = { TCP: 'tcp', UDP: 'udp', SCTP: 'sctp' }

/** Names the chains of a port; `displayName` as in PortFrontends. */
export function portChains(names: ChainNames, displayName: string, protocol: Protocol): PortChains {
  const hash = base32Hash(displayName + PROTOCOLS[protocol])
  const chain = (kind: ServiceChainKind): string => serviceChain(names, kind, hash)
  return { svc: chain('SVC'), svl: chain('SVL'), ext: chain('EXT'), fw: chain('FW') }
}

/** An endpoint of a port; `ipPort` as `10.180.0.1:80`. */
interface EndpointName {
  readonly displayName: string
  readonly protocol: Protocol
  readonly ipPort: string
}

export function endpointChain(names: ChainNames, { displayName, protocol, ipPort }: EndpointName): string {
  return serviceChain(names, 'SEP', base32Hash(displayName + PROTOCOLS[protocol] + ipPort))
}

/** Names a chain; `hash` has 16 characters, as base32Hash gives them. */
export function serviceChain({ prefix }: ChainNames, kind: ServiceChainKind, hash: string): string {
  return `${prefix}-${kind}-${hash}`
}

/** The prefixes of the chains that lists of entries are divided among. */
interface DispatchNames {
  readonly natAddresses: string
  readonly natPorts: { readonly TCP: string; readonly UDP: string }
  /** In the table filter. */
  readonly services: string
  readonly externalServices: string
  readonly proxyFirewall: string
  readonly healthPorts: string
}

/**
 * Names the chains that entries are divided among. In nat they begin as chains of Services do: when kube-proxy takes
 * over, it removes unknown chains with that prefix, in the same batch as the chains that these lead to. A prefix
 * longer than KUBE leaves less room, because names have 28 characters.
 */
export function dispatchNames(prefix: string): DispatchNames {
  const isKube = prefix === KUBE
  return {
    natAddresses: `${prefix}-SVC-IP`,
    natPorts: { TCP: `${prefix}-SVC-TCP`, UDP: `${prefix}-SVC-UDP` },
    services: `${prefix}-SERVICES-IP`,
    externalServices: isKube ? `${prefix}-EXTERNAL-SERVICES-IP` : `${prefix}-EXTERNAL-IP`,
    proxyFirewall: `${prefix}-PROXY-FIREWALL-IP`,
    healthPorts: isKube ? `${prefix}-NODEPORTS` : `${prefix}-HEALTH`,
  }
}

/* The part of a name after the prefix. */
const NAT = /^-SVC-(?:IP(?:-[0-9A-F]{1,2})?|(?:TCP|UDP)-\d{1,5}-\d{1,5})$/
const FILTER_OF_KUBE =
  /^-(?:(?:SERVICES|EXTERNAL-SERVICES|PROXY-FIREWALL)-IP(?:-[0-9A-F])?|NODEPORTS-\d{1,5}-\d{1,5})$/
const FILTER_OF_A_NAME = /^-(?:(?:SERVICES|EXTERNAL|PROXY-FIREWALL)-IP(?:-[0-9A-F])?|HEALTH-\d{1,5}-\d{1,5})$/

/** Returns whether a chain is one that the optimizer adds to the fixed chains. */
function isDispatchChain(prefix: string, table: 'filter' | 'nat' | 'mangle', name: string): boolean {
  if (table === 'mangle' || !name.startsWith(prefix)) return false
  const filter = prefix === KUBE ? FILTER_OF_KUBE : FILTER_OF_A_NAME
  return (table === 'nat' ? NAT : filter).test(name.slice(prefix.length))
}

/* The names of the chains of kube-proxy's IPVS mode. */

export const KUBE_NODE_PORT = 'KUBE-NODE-PORT'
export const KUBE_LOAD_BALANCER = 'KUBE-LOAD-BALANCER'
export const KUBE_SOURCE_RANGES_FIREWALL = 'KUBE-SOURCE-RANGES-FIREWALL'
export const KUBE_IPVS_FILTER = 'KUBE-IPVS-FILTER'
export const KUBE_IPVS_OUT_FILTER = 'KUBE-IPVS-OUT-FILTER'

const NAMES: Readonly<Record<XtTableName, ReadonlySet<string>>> = {
  nat: new Set([
    KUBE_CHAINS.services,
    KUBE_CHAINS.postrouting,
    KUBE_NODE_PORT,
    KUBE_LOAD_BALANCER,
    KUBE_CHAINS.markMasq,
  ]),
  filter: new Set([
    KUBE_CHAINS.forward,
    KUBE_NODE_PORT,
    KUBE_CHAINS.proxyFirewall,
    KUBE_SOURCE_RANGES_FIREWALL,
    KUBE_IPVS_FILTER,
    KUBE_IPVS_OUT_FILTER,
  ]),
  mangle: new Set(),
}

/** Returns whether kube-proxy's IPVS mode has a chain of this name. Its iptables mode may have it too. */
export function isIpvsChain(table: XtTableName, name: string): boolean {
  return NAMES[table].has(name)
}

/** iptables mode and IPVS mode with rules of iptables cannot run at once: each would undo the other's changes. */
export const SAME_CHAINS =
  'iptables mode and IPVS mode with --ipvs-rules=iptables use chains of the same names; restart kprobe to change from one to the other'

/**
 * Returns whether a commit of another program concerns us: it changes our chains, rules of other chains that lead to them, or
 * whole tables. A notification names a deleted rule by its handle alone. If the handle is unknown, the rule may have
 * been ours.
 */
export function touchesUs(touched: Touched, others: OtherChains, names: ChainNames): boolean {
  return touchesScope(
    touched,
    others,
    (table, name) => name === names.firewall || isOurChain(names, table, name),
  )
}

/** Does the same for any set of chains that `isOursIn` defines. */
export function touchesScope(
  { family, table, chain, handle, targets }: Touched,
  others: OtherChains,
  isOursIn: IsOurs,
): boolean {
  const place = placeOfTable(`${family} ${table}`)
  if (place === undefined) return false
  const isOurs = (name: string): boolean => isOursIn(place.table, name)
  if (chain === undefined || isOurs(chain) || targets().some(isOurs)) return true
  return handle !== undefined && others.mayHaveLed({ ...place, chain, handle }, isOurs)
}

interface RuleGone extends XtPlace {
  readonly chain: string
  readonly handle: bigint
}

/** The rules in chains of other programs, as they were last read, some of which lead to our chains. */
export class OtherChains {
  /** By chainKey. */
  readonly #chains = new Map<string, readonly ObservedRule[]>()

  /** Stores what was read, in place of all before; undefined for a listing that may lack rules. */
  read(observed: Observed | undefined, isOurs: IsOurs): void {
    this.#chains.clear()
    for (const [key, { chains }] of observed ?? []) {
      const place = placeOfTable(key)
      if (place === undefined) continue
      for (const { name, rules } of chains.values())
        if (!isOurs(place.table, name)) this.#chains.set(chainKey(place, name), rules)
    }
  }

  /** Forgets the chains that get a jump of ours: its handle is not known before they are read again. */
  wrote(operations: ScopeOperations): void {
    for (const operation of operations)
      if (operation.verb === 'insert-rule') this.#chains.delete(chainKey(operation, operation.chain))
  }

  /** Returns whether a deleted rule may have led to a chain of ours. */
  mayHaveLed({ family, table, chain, handle }: RuleGone, isOurs: (chain: string) => boolean): boolean {
    const rules = this.#chains.get(chainKey({ family, table }, chain))
    if (rules === undefined) return true
    const rule = rules.find(each => each.handle === handle)
    const target = rule && targetChain(readRule(rule.compiled, family))
    return target !== undefined && isOurs(target)
  }
}
