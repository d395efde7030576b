import { finishInSlices, type Slicing, systemClock } from '../../base/clock.ts'
import type { NftClient } from '../../kernel/nft/client.ts'
import { type Dataplane, generationOf, type WriterCommit } from '../../reconcile/dataplane.ts'
import { commitWith, NFT_FAMILIES } from '../common/tables.ts'
import { deleteTables } from '../common/writers.ts'
import { isOurs } from './cleanup.ts'
import { adoptRuleset } from './observe.ts'
import type { NftablesOptions } from './options.ts'
import { diffStates, rendererOf } from './render.ts'
import { EMPTY_STATE, type NftablesPlan, type NftablesState } from './state.ts'

interface NftablesPlaneOptions {
  readonly client: NftClient
  readonly options: NftablesOptions
  /** As in Dataplane. Without it, the reconciler polls the generation. */
  readonly watchGeneration?: Dataplane<NftablesState>['watchGeneration']
  /**
   * Reports which processes commit to nf_tables. Without it, drift is repaired, but the log does not name the
   * process.
   */
  readonly watchWriters?: (report: (commit: WriterCommit) => void) => () => void
  /** How observing shares the event loop. */
  readonly slicing?: Slicing
}

const SLICING: Slicing = { sliceMs: 10, nowMs: systemClock.nowMs, breathe: systemClock.breathe }

/**
 * Creates the data plane of nftables mode: the effect of kube-proxy's nftables mode, in tables with kprobe's
 * own layout. See README.md.
 */
export function createNftablesPlane(given: NftablesPlaneOptions): Dataplane<NftablesState, NftablesPlan> {
  const { client, options, slicing = SLICING } = given
  const names = NFT_FAMILIES.map(family => ({ family, name: options.tableName }))
  return {
    name: 'nftables',
    empty: EMPTY_STATE,
    render: rendererOf(options),
    diff: diffStates,
    generation: () => generationOf(client.generation()),
    ...(given.watchGeneration && { watchGeneration: given.watchGeneration }),
    watchWriters: given.watchWriters ?? (() => () => undefined),
    async observe() {
      const { ruleset, generation, unsettled } = await client.list(names)
      const state = await finishInSlices(adoptRuleset(ruleset), slicing)
      return { state, generation: generationOf(generation), unsettled }
    },
    commit: commitWith(client),
    cleanup: () => deleteTables(client, names, isOurs),
  }
}
