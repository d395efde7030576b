import { expect, it } from 'vitest'
import * as conntrack from '../../../src/kernel/conntrack/flow.ts'
import * as ipset from '../../../src/kernel/ipset/state.ts'
import * as ipvs from '../../../src/kernel/ipvs/state.ts'
import * as link from '../../../src/kernel/link/links.ts'
import * as nft from '../../../src/kernel/nft/schema.ts'
import * as codecs from '../../../src/netlink/codecs.ts'
import { NLA_TYPE_MASK } from '../../../src/netlink/constants.ts'
import type { AttributeSet, Fields } from '../../../src/netlink/schema.ts'
import { type DocumentedAttribute, readDocumentedHeader } from '../../support/header-types.ts'
import { valuesInHeaders } from '../../support/header-values.ts'

/** The rows of each table in their order, by the names of the headers without their common beginning. */
const NFT: Readonly<Record<string, string>> = {
  TABLE: 'NFTA_TABLE_ NAME FLAGS USE HANDLE USERDATA OWNER',
  TABLE_MEMBER: 'NFTA_CHAIN_ TABLE',
  HOOK: 'NFTA_HOOK_ HOOKNUM PRIORITY',
  CHAIN: 'NFTA_CHAIN_ TABLE HANDLE NAME HOOK POLICY USE TYPE FLAGS USERDATA',
  DATA: 'NFTA_DATA_ VALUE VERDICT',
  'DATA.verdict': 'NFTA_VERDICT_ CODE CHAIN',
  'EXPRESSIONS.payload': 'NFTA_PAYLOAD_ DREG BASE OFFSET LEN SREG CSUM_TYPE CSUM_OFFSET CSUM_FLAGS',
  'EXPRESSIONS.meta': 'NFTA_META_ KEY DREG SREG',
  'EXPRESSIONS.ct': 'NFTA_CT_ DREG KEY DIRECTION SREG',
  'EXPRESSIONS.cmp': 'NFTA_CMP_ SREG OP DATA',
  'EXPRESSIONS.bitwise': 'NFTA_BITWISE_ SREG DREG LEN OP MASK XOR DATA',
  'EXPRESSIONS.lookup': 'NFTA_LOOKUP_ SET SREG DREG FLAGS',
  'EXPRESSIONS.immediate': 'NFTA_IMMEDIATE_ DREG DATA',
  'EXPRESSIONS.numgen': 'NFTA_NG_ DREG MODULUS TYPE OFFSET',
  'EXPRESSIONS.hash': 'NFTA_HASH_ SREG DREG LEN MODULUS SEED OFFSET TYPE',
  'EXPRESSIONS.nat': 'NFTA_NAT_ TYPE FAMILY REG_ADDR_MIN REG_ADDR_MAX REG_PROTO_MIN REG_PROTO_MAX FLAGS',
  'EXPRESSIONS.masq': 'NFTA_MASQ_ FLAGS REG_PROTO_MIN REG_PROTO_MAX',
  REDIR: 'NFTA_REDIR_ REG_PROTO_MIN REG_PROTO_MAX',
  'EXPRESSIONS.reject': 'NFTA_REJECT_ TYPE ICMP_CODE',
  'EXPRESSIONS.fib': 'NFTA_FIB_ DREG RESULT FLAGS',
  'EXPRESSIONS.dynset': 'NFTA_DYNSET_ SET_NAME OP SREG_KEY SREG_DATA TIMEOUT EXPR FLAGS EXPRESSIONS',
  'EXPRESSIONS.match': 'NFTA_MATCH_ NAME REV INFO',
  'EXPRESSIONS.target': 'NFTA_TARGET_ NAME REV INFO',
  'EXPRESSIONS.counter': 'NFTA_COUNTER_ BYTES PACKETS',
  'EXPRESSIONS.limit': 'NFTA_LIMIT_ RATE UNIT BURST TYPE FLAGS',
  'EXPRESSIONS.log': 'NFTA_LOG_ PREFIX GROUP SNAPLEN QTHRESHOLD LEVEL FLAGS',
  RANGE: 'NFTA_RANGE_ SREG OP FROM_DATA TO_DATA',
  SET: 'NFTA_SET_ TABLE NAME FLAGS KEY_TYPE KEY_LEN DATA_TYPE DATA_LEN POLICY DESC ID TIMEOUT GC_INTERVAL USERDATA OBJ_TYPE HANDLE EXPR EXPRESSIONS',
  'SET.desc': 'NFTA_SET_DESC_ SIZE',
  SET_ELEMENT: 'NFTA_SET_ELEM_ KEY DATA FLAGS TIMEOUT EXPIRATION USERDATA EXPR KEY_END',
  LIST_ELEMENT: 'NFTA_LIST_ ELEM',
  SET_ELEMENTS: 'NFTA_SET_ELEM_LIST_ TABLE SET ELEMENTS',
  RULE: 'NFTA_RULE_ TABLE CHAIN HANDLE EXPRESSIONS COMPAT POSITION USERDATA',
  'RULE.compat': 'NFTA_RULE_COMPAT_ PROTO FLAGS',
  COMPILED_RULE: 'NFTA_RULE_ TABLE CHAIN EXPRESSIONS COMPAT USERDATA',
  RULE_BYTES: 'NFTA_RULE_ TABLE CHAIN HANDLE EXPRESSIONS USERDATA',
  COUNTER_EXPRESSION: 'NFTA_EXPR_ DATA',
  'COUNTER_EXPRESSION.counter': 'NFTA_COUNTER_ BYTES PACKETS',
  RULE_PLACE: 'NFTA_RULE_ TABLE CHAIN HANDLE',
  GENERATION: 'NFTA_GEN_ ID PROC_PID PROC_NAME',
  TRACE: 'NFTA_TRACE_ TABLE CHAIN RULE_HANDLE TYPE VERDICT ID NETWORK_HEADER TRANSPORT_HEADER IIF OIF POLICY',
}

