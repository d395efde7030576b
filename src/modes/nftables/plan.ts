import type { TransactionPlan } from '../common/transaction-plan.ts'
import type { NftablesState } from './state.ts'

export type NftablesPlan = TransactionPlan<NftablesState>
