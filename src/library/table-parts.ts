import { PersistentMap } from '../base/persistent-map.ts'
import {
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  NF_IP_PRI_NAT_DST,
  NF_IP_PRI_NAT_SRC,
  NFT_SET_MAP,
} from '../kernel/nft/constants.ts'
import type { Rule } from '../kernel/nft/expression.ts'
import type { Chain, Element, NftFamily, NftSet, Table } from '../kernel/nft/state.ts'
import type { FamilyLayout } from '../modes/common/family.ts'
import { plainSet } from '../modes/common/sets.ts'

export interface TableParts {
  readonly family: NftFamily
  readonly name: string
  readonly comment?: string
  readonly chains: readonly Chain[]
  readonly sets?: readonly NftSet[]
  /** The elements by Service, so that the kernel rejects only those of one Service. */
  readonly elements?: Iterable<readonly [service: string, elements: readonly Element[]]>
}

/** Makes a table of its parts. */
export function makeTable({ family, name, comment, chains, sets = [], elements = [] }: TableParts): Table {
  return {
    family,
    name,
    flags: 0,
    comment,
    chains: new Map(chains.map(chain => [chain.name, chain])),
    sets: new Map(sets.map(set => [set.name, set])),
    elements: PersistentMap.from(elements),
  }
}

export interface NatRules {
  /** Rules of both hooks: for incoming packets, and for packets of this node. */
  readonly translate: readonly Rule[]
  readonly postrouting: readonly Rule[]
}

/**
 * Makes base chains of type nat, named after their hooks prerouting, output and postrouting, at kube-proxy's
 * priorities.
 */
export function natChains({ translate, postrouting }: NatRules): readonly Chain[] {
  return [
    natChain('prerouting', NF_INET_PRE_ROUTING, translate),
    natChain('output', NF_INET_LOCAL_OUT, translate),
    natChain('postrouting', NF_INET_POST_ROUTING, postrouting),
  ]
}

function natChain(name: string, hooknum: number, rules: readonly Rule[]): Chain {
  const priority = hooknum === NF_INET_POST_ROUTING ? NF_IP_PRI_NAT_SRC : NF_IP_PRI_NAT_DST
  return { name, hook: { type: 'nat', hooknum, priority }, rules }
}

/** Makes a set of addresses of the family, or of several fields in sequence. Its size is that of its elements. */
export function addressSet({ addressType, addressLength }: FamilyLayout, name: string, fields = 1): NftSet {
  const types = Array.from({ length: fields }, () => addressType)
  return plainSet(name, 0, { types, length: fields * addressLength })
}

/** Makes a map from an address to another one. */
export function addressMap(layout: FamilyLayout, name: string): NftSet {
  const { addressType: dataType, addressLength: dataLength } = layout
  return { ...addressSet(layout, name), flags: NFT_SET_MAP, dataType, dataLength }
}