const IPSET: Readonly<Record<string, string>> = {
  ADDRESS: 'IPSET_ATTR_ IPADDR_IPV4 IPADDR_IPV6',
  ENTRY: 'IPSET_ATTR_ IP PORT PROTO IP2 CIDR2 CADT_FLAGS CADT_LINENO',
  LIST_ENTRY: 'IPSET_ATTR_ DATA',
  KIND_OF_SET: 'IPSET_ATTR_ PROTOCOL SETNAME TYPENAME REVISION FAMILY',
  SET: 'IPSET_ATTR_ PROTOCOL SETNAME TYPENAME REVISION FAMILY FLAGS DATA ADT',
  'SET.shape':
    'IPSET_ATTR_ PORT PORT_TO TIMEOUT CADT_FLAGS INITVAL HASHSIZE MAXELEM NETMASK BITMASK BUCKETSIZE ELEMENTS REFERENCES MEMSIZE',
  ENTRIES: 'IPSET_ATTR_ PROTOCOL SETNAME LINENO',
  SWAP: 'IPSET_ATTR_ PROTOCOL SETNAME SETNAME2',
  REFUSED: 'IPSET_ATTR_ LINENO',
  TYPE: 'IPSET_ATTR_ PROTOCOL TYPENAME FAMILY REVISION REVISION_MIN',
  INDEX: 'IPSET_ATTR_ PROTOCOL SETNAME INDEX',
}

