import { PersistentMap } from '../../src/base/collections.ts'
import { type Octets, u16be, u32be, u32host, zeros } from '../../src/base/octets.ts'
import * as nft from '../../src/kernel/nft/constants.ts'
import * as types from '../../src/kernel/nft/datatypes.ts'
import type {
  Chain,
  ChainHook,
  Element,
  Expression,
  NftFamily,
  NftSet,
  Rule,
  Table,
} from '../../src/kernel/nft/state.ts'
import type { Transaction } from '../../src/kernel/nft/transaction.ts'
import { encodeUserdata } from '../../src/kernel/nft/userdata.ts'
import { columns } from './owned.ts'

/** A table in the manner of the nftables plane, with every expression and every kind of set that it uses. */

const ID_MASK = u32host(0xffffe000)
const HOST = u32host(types.BYTEORDER_HOST_ENDIAN)

export function skeleton(family: NftFamily, endpoints = 3): Table {
  const address =
    family === 'ip' ? { bytes: 4, type: types.TYPE_IPADDR } : { bytes: 16, type: types.TYPE_IP6ADDR }
  const sets = setsOf(address)
  const chains = chainsOf(family, address.bytes)
  return {
    family,
    name: 'skeleton',
    flags: 0,
    comment: 'made by a test',
    chains: new Map(chains.map(chain => [chain.name, chain])),
    sets: new Map(sets.map(set => [set.name, set])),
    elements: PersistentMap.from(groupsOf(address.bytes, endpoints)),
  }
}

function setsOf({ bytes, type }: { readonly bytes: number; readonly type: number }): readonly NftSet[] {
  const { TYPE_MARK: mark, TYPE_INET_PROTOCOL: protocol, TYPE_INET_SERVICE: service } = types
  const key = { type: types.NFTNL_UDATA_SET_KEYBYTEORDER, value: HOST }
  const data = { type: types.NFTNL_UDATA_SET_DATABYTEORDER, value: HOST }
  const plain = {
    flags: 0,
    dataType: undefined,
    dataLength: undefined,
    size: 65_536,
    timeoutMs: 0,
    userdata: '',
  }
  const map = { ...plain, flags: nft.NFT_SET_MAP }
  const toMark = { ...map, dataType: mark, dataLength: 4, userdata: encodeUserdata([data]) }
  const list = types.concatenatedType(mark, mark)
  return [
    { ...plain, name: 'cluster-ips', keyType: type, keyLength: bytes },
    { ...plain, name: 'hairpin', keyType: types.concatenatedType(type, type), keyLength: 2 * bytes },
    {
      ...toMark,
      name: 'frontends',
      keyType: types.concatenatedType(type, protocol, service),
      keyLength: bytes + 8,
    },
    {
      ...map,
      name: 'dispatch',
      keyType: mark,
      keyLength: 4,
      dataType: nft.NFT_DATA_VERDICT,
      userdata: encodeUserdata([key]),
    },
    {
      ...map,
      name: 'endpoints',
      keyType: list,
      keyLength: 8,
      dataType: types.concatenatedType(type, service),
      dataLength: bytes + 4,
      size: 200_000,
    },
    {
      ...toMark,
      name: 'affinity',
      keyType: types.concatenatedType(mark, type),
      keyLength: 4 + bytes,
      flags: nft.NFT_SET_MAP | nft.NFT_SET_TIMEOUT | nft.NFT_SET_EVAL,
      size: 4096,
      timeoutMs: 10_800_000,
    },
  ]
}

function chainsOf(family: NftFamily, bytes: number): readonly Chain[] {
  const hook = (hooknum: number, priority: number): ChainHook => ({ type: 'nat', hooknum, priority })
  const jump: Rule = {
    expressions: [{ kind: 'verdict', verdict: { code: nft.NFT_JUMP, chain: 'services' } }],
    comment: '',
  }
  const code = family === 'ip' ? nft.ICMP_PORT_UNREACH : nft.ICMPV6_PORT_UNREACH
  const reject: Rule = { expressions: [{ kind: 'counter' }, { kind: 'reject', code }], comment: 'réject' }
  return [
    { name: 'nat-prerouting', hook: hook(nft.NF_INET_PRE_ROUTING, -100), rules: [jump] },
    { name: 'nat-output', hook: hook(nft.NF_INET_LOCAL_OUT, -100), rules: [jump] },
    {
      name: 'nat-postrouting',
      hook: hook(nft.NF_INET_POST_ROUTING, 100),
      rules: [masquerade(), hairpin(bytes)],
    },
    { name: 'services', hook: undefined, rules: [dispatch(bytes), local(), drop(bytes)] },
    { name: 'mod-3', hook: undefined, rules: [pick(family, bytes)] },
    { name: 'aff-3-60', hook: undefined, rules: affinity(family, bytes) },
    { name: 'reject', hook: undefined, rules: [reject] },
  ]
}

