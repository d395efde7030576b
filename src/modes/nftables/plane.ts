import { type Clock, finishInSlices, slicingOf, systemClock } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import type { NftClient } from '../../kernel/nft/client.ts'
import { type Dataplane, generationOf } from '../../reconcile/dataplane.ts'
import { commitWith } from '../common/tables.ts'
import { bothNamed, deleteTables, inTables, type WatchedSocket, watchesOf } from '../common/writers.ts'
import { isOurs } from './cleanup.ts'
import type { LocalhostForwarders } from './localhost.ts'
import { adoptRuleset } from './observe.ts'
import { diffStates, renderState } from './render.ts'
import type { NftablesOptions } from './settings.ts'
import { EMPTY_STATE, type NftablesPlan, type NftablesState } from './state.ts'

interface NftablesPlaneOptions {
  readonly client: NftClient
  readonly options: NftablesOptions
  /** See watchesOf. */
  readonly writers?: WatchedSocket
  /** Serves node ports at localhost. Without it, they are not served there. */
  readonly forwarders?: LocalhostForwarders
  readonly clock?: Clock
}

/** Creates the data plane with the effect of kube-proxy's nftables mode, in tables of kprobe's own layout: README.md. */
export function createNftablesPlane(given: NftablesPlaneOptions): Dataplane<NftablesState, NftablesPlan> {
  const { client, options, forwarders, clock = systemClock } = given
  const commit = commitWith(client)
  const { watchGeneration, watchWriters } = watchesOf(given.writers, inTables(options.tableName))
  const names = bothNamed(options.tableName)
  return {
    name: 'nftables',
    empty: EMPTY_STATE,
    render: (frontends, given) => renderState(frontends, given, options),
    diff: (from, to) =>
      diffStates(from, to, from.forwarders !== to.forwarders && forwarders?.isStarted === true),
    generation: () => generationOf(client.generation()),
    watchGeneration,
    watchWriters,
    async observe(observeOptions) {
      const { ruleset, generation, unsettled } = await client.list(names, observeOptions)
      const adopted = await finishInSlices(adoptRuleset(ruleset), slicingOf(clock))
      const state = forwarders === undefined ? adopted : { ...adopted, forwarders: forwarders.wanted }
      return { state, generation: generationOf(generation), unsettled }
    },
    async commit(plan, commitOptions) {
      const receipt = await commit(plan, commitOptions)
      if (receipt.outcome === 'committed' && plan.forwarders !== undefined)
        await forwarders?.follow(plan.forwarders, plan.after.forwarders)
      return receipt
    },
    async cleanup() {
      await deleteTables(client, names, isOurs)
      if (forwarders === undefined) return
      await forwarders.follow({ put: [], remove: [...forwarders.wanted.values()] }, PersistentMap.empty())
    },
  }
}
