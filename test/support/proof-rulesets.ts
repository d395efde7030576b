import { PersistentMap } from '../../src/base/collections.ts'
import { type Octets, u16be, u32host } from '../../src/base/octets.ts'
import {
  NF_ACCEPT,
  NF_DROP,
  NF_INET_LOCAL_OUT,
  NFT_GOTO,
  NFT_JUMP,
  NFT_META_L4PROTO,
  NFT_META_MARK,
  NFT_PAYLOAD_NETWORK_HEADER,
  NFT_PAYLOAD_TRANSPORT_HEADER,
  NFT_RETURN,
  NFTA_FIB_F_DADDR,
  NFTA_FIB_F_SADDR,
  RTN_LOCAL,
} from '../../src/kernel/nft/constants.ts'
import type {
  Chain,
  Element,
  ElementGroup,
  Expression,
  NftSet,
  Rule,
  Table,
  Verdict,
} from '../../src/kernel/nft/state.ts'
import { DESTINATION, DESTINATION_PORT, PRIORITY, PROTOCOL, typedSet } from '../../src/kernel/nft/userdata.ts'
import { prefixMask } from '../../src/modes/common/rules.ts'

/* Random rules for UDP packets of this node, of the expressions that kprobe writes, at hook output. */

type Random = (bound: number) => number

export const TABLE = 'judge'
const CHAINS = ['base', 'one', 'two', 'three', 'four'] as const

/** Few values, so that rules often match. */
export function anyDestination(random: Random): Octets {
  return String.fromCharCode(198, 51, [100, 101][random(2)] ?? 0, random(8))
}
export const OWN_ADDRESSES: readonly Octets[] = ['\xc0\0\x02\x01', '\xc0\0\x02\x82', '\xc6\x33\x64\x03']
export const PORTS: readonly number[] = [53, 80, 443, 5353]

function pick<T>(values: readonly T[], random: Random): T {
  const value = values[random(values.length)]
  if (value === undefined) throw new Error('nothing to pick from')
  return value
}

export function randomTable(random: Random): Table {
  const chains = CHAINS.map((name, index): Chain => {
    const rules = Array.from({ length: 2 + random(5) }, () => randomRule(random, CHAINS.slice(index + 1)))
    const hook = { type: 'filter', hooknum: NF_INET_LOCAL_OUT, priority: 0 } as const
    return { name, hook: index === 0 ? hook : undefined, rules }
  })
  const sets: readonly NftSet[] = [
    typedSet('addresses', { size: 64, key: [DESTINATION.ip] }),
    typedSet('places', { size: 64, key: [DESTINATION.ip, PROTOCOL, DESTINATION_PORT], data: [PRIORITY] }),
    typedSet('ports', { size: 64, key: [PROTOCOL, DESTINATION_PORT], data: 'verdict' }),
  ]
  return {
    family: 'ip',
    name: TABLE,
    flags: 0,
    comment: undefined,
    chains: new Map(chains.map(chain => [chain.name, chain])),
    sets: new Map(sets.map(set => [set.name, set])),
    elements: PersistentMap.from<ElementGroup>([['all', randomElements(random)]]),
  }
}

function randomElements(random: Random): ElementGroup {
  const elements = new Map<string, Element>()
  const add = (element: Element) => elements.set(element.set + element.key, element)
  for (let count = 0; count < 6; count++) {
    const port = `\x11\0\0\0${u16be(pick(PORTS, random))}\0\0`
    add({
      set: 'addresses',
      key: pick([anyDestination(random), ...OWN_ADDRESSES], random),
      data: undefined,
      comment: '',
    })
    add({ set: 'places', key: anyDestination(random) + port, data: u32host(random(8)), comment: '' })
    // Only the last chain is sure not to lead back.
    add({ set: 'ports', key: port, data: randomVerdict(random, ['four']), comment: '' })
  }
  return [...elements.values()]
}

function randomVerdict(random: Random, further: readonly string[]): Verdict {
  const plain = [NF_DROP, NF_ACCEPT, NFT_RETURN].map(code => ({ code, chain: undefined }))
  const jumps = further.flatMap(chain => [NFT_JUMP, NFT_GOTO].map(code => ({ code, chain })))
  return pick([...plain, ...jumps, ...jumps], random)
}

