import type { Ruleset } from '../../kernel/nft/state.ts'
import type { Plan, PlanLine } from '../../reconcile/dataplane.ts'
import { countChanges, describeTransaction } from '../common/describe-transaction.ts'
import { countScopeChanges, describeScope } from '../xt-common/describe-scope.ts'
import {
  describeAddresses,
  describeDevice,
  describeEntries,
  describeServers,
  describeSets,
  describeSetsGone,
} from './describe.ts'
import { isWork, type Phase, sizeOf } from './phases.ts'
import type { IpvsState } from './state.ts'

/** What is sent to four subsystems of the kernel, none of which knows of the others. */
export interface IpvsPlan extends Plan<IpvsState> {
  /** Those with anything in them, in the order in which they are sent. */
  readonly phases: readonly Phase[]
}

export function makePlan(
  given: readonly Phase[],
  { after, complete }: Pick<IpvsPlan, 'after' | 'complete'>,
): IpvsPlan {
  const phases = given.filter(isWork)
  return {
    phases,
    empty: phases.length === 0,
    changes: phases.reduce((count, phase) => count + changesOf(phase), 0),
    after,
    complete,
    // Persistence is IPVS's own, and virtual servers are changed in place.
    rebuilds: false,
    describe: () => describePhases(phases, after.ruleset),
  }
}

/** An element whose data changes is deleted and added in one phase: one change. */
function changesOf(phase: Phase): number {
  if ('transaction' in phase) return countChanges(phase.transaction)
  return 'nameOfIpset' in phase ? countScopeChanges(phase.operations) : sizeOf(phase)
}

/** What all Services share comes first, then one Service after the other. */
function* describePhases(phases: readonly Phase[], after: Ruleset): IterableIterator<PlanLine> {
  const byService = new Map<string, PlanLine[]>()
  for (const phase of phases) {
    for (const line of linesOf(phase, after)) {
      if (line.service === undefined) {
        yield line
        continue
      }
      const lines = byService.get(line.service)
      if (lines === undefined) byService.set(line.service, [line])
      else lines.push(line)
    }
  }
  for (const [, lines] of [...byService].sort(([a], [b]) => (a < b ? -1 : 1))) yield* lines
}

function linesOf(phase: Phase, after: Ruleset): Iterable<PlanLine> {
  switch (phase.kind) {
    case 'add-sets':
      return describeSets(phase.sets)
    case 'add-entries':
      return describeEntries('add', phase.lists)
    case 'add-rules':
    case 'remove-rules':
    case 'add-detours':
    case 'remove-detours':
      return describeTransaction(phase.transaction, after)
    case 'add-chains':
    case 'take-chains':
    case 'remove-chains':
      return describeScope(phase.operations, phase.nameOfIpset)
    case 'add-device':
      return describeDevice('add', phase.device)
    case 'remove-device':
      return describeDevice('remove', phase.device)
    case 'add-servers':
    case 'remove-servers':
      return describeServers(phase.operations)
    case 'add-addresses':
      return describeAddresses('add', phase)
    case 'remove-addresses':
      return describeAddresses('remove', phase)
    case 'remove-entries':
      return describeEntries('remove', phase.lists)
    case 'remove-sets':
      return describeSetsGone(phase.names)
  }
}