const CONNTRACK: Readonly<Record<string, string>> = {
  TUPLE: 'CTA_TUPLE_ IP PROTO ZONE',
  'TUPLE.ip': 'CTA_IP_ V4_SRC V4_DST V6_SRC V6_DST',
  'TUPLE.proto': 'CTA_PROTO_ NUM SRC_PORT DST_PORT',
  CONNTRACK: 'CTA_ TUPLE_ORIG TUPLE_REPLY STATUS STATUS_MASK TIMEOUT MARK ZONE FILTER',
  'CONNTRACK.filter': 'CTA_FILTER_ ORIG_FLAGS',
  HEAD: 'CTA_ TUPLE_ORIG',
  'HEAD.original': 'CTA_TUPLE_ IP PROTO',
  'HEAD.original.ip': 'CTA_IP_ V4_DST V6_DST',
  'HEAD.original.proto': 'CTA_PROTO_ NUM DST_PORT',
  REST: 'CTA_ TUPLE_ORIG TUPLE_REPLY STATUS ID ZONE',
  RECORD: 'CTA_ TUPLE_ORIG TUPLE_REPLY STATUS COUNTERS_ORIG COUNTERS_REPLY TIMESTAMP',
  'RECORD.sent': 'CTA_COUNTERS_ PACKETS BYTES',
  'RECORD.time': 'CTA_TIMESTAMP_ START STOP',
  PROGRESS: 'CTA_ STATUS PROTOINFO TIMEOUT ID',
  'PROGRESS.protocolInfo': 'CTA_PROTOINFO_ TCP',
  'PROGRESS.protocolInfo.tcp': 'CTA_PROTOINFO_TCP_ STATE',
  STATS_GLOBAL: 'CTA_STATS_GLOBAL_ ENTRIES MAX_ENTRIES',
  STATS_CPU: 'CTA_STATS_ INSERT_FAILED DROP EARLY_DROP',
}

const IPVS: Readonly<Record<string, string>> = {
  STATS: 'IPVS_STATS_ATTR_ CONNS INPKTS OUTPKTS INBYTES OUTBYTES',
  SERVICE: 'IPVS_SVC_ATTR_ AF PROTOCOL ADDR PORT FWMARK SCHED_NAME FLAGS TIMEOUT NETMASK',
  DESTINATION:
    'IPVS_DEST_ATTR_ ADDR PORT FWD_METHOD WEIGHT U_THRESH L_THRESH ACTIVE_CONNS INACT_CONNS ADDR_FAMILY STATS64',
  COMMAND: 'IPVS_CMD_ATTR_ SERVICE DEST TIMEOUT_TCP TIMEOUT_TCP_FIN TIMEOUT_UDP',
  INFO: 'IPVS_INFO_ATTR_ VERSION CONN_TAB_SIZE',
}

const LINK: Readonly<Record<string, string>> = {
  ADDRESS: 'IFA_ ADDRESS LOCAL',
  LINK: 'IFLA_ IFNAME LINKINFO',
  'LINK.info': 'IFLA_INFO_ KIND',
}

const NETFILTER = 'linux/netfilter.h linux/netfilter/nfnetlink.h'
/** Younger than the oldest headers we build on. */
const YOUNGER = new Map([['IPSET_ATTR_BITMASK', '6, 2, 0']])

it.each([
  ['nftables', nft, NFT, `${NETFILTER} linux/netfilter/nf_tables.h linux/netfilter/nf_tables_compat.h`],
  ['ipset', ipset, IPSET, `${NETFILTER} linux/netfilter/ipset/ip_set.h`],
  ['conntrack', conntrack, CONNTRACK, `${NETFILTER} linux/netfilter/nfnetlink_conntrack.h`],
  ['IPVS', ipvs, IPVS, 'sys/socket.h linux/ip_vs.h'],
  ['interfaces', link, LINK, 'sys/socket.h linux/rtnetlink.h linux/if_link.h linux/if_addr.h'],
] as const)(
  'gives every row of the tables of %s the number of the kernel headers',
  (_, module, named, headers) => {
    const names = new Map(Object.entries(named).map(([table, text]) => [table, namesIn(text)]))
    const values = valuesInHeaders({
      headers: headers.split(' '),
      names: [...names.values()].flat(),
      younger: YOUNGER,
    })
    const tables = tablesIn(module)
    expect([...tables.keys()].sort()).toEqual([...names.keys()].sort())
    for (const [table, numbers] of tables) {
      const theirs = names.get(table)?.map((name, at) => values.get(name) ?? numbers[at])
      expect([table, ...numbers]).toEqual([table, ...(theirs ?? [])])
    }
  },
)

