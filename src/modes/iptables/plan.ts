import type { ScopeOperations } from '../../kernel/xt/scope-operation.ts'
import type { Plan } from '../../reconcile/dataplane.ts'
import { countScopeChanges, describeScope } from '../xt-common/describe-scope.ts'
import type { IptablesState } from './state.ts'

/** One batch for the tables of both families. */
export interface IptablesPlan extends Plan<IptablesState> {
  readonly operations: ScopeOperations
}

export function makePlan(operations: ScopeOperations, after: IptablesState): IptablesPlan {
  return {
    operations,
    empty: operations.length === 0,
    changes: countScopeChanges(operations),
    after,
    complete: true,
    // Lists of recent clients are the kernel's: they live on while any rule, old or new, names them.
    rebuilds: false,
    describe: () => describeScope(operations),
  }
}
