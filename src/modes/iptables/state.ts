import type { PersistentMap } from '../../base/collections.ts'
import { isLoopback } from '../../base/ip.ts'
import type { NftFamily, Observed } from '../../kernel/nft/state.ts'
import type { FixedRules } from '../../kernel/xt/scope.ts'
import type { Refusal } from '../../model/fields.ts'
import type { FrontendTable, NodePortAddresses } from '../../model/frontend.ts'
import { type Detector, detectorFor } from '../common/detector.ts'
import { forFamilies, LAYOUTS } from '../common/tables.ts'
import type { Extent } from '../mode.ts'
import { type ChainNames, serviceChainKind } from '../xt-common/layout.ts'
import { type List, listsOf } from './optimize/dispatch.ts'
import type { IptablesOptions } from './settings.ts'

/** The objects of ours that the kernel holds, or should hold. */
export type IptablesState = RenderedState | ObservedState

/**
 * A state without rules: rules depend on the Services and the statics, and are made when a diff needs them. A state
 * therefore takes only the memory of what it does not share with the one before.
 */
export interface RenderedState {
  readonly kind: 'rendered'
  readonly frontends: FrontendTable
  readonly without: ReadonlySet<string>
  readonly statics: Statics
  /** The objects that exist without Services. They are made again only with the statics. */
  readonly fixed: FixedRules
  /** The number of distinct endpoints, summed over all ports of all Services. */
  readonly endpoints: number
  /** The number of Services that need a shared chain, by `ip nat NAME`. */
  readonly sharedChains: PersistentMap<number>
  readonly refusals: ReadonlyMap<string, readonly Refusal[]>
}

export interface ObservedState {
  readonly kind: 'observed'
  readonly observed: Observed
  readonly refusals: ReadonlyMap<string, readonly Refusal[]>
}

/** The state of a kernel in which nothing of ours exists. */
export const EMPTY_STATE: ObservedState = { kind: 'observed', observed: new Map(), refusals: new Map() }

/** Counts ports that have an endpoint, each by its chain. For a rendered state, the chains that it will have count. */
export function iptablesExtent(state: IptablesState, names: ChainNames): Extent {
  if (state.kind === 'rendered') {
    const ports = state.frontends.services.values().flatMap(service => service.ports)
    const served = ports.filter(({ cluster, local }) => cluster.length + local.length > 0)
    return { frontends: served.length, endpoints: state.endpoints }
  }
  const kinds = [...state.observed].flatMap(([, { chains }]) =>
    [...chains.keys()].map(name => serviceChainKind(names, name)),
  )
  const frontends = kinds.filter(kind => kind === 'SVC' || kind === 'SVL').length
  return { frontends, endpoints: kinds.filter(kind => kind === 'SEP').length }
}

export interface Statics {
  readonly options: IptablesOptions
  /** More than LARGE_ENDPOINTS endpoints: rules about single endpoints have no comments. */
  readonly large: boolean
  readonly families: Readonly<Record<NftFamily, FamilyStatics>>
  /** The lists that the optimizer divides. */
  readonly lists: readonly List[]
  /** Equal for statics with the same rules. */
  readonly key: string
  /** Equal for statics with the same rules of Services; other chains may differ. */
  readonly serviceKey: string
}

export interface FamilyStatics {
  readonly detector: Detector | undefined
  readonly nodePorts: NodePortAddresses
  /** Returns whether node ports are served at loopback addresses. */
  readonly loopback: boolean
}

/** The threshold of kube-proxy. */
export const LARGE_ENDPOINTS = 1_000

export function staticsOf(
  options: IptablesOptions,
  frontends: Pick<FrontendTable, 'node' | 'nodePorts'>,
  large: boolean,
): Statics {
  const families = forFamilies((family): FamilyStatics => {
    const { model } = LAYOUTS[family]
    const nodePorts = frontends.nodePorts[model]
    return {
      detector: detectorFor(model, options, frontends.node),
      nodePorts,
      loopback: family === 'ip' && options.localhostNodePorts && hasLoopback(nodePorts),
    }
  })
  const { names, masqueradeAll, optimize, nfacct, logGroup } = options
  const { ip, ip6 } = families
  const serviceKey = JSON.stringify([
    names.prefix,
    masqueradeAll,
    optimize,
    nfacct.localhostAccepted,
    large,
    ip.detector ?? null,
    ip6.detector ?? null,
    ip.loopback,
    logGroup,
  ])
  const { masqueradeBit, tcpBeLiberal } = options
  const rest = [masqueradeBit, tcpBeLiberal, nfacct.invalidDropped, ip.nodePorts, ip6.nodePorts]
  const key = `${serviceKey} ${JSON.stringify(rest)}`
  return { options, large, families, lists: listsOf(names), key, serviceKey }
}

function hasLoopback(nodePorts: NodePortAddresses): boolean {
  return nodePorts.kind === 'all' || nodePorts.ips.some(isLoopback)
}
