import { PersistentMap } from '../../../../src/base/collections.ts'
import { u16be, u32host, zeros } from '../../../../src/base/octets.ts'
import * as nft from '../../../../src/kernel/nft/constants.ts'
import { TYPE_IPADDR, TYPE_MARK } from '../../../../src/kernel/nft/datatypes.ts'
import type {
  Chain,
  ChainHook,
  Element,
  Expression,
  NftSet,
  Ruleset,
} from '../../../../src/kernel/nft/state.ts'
import {
  createTracer,
  type TracePacket,
  type TraceSurroundings,
} from '../../../../src/proof/evaluate/trace.ts'
import { ip } from '../../../support/pipeline.ts'
import { masquerade } from '../expressions.ts'

const HOOKS: Readonly<Record<string, ChainHook>> = {
  pre: { type: 'nat', hooknum: nft.NF_INET_PRE_ROUTING, priority: -100 },
  out: { type: 'nat', hooknum: nft.NF_INET_LOCAL_OUT, priority: -100 },
  post: { type: 'nat', hooknum: nft.NF_INET_POST_ROUTING, priority: 100 },
  early: { type: 'filter', hooknum: nft.NF_INET_PRE_ROUTING, priority: -200 },
  late: { type: 'nat', hooknum: nft.NF_INET_PRE_ROUTING, priority: -50 },
  forward: { type: 'filter', hooknum: nft.NF_INET_FORWARD, priority: 0 },
  input: { type: 'filter', hooknum: nft.NF_INET_LOCAL_IN, priority: 0 },
}

export type Chains = Readonly<Record<string, ReadonlyArray<readonly Expression[]>>>

function chain(name: string, rules: ReadonlyArray<readonly Expression[]>): Chain {
  return { name, hook: HOOKS[name], rules: rules.map(expressions => ({ expressions, comment: '' })) }
}

const ADDRESS_MAP: Omit<NftSet, 'name'> = {
  flags: nft.NFT_SET_MAP,
  keyType: TYPE_MARK,
  keyLength: 4,
  dataType: TYPE_IPADDR,
  dataLength: 8,
  size: 0,
  timeoutMs: 0,
  userdata: '',
}
const SETS: ReadonlyMap<string, NftSet> = new Map(
  [
    { ...ADDRESS_MAP, name: 'endpoints' },
    { ...ADDRESS_MAP, name: 'verdicts', dataType: nft.NFT_DATA_VERDICT, dataLength: undefined },
    { ...ADDRESS_MAP, name: 'members', flags: 0, dataType: undefined, dataLength: undefined },
    { ...ADDRESS_MAP, name: 'memory', dataType: TYPE_MARK, dataLength: 4, size: 2 },
  ].map(set => [set.name, set]),
)

export function ruleset(
  chains: Chains,
  elements: ReadonlyArray<Pick<Element, 'set' | 'key' | 'data'>> = [],
): Ruleset {
  const group = elements.map(element => ({ ...element, comment: '' }))
  // Without such a rule the kernel tracks no connection, and packets pass no nat chain.
  const tracked = { ...chains, tracked: [[masquerade]] }
  const names = Object.entries(tracked).map(([name, rules]) => [name, chain(name, rules)] as const)
  const table = {
    family: 'ip',
    name: 't',
    flags: 0,
    comment: undefined,
    chains: new Map(names),
    sets: SETS,
  } as const
  return { tables: [{ ...table, elements: PersistentMap.from([['all', group]]) }] }
}

export const PACKET: TracePacket = {
  origin: 'interface',
  interfaceName: 'eth0',
  protocol: 6,
  source: ip('203.0.113.5'),
  sourcePort: 40_000,
  destination: ip('172.30.0.1'),
  destinationPort: 80,
}
export const SURROUNDINGS: TraceSurroundings = { localIps: new Set([ip('192.0.2.1')]), random: () => 0 }

export const endpoint = (slot: number, address: string, port: number) => ({
  set: 'endpoints',
  key: u32host(slot),
  data: `${ip(address)}${u16be(port)}${zeros(2)}`,
})

export function run(
  chains: Chains,
  elements: Parameters<typeof ruleset>[1] = [],
  packet: Partial<TracePacket> = {},
) {
  return createTracer(ruleset(chains, elements)).trace({ ...PACKET, ...packet }, SURROUNDINGS)
}
