import { u32host, zeros } from '../../base/octets.ts'
import type { Config } from '../../config/config.ts'
import * as nft from '../../kernel/nft/constants.ts'
import type { ChainHook, Expression, NftFamily } from '../../kernel/nft/state.ts'
import type { Operation, Transaction } from '../../kernel/nft/transaction.ts'
import { logTo } from '../common/logs.ts'
import { destinationAddress } from '../common/rules.ts'
import { LAYOUTS, NFT_FAMILIES } from '../common/tables.ts'
import type { NftFeature } from '../mode.ts'
import { declareSet } from './state.ts'

const TABLE = 'kprobe-doctor'
const CHAIN = 'probe'

/** Lists each nf_tables feature that the modes use with this configuration, for both families. */
export function nftablesFeatures({ logRejects }: Pick<Config, 'logRejects'>): readonly NftFeature[] {
  return NFT_FAMILIES.flatMap(family => featuresOf(family, logRejects))
}

const PREROUTING: ChainHook = {
  type: 'nat',
  hooknum: nft.NF_INET_PRE_ROUTING,
  priority: nft.NF_IP_PRI_NAT_DST,
}
const POSTROUTING: ChainHook = {
  type: 'nat',
  hooknum: nft.NF_INET_POST_ROUTING,
  priority: nft.NF_IP_PRI_NAT_SRC,
}

const LOG_NEEDS = '--log-rejects: CONFIG_NFT_LOG, CONFIG_NFT_LIMIT, CONFIG_NETFILTER_NETLINK_LOG'

/** Makes features of one rule. */
function ruleFeatureOf(family: NftFamily) {
  return (
    kind: NftFeature['kind'],
    name: string,
    meaning: string,
    hook: ChainHook,
    expressions: readonly Expression[],
  ): NftFeature => ({
    kind,
    name: `${family} ${name}`,
    meaning,
    transaction: [
      ...inChain(family, hook),
      { ...at(family), verb: 'add-rule', chain: CHAIN, rule: { expressions, comment: '' } },
    ],
  })
}

function featuresOf(family: NftFamily, logGroup: number): NftFeature[] {
  const layout = LAYOUTS[family]
  const destination = destinationAddress(layout, 0)
  const rule = ruleFeatureOf(family)
  return [
    {
      kind: 'nat',
      name: `${family} nat chains`,
      meaning: 'CONFIG_NFT_NAT',
      transaction: inChain(family, PREROUTING),
    },
    rule(
      'fib',
      'fib lookup',
      'NodePorts and traffic of the node: CONFIG_NFT_FIB_IPV4, CONFIG_NFT_FIB_IPV6',
      PREROUTING,
      [{ kind: 'fib', flags: nft.NFTA_FIB_F_DADDR, dreg: 0 }],
    ),
    rule('numgen', 'numgen random', 'balancing: CONFIG_NFT_NUMGEN', PREROUTING, [
      { kind: 'numgen', modulus: 7, dreg: 0 },
    ]),
    rule('jhash', 'jhash', 'kprobe.io/balance: maglev: CONFIG_NFT_HASH', PREROUTING, [
      destination,
      { kind: 'jhash', sreg: 0, length: 4, modulus: 7, seed: 1, dreg: 0 },
    ]),
    rule('dnat', 'dnat from registers', 'every Service: CONFIG_NFT_NAT', PREROUTING, [
      destination,
      { kind: 'meta', key: nft.NFT_META_MARK, dreg: layout.addressRegs },
      { kind: 'dnat', family, addressReg: 0, portReg: layout.addressRegs },
    ]),
    rule(
      'reject',
      'reject in prerouting',
      'Services without endpoints: CONFIG_NFT_REJECT, Linux 5.9',
      PREROUTING,
      [{ kind: 'reject', code: layout.rejectCode }],
    ),
    rule('masquerade', 'masquerade fully-random', 'external traffic: CONFIG_NFT_MASQ', POSTROUTING, [
      { kind: 'masquerade', flags: nft.NF_NAT_RANGE_PROTO_RANDOM_FULLY },
    ]),
    rule('status', 'conntrack status', 'masquerading: CONFIG_NFT_CT', POSTROUTING, [
      { kind: 'ct', key: nft.NFT_CT_STATUS, dreg: 0 },
      { kind: 'cmp', op: 'neq', sreg: 0, data: u32host(0) },
    ]),
    ...mapFeatures(family, PREROUTING),
    ...(logGroup === 0
      ? []
      : [rule('log', 'log with a limit', LOG_NEEDS, PREROUTING, logTo(logGroup, CHAIN))]),
  ]
}

function mapFeatures(family: NftFamily, hook: ChainHook): NftFeature[] {
  const layout = LAYOUTS[family]
  const declaration = { layout, size: 4_096, connectionCounters: false }
  const endpoints = declareSet('endpoints-tcp', declaration)
  const dispatch = declareSet('dispatch', declaration)
  const add = (set: typeof endpoints): Operation => ({ ...at(family), verb: 'add-set', set })
  return [
    {
      kind: 'concatenations',
      name: `${family} maps of concatenations`,
      meaning: 'endpoints: Linux 5.6',
      transaction: [
        ...inChain(family, hook),
        add(endpoints),
        {
          ...at(family),
          verb: 'add-elements',
          set: endpoints,
          elements: [
            {
              set: endpoints.name,
              key: zeros(endpoints.keyLength),
              data: zeros(endpoints.dataLength ?? 0),
              comment: 'probe',
            },
          ],
          groups: ['probe'],
        },
      ],
    },
    {
      kind: 'verdicts',
      name: `${family} verdict maps`,
      meaning: 'dispatch to chains',
      transaction: [...inChain(family, hook), add(dispatch)],
    },
    clientsFeature(family, hook),
  ]
}

function clientsFeature(family: NftFamily, hook: ChainHook): NftFeature {
  const affinity = declareSet('affinity', { layout: LAYOUTS[family], size: 4_096, connectionCounters: false })
  return {
    kind: 'dynamic',
    name: `${family} maps filled by packets`,
    meaning: 'session affinity: dynset with data and timeout',
    transaction: [
      ...inChain(family, hook),
      { ...at(family), verb: 'add-set', set: affinity },
      {
        ...at(family),
        verb: 'add-rule',
        chain: CHAIN,
        rule: {
          comment: '',
          expressions: [
            { kind: 'numgen', modulus: 7, dreg: 0 },
            destinationAddress(LAYOUTS[family], 1),
            { kind: 'numgen', modulus: 7, dreg: 8 },
            { kind: 'dynset', op: 'update', set: affinity.name, keyReg: 0, dataReg: 8, timeoutMs: 10_000 },
          ],
        },
      },
    ],
  }
}

function at(family: NftFamily): { readonly family: NftFamily; readonly table: string } {
  return { family, table: TABLE }
}

function inChain(family: NftFamily, hook: ChainHook): Transaction {
  return [
    { ...at(family), verb: 'add-table', flags: 0, comment: undefined },
    { ...at(family), verb: 'add-chain', chain: { name: CHAIN, hook, rules: [] } },
  ]
}
