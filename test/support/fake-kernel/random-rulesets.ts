import fc from 'fast-check'
import { PersistentMap } from '../../../src/base/collections.ts'
import type {
  Chain,
  Element,
  Expression,
  NftSet,
  Rule,
  Ruleset,
  Table,
} from '../../../src/kernel/nft/state.ts'

/** Small tables that collide a lot: few names, few keys, few groups. */
export const LATE_SETS: ReadonlySet<string> = new Set(['slots', 'dispatch'])

const NFT_GOTO = -4
const NFT_META_MARK = 3
const VERDICT = 0xffffff00
const SETS: readonly NftSet[] = [
  set('services', { flags: 8, dataType: 19, dataLength: 4 }),
  set('slots', { flags: 8, dataType: 7, dataLength: 4 }),
  set('dispatch', { flags: 8, dataType: VERDICT, dataLength: 16 }),
  set('members', { flags: 0 }),
]
const AFFINITY = set('affinity', { flags: 8 | 16 | 32, dataType: 19, dataLength: 4, timeoutMs: 1000 })
const CHAINS = ['c0', 'c1', 'c2', 'c3']

export function set(name: string, over: Partial<NftSet>): NftSet {
  const plain = {
    keyType: 19,
    keyLength: 4,
    dataType: undefined,
    dataLength: undefined,
    size: 16,
    timeoutMs: 0,
  }
  return { name, flags: 0, userdata: '', ...plain, ...over }
}

export const arbitraryRuleset: fc.Arbitrary<Ruleset> = fc
  .uniqueArray(fc.constantFrom('ip' as const, 'ip6' as const), { maxLength: 2 })
  .chain(families => fc.tuple(...families.map(arbitraryTable)))
  .map(tables => ({ tables }))

export function grouped(elements: readonly (readonly [string, Element])[]): Table['elements'] {
  const groups = new Map<string, Element[]>()
  for (const [group, element] of elements) {
    const members = groups.get(group) ?? []
    members.push(element)
    groups.set(group, members)
  }
  return PersistentMap.from(groups)
}

function arbitraryTable(family: 'ip' | 'ip6'): fc.Arbitrary<Table> {
  return fc
    .record({
      sets: fc.subarray([...SETS], { minLength: 2 }),
      size: fc.constantFrom(16, 16, 16, 16, 32),
      chains: fc.subarray([...CHAINS]),
      hooked: fc.constantFrom(undefined, -100, -90),
      comment: fc.constantFrom(undefined, 'ours'),
      picks: fc.array(fc.nat(99), { minLength: 24, maxLength: 24 }),
      groups: fc.array(fc.nat(4), { minLength: 24, maxLength: 24 }),
    })
    .map(({ sets, size, chains, hooked, comment, picks, groups }) => {
      const declared = [...sets.map(s => (s.name === 'members' ? { ...s, size } : s)), AFFINITY]
      const elements = declared.flatMap((s, at) =>
        elementsOf(s, { picks: picks.slice(at * 5, at * 5 + 6), chains }),
      )
      return {
        family,
        name: 'kube-proxy',
        flags: 0,
        comment,
        sets: new Map(declared.map(s => [s.name, s] as const)),
        chains: chainsOf(chains, declared, { picks, hooked }),
        elements: grouped(elements.map((element, i) => [`g${groups[i] ?? 0}`, element])),
      }
    })
}

function elementsOf(
  of: NftSet,
  from: { picks: readonly number[]; chains: readonly string[] },
): readonly Element[] {
  return from.picks.flatMap((pick, key): readonly Element[] => {
    const base = { set: of.name, key: `key${key}`, comment: pick % 7 === 0 ? 'noted' : '' }
    if (pick % 3 === 0) return []
    if (of.flags === 0) return [{ ...base, data: undefined }]
    if (of.dataType !== VERDICT) return [{ ...base, data: `dat${pick % 4}` }]
    const chain = from.chains[pick % (from.chains.length + 1)]
    return [
      { ...base, data: chain === undefined ? { code: 0, chain: undefined } : { code: NFT_GOTO, chain } },
    ]
  })
}

function chainsOf(
  names: readonly string[],
  sets: readonly NftSet[],
  from: { picks: readonly number[]; hooked: number | undefined },
): ReadonlyMap<string, Chain> {
  const chains = names.map((name, at): Chain => {
    const pick = from.picks[at] ?? 0
    const later = names[at + 1 + (pick % 3)]
    const rules: Rule[] = []
    if (pick % 2 === 0)
      rules.push({ expressions: [{ kind: 'counter' }], comment: pick % 5 === 0 ? 'counted' : '' })
    if (later !== undefined) rules.push(rule({ kind: 'verdict', verdict: { code: NFT_GOTO, chain: later } }))
    const plain = sets.filter(({ dataType }) => dataType !== VERDICT)
    const used = plain[pick % plain.length]
    if (used !== undefined) rules.push(rule({ kind: 'meta', key: NFT_META_MARK, dreg: 0 }, lookupIn(used)))
    return { name, hook: undefined, rules }
  })
  if (from.hooked !== undefined) {
    const hook = { type: 'nat' as const, hooknum: 0, priority: from.hooked }
    chains.push({ name: 'base', hook, rules: [{ expressions: [{ kind: 'counter' }], comment: '' }] })
  }
  return new Map(chains.map(chain => [chain.name, chain] as const))
}

/** Of a map the data, since kernel 6.1 does not look there for keys alone. */
function lookupIn({ name, dataType }: NftSet): Expression {
  return { kind: 'lookup', set: name, sreg: 0, dreg: dataType === undefined ? undefined : 1, inverted: false }
}

function rule(...expressions: Expression[]): Rule {
  return { expressions, comment: '' }
}
