import { finish, type Steps } from '../../base/clock.ts'
import { append, PersistentMap } from '../../base/collections.ts'
import type { Config } from '../../config/config.ts'
import type { IpsetEntry } from '../../kernel/ipset/state.ts'
import type { HeldServer, IpvsChange, IpvsHeld } from '../../kernel/ipvs/state.ts'
import type { AnyTable } from '../../kernel/nft/state.ts'
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
import { EMPTY_STATE, type IpvsState, type PlacedServer } from './state.ts'

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
  if (chains.kind !== 'wanted' || chains.common === undefined) return undefined
  const { common } = chains
  return { chains: common.chains.values(), jumps: common.jumps, print: printRule }
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

/** What this mode does otherwise than nftables mode: docs/differences.md. */
const IPVS_PROMISES: Promises = {
  ...USUAL_PROMISES,
  bindsAddresses: true,
  masqueradesDirectly: true,
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

/**
 * Gives what all tables hold after the commits that lead from one state to another; undefined where these changed chains
 * in the tables of iptables, or one of our tables is not known.
 */
export function* advancedTables(
  tables: readonly AnyTable[],
  from: Pick<IpvsState, 'chains'>,
  { chains, ruleset }: Pick<IpvsState, 'chains' | 'ruleset'>,
): Steps<readonly AnyTable[] | undefined> {
  if (commonIn(from) !== commonIn({ chains })) return undefined
  const all = [...tables]
  for (const own of ruleset.tables) {
    const at = all.findIndex(({ family, name }) => family === own.family && name === own.name)
    if (at === -1) return undefined
    all[at] = own
    yield
  }
  return all
}

function commonIn({ chains }: Pick<IpvsState, 'chains'>) {
  return chains.kind === 'wanted' ? chains.common : chains
}

/** Gives what the commits that lead from one state to another changed outside of nf_tables. */
export function outsideChange(from: IpvsState, to: IpvsState): IpvsChange {
  const servers = [...PersistentMap.differences(from.servers, to.servers)].flatMap(([, before, after]) => {
    const at = (after ?? before)?.server
    return at === undefined ? [] : [{ at, now: after && heldServer(after) }]
  })
  const entries = [...PersistentMap.differences(from.entries, to.entries)].flatMap(([, before, after]) => {
    const its = after ?? before
    const isSame = (before === undefined) === (after === undefined)
    return isSame || its === undefined ? [] : [{ ...its, isThere: after !== undefined }]
  })
  return { servers, entries, why: whyAll(from, to) }
}

function heldServer({ server, destinations }: PlacedServer): HeldServer {
  return { server, destinations: [...destinations.values()] }
}

/** Clients whose source is a bound address are masqueraded at each ClusterIP. */
function whyAll(from: IpvsState, to: IpvsState): string | undefined {
  const textOf = ({ sets }: IpvsState) =>
    [...sets.values()].map(its => `${its.name} ${its.type} ${its.family}`).join()
  if (from.sets !== to.sets && textOf(from) !== textOf(to)) return 'ipsets came or went'
  for (const [, before, after] of PersistentMap.differences(from.addresses, to.addresses))
    if ((before === undefined) !== (after === undefined)) return 'an address of a Service came or went'
  return undefined
}
