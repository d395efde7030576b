import type { Cidr } from '../../base/cidr.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import type { XtRule } from '../../kernel/xt/rule.ts'
import type { XtChain, XtEntry, XtTableName } from '../../kernel/xt/scope.ts'
import type { PortFrontends } from '../../model/frontend.ts'
import { type PortChains, portChains } from '../xt-common/layout.ts'
import type { FamilyStatics, Statics } from './statics.ts'

/** One port of one Service in one family, with the inputs of its rules. */
export interface PortRules {
  readonly port: PortFrontends
  readonly family: NftFamily
  readonly statics: Statics
  readonly ofFamily: FamilyStatics
  readonly chains: PortChains
  readonly uses: Uses
}

/** The chains that a port needs: those that a frontend leads to. */
interface Uses {
  readonly cluster: boolean
  readonly local: boolean
  /** For addresses beside the ClusterIP, with the policy that applies there. */
  readonly external: 'cluster' | 'local' | undefined
  /**
   * The clients that may connect to load-balancer addresses; undefined for all. All addresses of a Service have the
   * same.
   */
  readonly clients: readonly Cidr[] | undefined
}

export function portRules(port: PortFrontends, statics: Statics): PortRules {
  const family = port.family === 'IPv4' ? 'ip' : 'ip6'
  return {
    port,
    family,
    statics,
    ofFamily: statics.families[family],
    chains: portChains(statics.options.names, port.displayName, port.protocol),
    uses: usesOf(port),
  }
}

function usesOf({ frontends, cluster, local }: PortFrontends): Uses {
  let usesCluster = false
  let usesLocal = false
  let external: Uses['external']
  let clients: Uses['clients']
  for (const frontend of frontends) {
    const { route, sourceRanges, writtenRanges } = frontend
    if (route.kind === 'reject' || route.kind === 'drop') continue
    if (route.kind === 'internal') {
      usesCluster ||= route.over === 'cluster'
      usesLocal ||= route.over === 'local'
      continue
    }
    usesCluster = true
    usesLocal ||= route.kind === 'external-local'
    external = route.kind === 'external-local' ? 'local' : 'cluster'
    clients ??= writtenRanges ?? sourceRanges
  }
  return {
    cluster: usesCluster && cluster.length > 0,
    local: usesLocal && local.length > 0,
    external,
    clients,
  }
}

export function natChain({ family }: PortRules, name: string, rules: readonly XtRule[]): XtChain {
  return { family, table: 'nat', name, rules, last: NO_RULES }
}

const NO_RULES: readonly XtRule[] = []

export function entryIn({ family }: PortRules, table: XtTableName, chain: string, rule: XtRule): XtEntry {
  return { family, table, chain, rule }
}