const TYPES = new Map<unknown, string>([
  [nft.positionOfWide, 'NLA_U64'],
  [codecs.u8, 'NLA_U8'],
  [codecs.u16be, 'NLA_U16'],
  [codecs.u32be, 'NLA_U32'],
  [codecs.s32be, 'NLA_U32'],
  [codecs.u64be, 'NLA_U64'],
  [codecs.string, 'NLA_STRING'],
  [codecs.octets, 'NLA_BINARY'],
])

/** Attributes whose comment in nf_tables.h is not what the kernel's code has. */
const MISDOCUMENTED: Readonly<Record<string, DocumentedAttribute>> = {
  // nft_log_policy has two numbers of 16 bits.
  NFTA_LOG_GROUP: { type: 'NLA_U16', of: undefined },
  NFTA_LOG_QTHRESHOLD: { type: 'NLA_U16', of: undefined },
  // The comment names the enum of the codes; nf_trace_fill_rule_info writes a nest of a code and a chain.
  NFTA_TRACE_VERDICT: { type: 'NLA_NESTED', of: 'nft_verdict_attributes' },
}

it('gives every attribute of nftables the type and the nesting that the comments of nf_tables.h name', () => {
  const { attributes, enums } = readDocumentedHeader('linux/netfilter/nf_tables.h')
  const names = new Map(Object.entries(NFT).map(([table, text]) => [table, namesIn(text)]))
  const tables = namedTables(nft)
  const differing: string[] = []
  let compared = 0
  for (const [table, name] of tables)
    for (const [at, { codec }] of table.columns.entries()) {
      const attribute = names.get(name)?.[at] ?? ''
      const documented = MISDOCUMENTED[attribute] ?? attributes.get(attribute)
      // Not every attribute has a comment.
      if (documented === undefined) continue
      compared++
      const type = TYPES.get(codec) ?? 'NLA_NESTED'
      const inner =
        'set' in codec && isTable(codec.set)
          ? (names.get(tables.get(codec.set) ?? '') ?? ['unnamed'])
          : undefined
      const theirs = enums.get(documented.of ?? '')
      const isNested = inner === undefined || theirs === undefined || inner.every(one => theirs.includes(one))
      if (type !== documented.type.replace('NUL_', '') || !isNested)
        differing.push(`${attribute}: ${type}, and ${documented.type} ${documented.of} in the header`)
    }
  expect(differing).toEqual([])
  expect(compared).toBeGreaterThan(100)
})

function namesIn(text: string): readonly string[] {
  const [prefix = '', ...names] = text.split(' ')
  return names.map(name => prefix + name)
}

type Table = AttributeSet<Fields>

/** The numbers of the tables of a schema, by the name of each. */
function tablesIn(module: object): ReadonlyMap<string, readonly number[]> {
  return new Map(
    [...namedTables(module)].map(([{ columns }, name]) => [
      name,
      columns.map(({ number }) => number & NLA_TYPE_MASK),
    ]),
  )
}

/** The tables of a schema, and the tables within them, each with its first name. */
function namedTables(module: object): ReadonlyMap<Table, string> {
  const found = new Map<Table, string>()
  for (const [name, value] of Object.entries(module))
    if (isTable(value)) found.set(value, name)
    else if (name === 'EXPRESSIONS')
      for (const [key, table] of Object.entries<Table>(value)) found.set(table, `${name}.${key}`)
  for (const [table, name] of found)
    for (const { name: row, codec } of table.columns)
      if ('set' in codec && isTable(codec.set) && !found.has(codec.set))
        found.set(codec.set, `${name}.${row}`)
  return found
}

function isTable(value: unknown): value is Table {
  return typeof value === 'object' && value !== null && 'columns' in value
}
