import type { Steps } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import type { Config } from '../../config/config.ts'
import type { HeldServer, IpvsChange } from '../../kernel/ipvs/state.ts'
import type { AnyTable } from '../../kernel/nft/state.ts'
import type { XtTableName } from '../../kernel/xt/scope.ts'
import { type Promises, USUAL_PROMISES } from '../../model/promises.ts'
import type { Proving } from '../mode.ts'
import { isIpvsChain } from '../xt-common/layout.ts'
import type { IpvsState, PlacedServer } from './state.ts'

/** What this mode does otherwise than nftables mode: docs/differences.md. */
export const IPVS_PROMISES: Promises = {
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

export function heldServer({ server, destinations }: PlacedServer): HeldServer {
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