function source(bytes: number, dreg: number): Expression {
  const offset = bytes === 4 ? 12 : 8
  return { kind: 'payload', base: nft.NFT_PAYLOAD_NETWORK_HEADER, offset, length: bytes, dreg }
}

function destination(bytes: number, dreg: number): Expression {
  const offset = bytes === 4 ? 16 : 24
  return { kind: 'payload', base: nft.NFT_PAYLOAD_NETWORK_HEADER, offset, length: bytes, dreg }
}

/** Looks the frontend up and leaves its value in register 8, printed by nft as a mark. */
function frontend(bytes: number): readonly Expression[] {
  const words = bytes / 4
  return [
    destination(bytes, 0),
    { kind: 'meta', key: nft.NFT_META_L4PROTO, dreg: words },
    { kind: 'payload', base: nft.NFT_PAYLOAD_TRANSPORT_HEADER, offset: 2, length: 2, dreg: words + 1 },
    { kind: 'lookup', set: 'frontends', sreg: 0, dreg: 6, inverted: false },
    ...throughMark(6, 8),
  ]
}

function throughMark(sreg: number, dreg: number): readonly Expression[] {
  return [
    { kind: 'meta', key: nft.NFT_META_MARK, dreg: 7 },
    { kind: 'meta-set', key: nft.NFT_META_MARK, sreg },
    { kind: 'meta', key: nft.NFT_META_MARK, dreg },
    { kind: 'meta-set', key: nft.NFT_META_MARK, sreg: 7 },
  ]
}

function masked(sreg: number, dreg: number, mask: Octets): Expression {
  return { kind: 'bitwise', sreg, dreg, mask, xor: zeros(mask.length) }
}

function dispatch(bytes: number): Rule {
  const expressions: readonly Expression[] = [
    ...frontend(bytes),
    masked(8, 8, u32host(0xfff)),
    { kind: 'lookup', set: 'dispatch', sreg: 8, dreg: 'verdict', inverted: false },
  ]
  return { expressions, comment: '' }
}

function local(): Rule {
  return {
    expressions: [
      { kind: 'fib', flags: nft.NFTA_FIB_F_DADDR, dreg: 8 },
      { kind: 'cmp', op: 'eq', sreg: 8, data: u32host(nft.RTN_LOCAL) },
      { kind: 'verdict', verdict: { code: nft.NFT_GOTO, chain: 'reject' } },
    ],
    comment: 'unknown ports of the node',
  }
}

function drop(bytes: number): Rule {
  return {
    expressions: [
      destination(bytes, 4),
      { kind: 'lookup', set: 'cluster-ips', sreg: 4, dreg: undefined, inverted: true },
      { kind: 'counter' },
      { kind: 'verdict', verdict: { code: nft.NF_DROP, chain: undefined } },
    ],
    comment: '',
  }
}

function pick(family: NftFamily, bytes: number): Rule {
  return {
    expressions: [
      ...frontend(bytes),
      masked(8, 8, ID_MASK),
      { kind: 'numgen', modulus: 3, dreg: 9 },
      { kind: 'lookup', set: 'endpoints', sreg: 8, dreg: 10, inverted: false },
      { kind: 'dnat', family, addressReg: 10, portReg: 10 + bytes / 4 },
    ],
    comment: '',
  }
}

function affinity(family: NftFamily, bytes: number): readonly Rule[] {
  const head: readonly Expression[] = [...frontend(bytes), masked(8, 8, ID_MASK), source(bytes, 9)]
  const remember = { kind: 'dynset', set: 'affinity', keyReg: 8, dataReg: 14 } as const
  const known: readonly Expression[] = [
    ...head,
    { kind: 'lookup', set: 'affinity', sreg: 8, dreg: 14, inverted: false },
    ...throughMark(14, 14),
    { ...remember, op: 'update', timeoutMs: 60_000 },
  ]
  const added: readonly Expression[] = [
    ...head,
    { kind: 'numgen', modulus: 3, dreg: 14 },
    // The kernel wants the data register of every operation on a map.
    { ...remember, op: 'delete', timeoutMs: 0 },
    { ...remember, op: 'add', timeoutMs: 60_000 },
    { kind: 'verdict', verdict: { code: nft.NFT_GOTO, chain: 'mod-3' } },
  ]
  return [
    {
      expressions: [...known, { kind: 'verdict', verdict: { code: nft.NFT_GOTO, chain: 'mod-3' } }],
      comment: family,
    },
    { expressions: added, comment: '' },
  ]
}

