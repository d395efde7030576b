import { append, PersistentMap } from '../../base/collections.ts'
import { malformed } from '../../netlink/errors.ts'
import { type Message, nfSpan } from '../../netlink/message.ts'
import { readAttributes } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import { decodeChain, decodeElements, decodeRule, decodeSet, decodeTable, familyOf } from './decode.ts'
import type { NameOfIpset } from './expression-attributes.ts'
import { type RawObject, readObjects } from './raw.ts'
import { SET_ELEMENTS } from './schema.ts'
import type { AnyTable, Chain, Element, ElementGroup, NftSet, Rule } from './state.ts'
import { familyName, type SurveyedChain } from './survey.ts'

interface TableDraft extends Pick<AnyTable, 'family' | 'name' | 'flags' | 'comment'> {
  readonly chains: Map<string, Chain & { readonly rules: Rule[] }>
  readonly sets: Map<string, NftSet>
  readonly elements: Map<string, Element[]>
}

/** What a copy holds, as listAllTables() and surveyChains() give it. */
interface DecodedCopy {
  readonly tables: readonly AnyTable[]
  readonly chains: readonly SurveyedChain[]
}

/** Decodes a copy. Throws NetlinkError for bytes that are no copy, or a part of one. */
export function decodeRaw(bytes: Buffer, nameOf?: NameOfIpset): DecodedCopy {
  const drafts = new Map<string, TableDraft>()
  const chains: SurveyedChain[] = []
  for (const { kind, view, message } of readObjects(bytes)) {
    const family = familyOf(view, message)
    if (kind.type === nft.NFT_MSG_NEWCHAIN) {
      const { table, value } = decodeChain(view, message)
      chains.push({ family: familyName(view, message), table, chain: value })
    }
    if (family === undefined) continue
    if (kind.type === nft.NFT_MSG_NEWTABLE) {
      const head = { family, ...decodeTable(view, message) }
      const parts = { chains: new Map(), sets: new Map(), elements: new Map() }
      drafts.set(`${family} ${head.name}`, { ...head, ...parts })
    } else addPart({ kind, view, message }, name => draftOf(drafts, `${family} ${name}`, message), nameOf)
  }
  const tables = [...drafts.values()].map((draft): AnyTable => {
    const elements: [string, ElementGroup][] = [...draft.sets.keys()].map(set => [
      set,
      draft.elements.get(set) ?? [],
    ])
    return { ...draft, elements: PersistentMap.from(elements) }
  })
  return { tables, chains }
}

function draftOf(drafts: ReadonlyMap<string, TableDraft>, key: string, { start }: Message): TableDraft {
  const draft = drafts.get(key)
  if (draft === undefined) throw malformed(`a part of table ${key}, which it lacks`, start)
  return draft
}

function addPart(
  { kind, view, message }: Pick<RawObject, 'kind' | 'view' | 'message'>,
  draftFor: (table: string) => TableDraft,
  nameOf: NameOfIpset | undefined,
): void {
  switch (kind.type) {
    case nft.NFT_MSG_NEWCHAIN: {
      const { table, value } = decodeChain(view, message)
      draftFor(table).chains.set(value.name, { ...value, rules: [] })
      return
    }
    case nft.NFT_MSG_NEWSET: {
      const { table, value } = decodeSet(view, message)
      draftFor(table).sets.set(value.name, value)
      return
    }
    case nft.NFT_MSG_NEWSETELEM: {
      const { table, set = '' } = readAttributes(view, SET_ELEMENTS, nfSpan(message))
      const { sets, elements } = draftFor(table ?? '')
      const expirations = ((sets.get(set)?.flags ?? 0) & nft.NFT_SET_EVAL) !== 0
      const { value } = decodeElements(view, message, { expirations })
      for (const element of value) append(elements, element.set, element)
      return
    }
    case nft.NFT_MSG_NEWRULE: {
      const { table, chain: name, value } = decodeRule(view, message, nameOf)
      const chain = draftFor(table).chains.get(name)
      if (chain === undefined) throw malformed(`a rule of chain ${name}, which it lacks`, message.start)
      chain.rules.push(value)
    }
  }
}
