import { isLoopback } from '../../base/ip.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import type { FrontendTable, NodePortAddresses } from '../../model/frontend.ts'
import { type Detector, detectorFor } from '../common/detector.ts'
import { forFamilies, LAYOUTS } from '../common/family.ts'
import { type List, listsOf } from './optimize/lists.ts'
import type { IptablesOptions } from './settings.ts'

/** The inputs of the rules of every Service, besides the Service. */
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
  const { names, masqueradeAll, optimize, nfacct } = options
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
  ])
  const { masqueradeBit, tcpBeLiberal } = options
  const rest = [masqueradeBit, tcpBeLiberal, nfacct.invalidDropped, ip.nodePorts, ip6.nodePorts]
  const key = `${serviceKey} ${JSON.stringify(rest)}`
  return { options, large, families, lists: listsOf(names), key, serviceKey }
}

function hasLoopback(nodePorts: NodePortAddresses): boolean {
  return nodePorts.kind === 'all' || nodePorts.ips.some(isLoopback)
}