function masquerade(): Rule {
  const flags = nft.NF_NAT_RANGE_PROTO_RANDOM_FULLY
  return {
    expressions: [
      { kind: 'meta', key: nft.NFT_META_MARK, dreg: 8 },
      masked(8, 8, u32host(0x4000)),
      { kind: 'cmp', op: 'neq', sreg: 8, data: zeros(4) },
      { kind: 'masquerade', flags },
    ],
    comment: '',
  }
}

function hairpin(bytes: number): Rule {
  return {
    expressions: [
      { kind: 'ct', key: nft.NFT_CT_STATUS, dreg: 8 },
      masked(8, 8, u32host(nft.IPS_DST_NAT)),
      { kind: 'cmp', op: 'neq', sreg: 8, data: zeros(4) },
      ...(bytes === 4 ? [source(4, 8), destination(4, 9)] : [source(16, 8), destination(16, 12)]),
      { kind: 'lookup', set: 'hairpin', sreg: 8, dreg: undefined, inverted: false },
      { kind: 'masquerade', flags: 0 },
    ],
    comment: '',
  }
}

export function addressOf(number: number, bytes: number): Octets {
  return bytes === 4 ? u32be(0x0a000000 + number) : `\xfd${zeros(11)}${u32be(number)}`
}

function groupsOf(bytes: number, endpoints: number): [string, readonly Element[]][] {
  const fixed: Element[] = [
    { set: 'dispatch', key: u32host(0), data: { code: nft.NFT_GOTO, chain: 'reject' }, comment: '' },
    { set: 'dispatch', key: u32host(1), data: { code: nft.NF_DROP, chain: undefined }, comment: '' },
    { set: 'dispatch', key: u32host(16), data: { code: nft.NFT_GOTO, chain: 'mod-3' }, comment: 'three' },
    { set: 'hairpin', key: addressOf(1, bytes) + addressOf(1, bytes), data: undefined, comment: '' },
  ]
  const groups: [string, readonly Element[]][] = [['', fixed]]
  for (let slot = 0; slot < endpoints; slot += 3)
    groups.push(serviceOf(slot, bytes, Math.min(3, endpoints - slot)))
  return groups
}

function serviceOf(first: number, bytes: number, count: number): [string, readonly Element[]] {
  const id = (first + 1) << 13
  const name = `ns1/service-${first}:http`
  const vip = addressOf(0x100000 + first, bytes)
  const elements: Element[] = [
    { set: 'cluster-ips', key: vip, data: undefined, comment: '' },
    { set: 'frontends', key: `${vip}\x06\0\0\0${u16be(80)}\0\0`, data: u32host(id | 16), comment: name },
  ]
  for (let slot = 0; slot < count; slot++) {
    const data = `${addressOf(first + slot, bytes)}${u16be(8080)}\0\0`
    elements.push({ set: 'endpoints', key: u32host(id) + u32host(slot), data, comment: '' })
  }
  return [name, elements]
}

/** What makes a table from nothing: chains and sets, then rules, then elements. */
export function creationOf(table: Table): Transaction {
  const target = { family: table.family, table: table.name }
  const chains = [...table.chains.values()]
  const groups = [...table.elements.entries()]
  return [
    { ...target, verb: 'add-table', flags: table.flags, comment: table.comment },
    ...[...table.sets.values()].map(set => ({ ...target, verb: 'add-set', set }) as const),
    ...chains.map(chain => ({ ...target, verb: 'add-chain', chain }) as const),
    ...chains.flatMap(chain =>
      chain.rules.map(rule => ({ ...target, verb: 'add-rule', chain: chain.name, rule }) as const),
    ),
    ...groups.flatMap(([group, elements]) =>
      [...table.sets.values()].flatMap(set => {
        const mine = elements.filter(element => element.set === set.name).map(element => ({ element, group }))
        return mine.length === 0 ? [] : [{ ...target, verb: 'add-elements', set, ...columns(mine) } as const]
      }),
    ),
  ]
}

/** A table with its elements as one sorted list, for comparisons that are blind to grouping. */
export function comparable(table: Table) {
  const elements = [...table.elements.values()].flat()
  const sortKey = (element: Element): string => `${element.set} ${element.key}`
  elements.sort((a, b) => (sortKey(a) < sortKey(b) ? -1 : 1))
  return { ...table, chains: [...table.chains].sort(byName), sets: [...table.sets].sort(byName), elements }
}

function byName([a]: readonly [string, unknown], [b]: readonly [string, unknown]): number {
  return a < b ? -1 : 1
}
