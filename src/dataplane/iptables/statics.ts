import type { NftFamily } from '../../kernel/nft/state.ts'
import type { NodePortAddresses } from '../../model/frontend.ts'
import type { Detector } from '../common/detector.ts'
import type { IptablesOptions } from './options.ts'

/** What the rules of every Service follow from, besides the Service. */
export interface Statics {
  readonly options: IptablesOptions
  /** More than 1,000 endpoints: rules about single endpoints carry no comments. */
  readonly large: boolean
  readonly families: Readonly<Record<NftFamily, FamilyStatics>>
  /** Equal for statics from which the same rules follow. */
  readonly key: string
}

export interface FamilyStatics {
  readonly detector: Detector | undefined
  readonly nodePorts: NodePortAddresses
}