function randomRule(random: Random, further: readonly string[]): Rule {
  const conditions = Array.from({ length: random(3) }, () => pick(CONDITIONS, random)(random)).flat()
  const action = pick<readonly Expression[]>(
    [
      [],
      markTo(random(8)),
      [{ kind: 'verdict', verdict: randomVerdict(random, further) }],
      [{ kind: 'verdict', verdict: randomVerdict(random, further) }],
      // A verdict of the map leads to the last chain.
      ...(further.length > 0 ? [[...portKey(0), lookup('ports', 'verdict')]] : []),
    ],
    random,
  )
  // A counter before a lookup would count packets that the map does not have.
  const counts: readonly Expression[] = action.some(({ kind }) => kind === 'lookup')
    ? []
    : [{ kind: 'counter' }]
  return { expressions: [...conditions, ...counts, ...action], comment: '' }
}

function lookup(set: string, dreg: number | 'verdict' | undefined, inverted = false): Expression {
  return { kind: 'lookup', set, sreg: 0, dreg, inverted }
}

function portKey(dreg: number): readonly Expression[] {
  return [
    { kind: 'meta', key: NFT_META_L4PROTO, dreg },
    { kind: 'payload', base: NFT_PAYLOAD_TRANSPORT_HEADER, offset: 2, length: 2, dreg: dreg + 1 },
  ]
}

function address(side: 'source' | 'destination', length = 4): Expression {
  const offset = side === 'source' ? 12 : 16
  return { kind: 'payload', base: NFT_PAYLOAD_NETWORK_HEADER, offset, length, dreg: 0 }
}

function markTo(value: number): readonly Expression[] {
  return [
    { kind: 'meta', key: NFT_META_MARK, dreg: 0 },
    { kind: 'bitwise', sreg: 0, dreg: 0, mask: u32host(0xfffffff8), xor: u32host(value) },
    { kind: 'meta-set', key: NFT_META_MARK, sreg: 0 },
  ]
}

type Condition = (random: Random) => readonly Expression[]

const op = (random: Random) => (random(2) === 0 ? 'eq' : 'neq')

const CONDITIONS: readonly Condition[] = [
  random => {
    const side = pick(['source', 'destination'] as const, random)
    const bits = pick([17, 23, 25, 29, 31], random)
    const mask = prefixMask(bits, 4)
    const value = pick([anyDestination(random), ...OWN_ADDRESSES], random)
    const data = [...value]
      .map((octet, at) => String.fromCharCode(octet.charCodeAt(0) & mask.charCodeAt(at)))
      .join('')
    return [
      address(side),
      { kind: 'bitwise', sreg: 0, dreg: 0, mask, xor: '\0\0\0\0' },
      { kind: 'cmp', op: op(random), sreg: 0, data },
    ]
  },
  random => {
    const side = pick(['source', 'destination'] as const, random)
    const value = pick([anyDestination(random), ...OWN_ADDRESSES], random)
    const length = pick([2, 3, 4], random)
    return [address(side, length), { kind: 'cmp', op: op(random), sreg: 0, data: value.slice(0, length) }]
  },
  random => [
    { kind: 'payload', base: NFT_PAYLOAD_TRANSPORT_HEADER, offset: 2, length: 2, dreg: 0 },
    { kind: 'cmp', op: op(random), sreg: 0, data: u16be(pick(PORTS, random)) },
  ],
  random => [
    { kind: 'meta', key: NFT_META_L4PROTO, dreg: 0 },
    { kind: 'cmp', op: op(random), sreg: 0, data: pick(['\x11', '\x06'], random) },
  ],
  random => [
    address(pick(['source', 'destination'] as const, random)),
    lookup('addresses', undefined, random(2) === 0),
  ],
  random => [
    address('destination'),
    ...portKey(1),
    lookup('places', 0),
    { kind: 'bitwise', sreg: 0, dreg: 0, mask: u32host(3), xor: u32host(random(4)) },
    { kind: 'cmp', op: op(random), sreg: 0, data: u32host(random(4)) },
  ],
  random => [
    { kind: 'meta', key: NFT_META_MARK, dreg: 0 },
    { kind: 'cmp', op: op(random), sreg: 0, data: u32host(random(8)) },
  ],
  random => [
    { kind: 'fib', flags: pick([NFTA_FIB_F_SADDR, NFTA_FIB_F_DADDR], random), dreg: 0 },
    { kind: 'cmp', op: op(random), sreg: 0, data: u32host(RTN_LOCAL) },
  ],
]
