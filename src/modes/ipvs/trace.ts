import { finish } from '../../base/clock.ts'
import { append } from '../../base/collections.ts'
import type { Config } from '../../config/config.ts'
import type { IpsetEntry } from '../../kernel/ipset/state.ts'
import type { IpvsHeld } from '../../kernel/ipvs/state.ts'
import { printRule } from '../../kernel/xt/print.ts'
import type { XtTableName } from '../../kernel/xt/scope.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { type Promises, USUAL_PROMISES } from '../../model/promises.ts'
import type { TracedRules } from '../common/traced-rules.ts'
import type { Proving } from '../mode.ts'
import { isIpvsChain } from '../xt-common/layout.ts'
import { type Traceable, tracedChains } from '../xt-common/read-chains.ts'
import { renderIpvsState } from './render.ts'
import { ipvsOptions } from './settings.ts'
import { EMPTY_STATE, type IpvsState } from './state.ts'

/**
 * Gives our tables, the ipsets and IPVS; the addresses of the dummy device are addresses of the node. `found` are the
 * iptables chains that were read together with a state.
 */
export function tracedIpvs(state: IpvsState, found = chainsIn(state)): TracedRules {
  const chains = found && tracedChains(found)
  return {
    tables: [...state.ruleset.tables, ...(chains?.tables ?? [])],
    ...(chains === undefined ? {} : { print: chains.print }),
    ipvs: ipvsHeld(state),
  }
}

export function tracedIpvsConfig(config: Config, table: FrontendTable): TracedRules {
  const options = { ...ipvsOptions(config), missingSchedulers: NONE_MISSING }
  return tracedIpvs(finish(renderIpvsState(table, { base: EMPTY_STATE, without: new Set() }, options)))
}

const NONE_MISSING: ReadonlySet<string> = new Set()

/** Gives the iptables chains; undefined where all rules are in our own tables. */
function chainsIn({ chains }: IpvsState): Traceable | undefined {
  if (chains.kind !== 'wanted' || chains.fixed === undefined) return undefined
  const { fixed } = chains
  return { chains: fixed.chains.values(), jumps: fixed.jumps, print: printRule }
}

/** Gives what a kernel holds beside nf_tables after a commit of a state; of addresses, those of our device. */
export function ipvsHeld({ servers, sets, entries, addresses }: IpvsState): IpvsHeld {
  const bySet = new Map<string, IpsetEntry[]>()
  for (const { set, entry } of entries.values()) append(bySet, set, entry)
  return {
    servers: [...servers.values()].map(({ server, destinations }) => ({
      server,
      destinations: [...destinations.values()],
    })),
    ipsets: [...sets.values()].map(set => ({ set, entries: bySet.get(set.name) ?? [] })),
    addresses: [...addresses.values()].map(({ ip }) => ip),
  }
}

/** The differences from nftables mode: docs/differences.md. */
const IPVS_PROMISES: Promises = {
  ...USUAL_PROMISES,
  bindsAddresses: true,
  masqueradesDirectly: true,
  balances: true,
  failsOver: false,
  roundsShares: false,
}

export function ipvsProving({ ipvs }: Pick<Config, 'ipvs'>): Proving {
  if (ipvs.rules !== 'iptables') return { promises: IPVS_PROMISES, usesIpvs: true }
  return {
    promises: { ...IPVS_PROMISES, kubeProxyChains: true },
    usesIpvs: true,
    owns: isIpvsChainOf,
    assumes: ['no packet to a Service arrives through a port of a bridge (physdev)'],
  }
}

const TABLES: readonly XtTableName[] = ['filter', 'nat']

function isIpvsChainOf(table: string, chain: string): boolean {
  return TABLES.some(its => its === table && isIpvsChain(its, chain))
}
