import { cidrOf } from '../../base/cidr.ts'
import type { Ip } from '../../base/ip.ts'
import type { XtMatch, XtRule, XtTarget } from '../../kernel/xt/rule.ts'
import type { XtEntry } from '../../kernel/xt/scope.ts'
import type { Frontend, Route } from '../../model/frontend.ts'
import type { ChainNames } from '../xt-common/layout.ts'
import {
  ACCEPT,
  addressOf,
  comment,
  DROP,
  hostAddress,
  jump,
  PROTOCOLS,
  REJECT,
  TO_LOCAL,
  transport,
} from '../xt-common/rules-parts.ts'
import { entryIn, type PortRules } from './rules-port.ts'
import { NFACCT_LOCALHOST_ACCEPTED } from './settings.ts'

/** Makes the rules of one frontend in shared chains: rules that lead to its chains, or that reject clients. */
export function captureEntries(port: PortRules, frontend: Frontend): readonly XtEntry[] {
  const { kind, ip } = frontend
  if (ip === undefined) return nodePortEntries(port, frontend)
  return kind === 'ClusterIP' ? [clusterIpEntry(port, frontend, ip)] : externalEntries(port, frontend, ip)
}

/** Accepts packets to the health check node port. Load balancers query every node, whatever else it filters. */
export function healthCheckEntry(port: PortRules, number: number): XtEntry {
  return entryIn(port, 'filter', namesOf(port).nodePorts, {
    protocol: PROTOCOLS.TCP,
    matches: [comment(`${port.port.displayName} health check node port`), transport('TCP', number)],
    target: ACCEPT,
  })
}

function namesOf({ statics }: PortRules): ChainNames {
  return statics.options.names
}

/** The comment and the target of a rule for packets to one port of an address. */
interface Words {
  readonly text: string
  readonly target: XtTarget
}

function ruleTo({ port }: PortRules, ip: Ip, number: number, { text, target }: Words): XtRule {
  return {
    protocol: PROTOCOLS[port.protocol],
    destination: hostAddress(ip),
    matches: [comment(text), transport(port.protocol, number)],
    target,
  }
}

/** Returns how clients without an endpoint are refused; undefined when every client has one. */
function refusalOf({ port, family }: PortRules, route: Route): Words | undefined {
  const { displayName, local } = port
  if (route.kind === 'reject') return { text: `${displayName} has no endpoints`, target: REJECT[family] }
  const isWithoutLocal = route.kind === 'drop' || (route.kind === 'external-local' && local.length === 0)
  return isWithoutLocal ? { text: `${displayName} has no local endpoints`, target: DROP } : undefined
}

function clusterIpEntry(port: PortRules, { port: number, route }: Frontend, ip: Ip): XtEntry {
  const refusal = refusalOf(port, route)
  if (refusal !== undefined)
    return entryIn(port, 'filter', namesOf(port).services, ruleTo(port, ip, number, refusal))
  const { svc, svl } = port.chains
  const isLocal = route.kind === 'internal' && route.over === 'local'
  const words = { text: `${port.port.displayName} cluster IP`, target: jump(isLocal ? svl : svc) }
  return entryIn(port, 'nat', namesOf(port).services, ruleTo(port, ip, number, words))
}

function externalEntries(port: PortRules, frontend: Frontend, ip: Ip): readonly XtEntry[] {
  const { kind, port: number, route, sourceRanges } = frontend
  const { displayName } = port.port
  const { ext, fw } = port.chains
  const entries: XtEntry[] = []
  if (route.kind !== 'reject') {
    const text = `${displayName} ${kind === 'ExternalIP' ? 'external' : 'loadbalancer'} IP`
    const target = jump(sourceRanges === undefined ? ext : fw)
    entries.push(entryIn(port, 'nat', namesOf(port).services, ruleTo(port, ip, number, { text, target })))
    if (sourceRanges !== undefined) {
      // Packets that the chain let through have another destination at this point.
      const others = { text: `${displayName} traffic not accepted by ${fw}`, target: DROP }
      entries.push(entryIn(port, 'filter', namesOf(port).proxyFirewall, ruleTo(port, ip, number, others)))
    }
  }
  const refusal = refusalOf(port, route)
  if (refusal !== undefined)
    entries.push(entryIn(port, 'filter', namesOf(port).externalServices, ruleTo(port, ip, number, refusal)))
  return entries
}

const LOOPBACK = addressOf(cidrOf('\x7f\0\0\0', 8))
const LOOPBACK_COUNTER: XtMatch = { kind: 'nfacct', name: NFACCT_LOCALHOST_ACCEPTED }

function nodePortEntries(port: PortRules, { port: number, route }: Frontend): readonly XtEntry[] {
  const { displayName } = port.port
  const protocol = PROTOCOLS[port.port.protocol]
  const atPort = transport(port.port.protocol, number)
  const entries: XtEntry[] = []
  if (route.kind !== 'reject') {
    const matches = [comment(displayName), atPort]
    const rule: XtRule = { protocol, matches, target: jump(port.chains.ext) }
    if (port.ofFamily.loopback && port.statics.options.nfacct.localhostAccepted) {
      const counting = { ...rule, destination: LOOPBACK, matches: [...matches, LOOPBACK_COUNTER] }
      // The counting rule must come first: packets that match the other rule do not reach later ones.
      const sequence = `${port.port.protocol}/${number}`
      entries.push({ ...entryIn(port, 'nat', namesOf(port).nodePorts, counting), sequence })
      entries.push({ ...entryIn(port, 'nat', namesOf(port).nodePorts, rule), sequence })
    } else entries.push(entryIn(port, 'nat', namesOf(port).nodePorts, rule))
  }
  const refusal = refusalOf(port, route)
  if (refusal !== undefined) {
    const { text, target } = refusal
    const matches = [comment(text), TO_LOCAL, atPort]
    entries.push(entryIn(port, 'filter', namesOf(port).externalServices, { protocol, matches, target }))
  }
  return entries
}
