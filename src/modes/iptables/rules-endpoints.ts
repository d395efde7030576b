import { formatIpPort } from '../../base/ip.ts'
import type { XtMatch, XtRule } from '../../kernel/xt/rule.ts'
import type { XtChain } from '../../kernel/xt/scope.ts'
import type { Backend, Frontend } from '../../model/frontend.ts'
import { endpointChain } from '../xt-common/layout.ts'
import {
  comment,
  fromPods,
  hostAddress,
  jump,
  NO_MATCHES,
  PROTOCOLS,
  transport,
} from '../xt-common/rules-parts.ts'
import { natChain, type PortRules } from './rules-port.ts'

interface Place {
  readonly backend: Backend
  /** `10.180.0.1:80` */
  readonly text: string
  readonly chain: string
}

/** Makes KUBE-SVC, KUBE-SVL and KUBE-SEP: how a connection finds its endpoint. */
export function endpointChains(port: PortRules): readonly XtChain[] {
  const { uses, chains } = port
  const { cluster, local } = placesOf(port)
  const lists: XtChain[] = []
  if (uses.cluster) lists.push(listChain(port, chains.svc, cluster))
  if (uses.local) lists.push(listChain(port, chains.svl, local))
  return [...lists, ...distinct(cluster, local).map(place => placeChain(port, place))]
}

/** Returns the endpoints of both lists, as far as they are in use, sorted by text. */
function placesOf(rules: PortRules): {
  readonly cluster: readonly Place[]
  readonly local: readonly Place[]
} {
  const { port, uses } = rules
  const cluster = uses.cluster ? port.cluster.map(backend => placeOf(rules, backend)) : NO_PLACES
  if (!uses.local) return { cluster: sorted(cluster), local: NO_PLACES }
  const byText = new Map(cluster.map(place => [place.text, place]))
  const local = port.local.map(backend => byText.get(textOf(backend)) ?? placeOf(rules, backend))
  return { cluster: sorted(cluster), local: sorted(local) }
}

const NO_PLACES: readonly Place[] = []

function textOf({ ip, port }: Backend): string {
  return formatIpPort(ip, port)
}

function placeOf({ port, statics }: PortRules, backend: Backend): Place {
  const { displayName, protocol } = port
  const text = textOf(backend)
  const chain = endpointChain(statics.options.names, { displayName, protocol, ipPort: text })
  return { backend, text, chain }
}

/** Sorts by text, as kube-proxy does: 10.0.0.10 comes before 10.0.0.9. */
function sorted(places: readonly Place[]): readonly Place[] {
  return places.toSorted((a, b) => (a.text < b.text ? -1 : a.text > b.text ? 1 : 0))
}

function distinct(cluster: readonly Place[], local: readonly Place[]): readonly Place[] {
  if (local.length === 0) return cluster
  const known = new Set(cluster)
  const rest = local.filter(place => !known.has(place))
  return rest.length === 0 ? cluster : [...cluster, ...rest]
}

/**
 * Makes the chain of a list: remembered clients first, then random choice. Of the remaining n endpoints, each rule
 * takes one connection in n.
 */
function listChain(port: PortRules, name: string, places: readonly Place[]): XtChain {
  const { displayName, affinityTimeoutS: seconds } = port.port
  const about = places.map(({ text }) => aboutEndpoint(port, `${displayName} -> ${text}`))
  const rules: XtRule[] = [...masqueradeRules(port, name)]
  if (seconds > 0) {
    places.forEach(({ chain }, index) => {
      const known: XtMatch = { kind: 'recent', mode: 'rcheck', name: chain, seconds, reap: true }
      rules.push({ matches: [...(about[index] ?? NO_MATCHES), known], target: jump(chain) })
    })
  }
  places.forEach(({ chain }, index) => {
    const left = places.length - index
    const words = about[index] ?? NO_MATCHES
    rules.push({ matches: left === 1 ? words : [...words, oneOf(left)], target: jump(chain) })
  })
  return natChain(port, name, rules)
}

/**
 * Makes the match for one in `count`, rounded as `--probability 0.3333333333`: ten decimals, in units of 1 / 2^31.
 */
function oneOf(count: number): XtMatch {
  return { kind: 'statistic', probability: Math.round(2 ** 31 * Number((1 / count).toFixed(10))) }
}

/**
 * Makes the comment of an endpoint's rules. In clusters with very many endpoints there is none, because comments
 * would take a large share of the kernel's memory.
 */
function aboutEndpoint({ statics }: PortRules, text: string): readonly XtMatch[] {
  return statics.large ? NO_MATCHES : [comment(text)]
}

/**
 * Masquerades clients outside the cluster that connect to the ClusterIP, so that replies come back through this node.
 */
function masqueradeRules(port: PortRules, name: string): readonly XtRule[] {
  const { displayName, protocol, frontends } = port.port
  return frontends.flatMap(frontend => {
    const { ip, port: number } = frontend
    if (ip === undefined || chainOf(port, frontend) !== name) return []
    const who = whoIsMasqueraded(port)
    if (who === undefined) return []
    return {
      ...who,
      protocol: PROTOCOLS[protocol],
      destination: hostAddress(ip),
      matches: [comment(`${displayName} cluster IP`), transport(protocol, number)],
      target: jump(port.statics.options.names.markMasq),
    }
  })
}

/** Returns the chain that a ClusterIP leads to. */
function chainOf({ chains }: PortRules, { kind, route }: Frontend): string | undefined {
  if (kind !== 'ClusterIP' || route.kind !== 'internal') return undefined
  return route.over === 'local' ? chains.svl : chains.svc
}

/** Returns the condition for masquerading; undefined when nothing is masqueraded. */
function whoIsMasqueraded({
  statics,
  ofFamily,
}: PortRules): Pick<XtRule, 'source' | 'inInterface'> | undefined {
  if (statics.options.masqueradeAll) return {}
  return ofFamily.detector === undefined ? undefined : fromPods(ofFamily.detector, true)
}

function placeChain(port: PortRules, { backend, chain }: Place): XtChain {
  const { markMasq } = port.statics.options.names
  const { displayName, protocol, affinityTimeoutS } = port.port
  const about = aboutEndpoint(port, displayName)
  const remember: XtMatch = { kind: 'recent', mode: 'set', name: chain, seconds: 0, reap: false }
  const remembering = affinityTimeoutS > 0 ? [...about, remember] : about
  return natChain(port, chain, [
    // Without this, an endpoint that connects to itself would reply to itself directly, past the translation.
    { source: hostAddress(backend.ip), matches: about, target: jump(markMasq) },
    {
      protocol: PROTOCOLS[protocol],
      matches: [...remembering, transport(protocol)],
      target: { kind: 'DNAT', ip: backend.ip, port: backend.port },
    },
  ])
}
