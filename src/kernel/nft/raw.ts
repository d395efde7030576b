import type { Clock } from '../../base/clock.ts'
import { cString } from '../../base/octets.ts'
import { type ByteView, forEachAttribute, viewOf } from '../../netlink/attribute.ts'
import { type Connection, sendDatagram } from '../../netlink/connection.ts'
import {
  NFNL_MSG_BATCH_BEGIN,
  NFNL_MSG_BATCH_END,
  NFNL_SUBSYS_NFTABLES,
  NLA_HDRLEN,
  NLM_F_APPEND,
  NLM_F_CREATE,
  NLM_F_DUMP,
  NLMSG_HDRLEN,
} from '../../netlink/constants.ts'
import { errnoName, errnoWords, malformed } from '../../netlink/errors.ts'
import {
  Batch,
  type Message,
  type NfGenMsg,
  nfSpan,
  readMessages,
  readNfGenMsg,
  writeNfGenMsg,
} from '../../netlink/message.ts'
import { type AttributeSet, type Fields, readAttributes, writeAttributes } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import { decodeRule } from './decode.ts'
import { getRequest, readSettled } from './dump.ts'
import { CHAIN, OBJECT, RULE, SET, SET_ELEMENTS, TABLE } from './schema.ts'
import type { Rule } from './state.ts'
import { familyName } from './survey.ts'

/* The nf_tables rules of all programs as the kernel lists them: messages NFT_MSG_NEW*, one behind the other, in the order in
   which a kernel can take them again. Nothing is decoded that a copy does not need, so that it has what kprobe does not know. */

function numbersOf<F extends Fields>({ fields }: AttributeSet<F>, ...names: (keyof F)[]): readonly number[] {
  return names.flatMap(name => fields[name]?.[0] ?? [])
}

/** Object kinds in the order of a copy, with the request that lists them, and the attributes that a copy keeps. */
const KINDS = [
  {
    word: 'table',
    list: nft.NFT_MSG_GETTABLE,
    type: nft.NFT_MSG_NEWTABLE,
    keep: numbersOf(TABLE, 'name', 'userdata'),
  },
  {
    word: 'chain',
    list: nft.NFT_MSG_GETCHAIN,
    type: nft.NFT_MSG_NEWCHAIN,
    keep: numbersOf(CHAIN, 'table', 'name', 'hook', 'policy', 'type', 'flags', 'userdata'),
  },
  {
    word: 'object',
    list: nft.NFT_MSG_GETOBJ,
    type: nft.NFT_MSG_NEWOBJ,
    keep: numbersOf(OBJECT, 'table', 'name', 'type', 'data', 'userdata'),
  },
  {
    word: 'set',
    list: nft.NFT_MSG_GETSET,
    type: nft.NFT_MSG_NEWSET,
    keep: [
      ...numbersOf(
        SET,
        'table',
        'name',
        'flags',
        'keyType',
        'keyLength',
        'dataType',
        'dataLength',
        'policy',
        'desc',
      ),
      ...numbersOf(SET, 'timeout', 'gcInterval', 'userdata', 'objectType', 'expression', 'expressions'),
    ],
  },
  {
    word: 'elements of set',
    type: nft.NFT_MSG_NEWSETELEM,
    keep: numbersOf(SET_ELEMENTS, 'table', 'set', 'elements'),
  },
  {
    word: 'rule of chain',
    list: nft.NFT_MSG_GETRULE,
    type: nft.NFT_MSG_NEWRULE,
    keep: numbersOf(RULE, 'table', 'chain', 'expressions', 'compat', 'userdata'),
  },
] as const

type Kind = (typeof KINDS)[number]

const KIND_OF: ReadonlyMap<number, Kind> = new Map(
  KINDS.map(kind => [(NFNL_SUBSYS_NFTABLES << 8) | kind.type, kind]),
)

interface RawOptions {
  readonly connection: Connection
  readonly clock: Clock
  /** Reading fails beyond it. */
  readonly bytesMax: number
}

interface RawRuleset {
  readonly bytes: Buffer
  /** Other programs committed during every attempt: parts may be of different moments. */
  readonly unsettled: boolean
}

/** Reads the rules of all programs in this network namespace. Throws NetlinkError, and an Error beyond `bytesMax`. */
export async function readRaw({ connection, clock, bytesMax }: RawOptions): Promise<RawRuleset> {
  const { value, unsettled } = await readSettled({
    connection,
    clock,
    object: 'all tables',
    read: async attempt => {
      const messages = new RawMessages(bytesMax)
      for (const kind of KINDS) {
        const places = 'list' in kind ? [undefined] : messages.sets
        for (const set of places) {
          const request = set === undefined && 'list' in kind ? kind.list : nft.NFT_MSG_GETSETELEM
          await attempt.list({
            operation: 'list',
            object: kind.word,
            build: sequence =>
              getRequest({ type: request, flags: NLM_F_DUMP, family: set?.family ?? 0, sequence }, out => {
                if (set !== undefined) writeAttributes(out, SET_ELEMENTS, set)
              }),
            onMessage: (view, message) => messages.add(view, message),
          })
        }
      }
      return messages.bytes
    },
  })
  return { bytes: value, unsettled }
}

/** Messages of dumps, copied. */
class RawMessages {
  /** The sets so far, whose elements the kernel lists set by set. */
  readonly sets: { readonly family: number; readonly table: string; readonly set: string }[] = []
  readonly #chunks: Buffer[] = []
  readonly #bytesMax: number
  #length = 0

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax
  }

  get bytes(): Buffer {
    return Buffer.concat(this.#chunks, this.#length)
  }

  add(view: ByteView, message: Message): void {
    const { type, start, end } = message
    if (type === ((NFNL_SUBSYS_NFTABLES << 8) | nft.NFT_MSG_NEWSET)) {
      const { table = '', name = '' } = readAttributes(view, SET, nfSpan(message))
      this.sets.push({ family: readNfGenMsg(view, message).family, table, set: name })
    }
    const copy = Buffer.alloc(NLMSG_HDRLEN + ((end - start + 3) & ~3))
    copy.writeUInt32LE(NLMSG_HDRLEN + end - start, 0)
    copy.writeUInt16LE(type, 4)
    view.bytes.copy(copy, NLMSG_HDRLEN, start, end)
    this.#length += copy.length
    if (this.#length > this.#bytesMax) throw new Error(`the rules take more than ${this.#bytesMax} bytes`)
    this.#chunks.push(copy)
  }
}

/** One object of a copy. */
export interface RawObject {
  readonly kind: Kind
  readonly view: ByteView
  readonly message: Message
  readonly family: number
  /** `rule of chain ip nat OUTPUT`. */
  readonly words: string
  readonly table: string
  /** Its set vanishes without the rule that uses it, and has to come with that rule. */
  readonly isAnonymous: boolean
}

/** Reads a copy; calls `name` with each name of a table, chain, set or object in it. Throws NetlinkError for other bytes. */
export function readObjects(
  bytes: Buffer,
  name: (text: string) => void = () => undefined,
): readonly RawObject[] {
  const view = viewOf(bytes)
  const anonymous = new Set<string>()
  return readMessages(view).map(message => {
    const kind = KIND_OF.get(message.type)
    if (kind === undefined) throw malformed(`a message of type ${message.type}`, message.start)
    const { family } = readNfGenMsg(view, message)
    const names = namesOf(view, message, kind)
    for (const each of names) name(each)
    const key = [family, ...names].join(' ')
    if (kind.word === 'set') {
      const { flags = 0 } = readAttributes(view, SET, nfSpan(message))
      if ((flags & nft.NFT_SET_ANONYMOUS) !== 0) anonymous.add(key)
    }
    return {
      kind,
      view,
      message,
      family,
      words: `${kind.word} ${[familyName(view, message), ...names].join(' ')}`,
      table: `${family} ${names[0] ?? ''}`,
      isAnonymous: (kind.word === 'set' || kind.word === 'elements of set') && anonymous.has(key),
    }
  })
}

/** Gives the name of a table, or the names of the table and of its part: they are the first attributes that are kept. */
function namesOf(view: ByteView, message: Message, { word, keep }: Kind): readonly string[] {
  const wanted: readonly number[] = word === 'table' ? keep.slice(0, 1) : keep.slice(0, 2)
  const names: string[] = wanted.map(() => '')
  const { start, end } = nfSpan(message)
  forEachAttribute(view, start, end, (type, from, to) => {
    const at = wanted.indexOf(type)
    if (at >= 0) names[at] = view.bytes.toString('utf8', from, to).replace(/\0.*$/s, '')
  })
  return names
}

/** An object that a kernel does not take, with its reason. */
interface Unloaded {
  readonly object: string
  readonly reason: string
}

/** Maximum bytes of one batch: every message may be answered by an error, and all of them wait in the receive buffer. */
const BATCH_BYTES_MAX = 64 * 1024
/** The kernel names several culprits of a batch at once. */
const ROUNDS_MAX = 64

/**
 * Writes a copy into this network namespace, which has no tables, and skips what the kernel does not take. Gives the
 * skipped objects. Throws NetlinkError for bytes that are no copy.
 */
export async function loadRaw(
  bytes: Buffer,
  { connection, clock }: Pick<RawOptions, 'connection' | 'clock'>,
): Promise<readonly Unloaded[]> {
  const unloaded: Unloaded[] = []
  for (const batch of batchesOf(readObjects(bytes), Math.min(connection.sendLimitBytes, BATCH_BYTES_MAX))) {
    let rest = batch
    for (let round = 0; rest.length > 0; round++) {
      const refused = await send(rest, { connection, clock }, round === ROUNDS_MAX)
      unloaded.push(...[...refused].map(([{ words }, reason]) => ({ object: words, reason })))
      if (refused.size === 0) break
      rest = rest.filter(object => !refused.has(object))
    }
  }
  return unloaded
}

/** Divides objects into batches: each kind after those that it refers to, anonymous sets with the rules of their table. */
function* batchesOf(objects: readonly RawObject[], bytesMax: number): Generator<readonly RawObject[]> {
  for (const { word } of KINDS.slice(0, -1))
    yield* chunksOf(
      objects.filter(object => object.kind.word === word && !object.isAnonymous),
      bytesMax,
    )
  const byTable = new Map<string, RawObject[]>()
  for (const object of objects)
    if (object.isAnonymous || object.kind.type === nft.NFT_MSG_NEWRULE) {
      const list = byTable.get(object.table) ?? []
      list.push(object)
      byTable.set(object.table, list)
    }
  for (const list of byTable.values())
    if (list.some(({ isAnonymous }) => isAnonymous)) yield list
    else yield* chunksOf(list, bytesMax)
}

function* chunksOf(objects: readonly RawObject[], bytesMax: number): Generator<readonly RawObject[]> {
  let [chunk, bytes]: [RawObject[], number] = [[], 0]
  for (const object of objects) {
    const length = object.message.end - object.message.start + ADDED_BYTES
    if (chunk.length > 0 && bytes + length > bytesMax) {
      yield chunk
      ;[chunk, bytes] = [[], 0]
    }
    chunk.push(object)
    bytes += length
  }
  yield chunk
}

/** The header of a message, and attributes that a copy lacks. */
const ADDED_BYTES = 64

/** Sends one batch. Gives the objects that the kernel rejects; all, where it cannot say which, or `isLast`. */
async function send(
  objects: readonly RawObject[],
  sender: Pick<RawOptions, 'connection' | 'clock'>,
  isLast: boolean,
): Promise<ReadonlyMap<RawObject, string>> {
  if (objects.length === 0) return new Map()
  const { connection } = sender
  const first = connection.takeSequences(objects.length + 2)
  const batch = new Batch<RawObject | undefined>(first)
  const border = { family: 0, resourceId: NFNL_SUBSYS_NFTABLES }
  writeMessage(batch, { type: NFNL_MSG_BATCH_BEGIN, ...border })
  objects.forEach((object, id) => void writeObject(batch, object, id + 1))
  batch.acknowledgeLast()
  writeMessage(batch, { type: NFNL_MSG_BATCH_END, ...border })
  const burst = { bytes: batch.bytes, has: (sequence: number) => batch.has(sequence) }
  const replies = await sendDatagram(sender, burst, { pool: true, object: 'copy of nf_tables' })
  const whole = replies.unsent ?? replies.loss
  const refused = new Map<RawObject, string>()
  for (const { sequence, errno, extendedAck } of replies.errors) {
    const object = batch.tagOf(sequence)
    if (object !== undefined) refused.set(object, reasonOf(errno, extendedAck))
  }
  const isVain = isLast || whole !== undefined || (refused.size === 0 && replies.errors.length > 0)
  if (!isVain) return refused
  const { errno = 0, extendedAck } = whole ?? replies.errors[0] ?? {}
  return new Map(objects.map(object => [object, refused.get(object) ?? reasonOf(errno, extendedAck)]))
}

function reasonOf(errno: number, extendedAck: string | undefined): string {
  const words = `${errnoWords(errno)} (${errnoName(errno)})`
  return extendedAck === undefined ? words : `${words}: ${extendedAck}`
}

function writeMessage(
  batch: Batch<RawObject | undefined>,
  { type, ...head }: NfGenMsg & { readonly type: number },
): void {
  batch.open(type)
  writeNfGenMsg(batch.out.out, head)
  batch.close(undefined)
}

/** Writes what a copy keeps of an object. What only the kernel may set is left out. */
function writeObject(batch: Batch<RawObject | undefined>, object: RawObject, id: number): void {
  const { kind, view, message, family } = object
  const isRule = kind.type === nft.NFT_MSG_NEWRULE
  batch.open(message.type, NLM_F_CREATE | (isRule ? NLM_F_APPEND : 0))
  writeNfGenMsg(batch.out.out, { family, resourceId: 0 })
  const keep: readonly number[] = kind.keep
  const { start, end } = nfSpan(message)
  forEachAttribute(view, start, end, (type, from, to) => {
    if (keep.includes(type)) batch.out.octets(typeAt(view, from), view.bytes.toString('latin1', from, to))
    else if (kind.word === 'table' && type === TABLE.fields.flags[0])
      // The owner of a table is a socket, and a table without its socket would vanish.
      batch.out.u32be(type, view.data.getUint32(from) & nft.NFT_TABLE_F_DORMANT)
  })
  if (kind.word === 'set') batch.out.u32be(SET.fields.id[0], id)
  if (isRule) writeCompat(batch, object)
  batch.close(object)
}

/** The type of an attribute, with its flags. */
function typeAt(view: ByteView, payload: number): number {
  return view.data.getUint16(payload - NLA_HDRLEN + 2, true)
}

/** Writes the protocol for which extensions of iptables check their rule. The kernel does not list it. */
function writeCompat(batch: Batch<RawObject | undefined>, { view, message }: RawObject): void {
  const { expressions } = decodeRule(view, message).value
  const isExtended = expressions.some(({ kind }) => kind === 'match' || kind === 'target')
  const protocol = isExtended ? protocolOf(expressions) : undefined
  if (protocol === undefined) return
  const flags = protocol.inverted ? nft.NFT_RULE_COMPAT_F_INV : 0
  writeAttributes(batch.out, RULE, { compat: { protocol: protocol.number, flags } })
}

function protocolOf(expressions: Rule['expressions']): { number: number; inverted: boolean } | undefined {
  const at = expressions.findIndex(each => each.kind === 'meta' && each.key === nft.NFT_META_L4PROTO)
  const compared = at < 0 ? undefined : expressions[at + 1]
  if (compared?.kind !== 'cmp' || compared.data.length !== 1) return undefined
  return { number: compared.data.charCodeAt(0), inverted: compared.op === 'neq' }
}

/** Gives the names of the counters of nfacct that rules of a copy use: the kernel takes these rules only where they exist. */
export function accountsIn(bytes: Buffer): ReadonlySet<string> {
  const names = new Set<string>()
  for (const { kind, view, message } of readObjects(bytes)) {
    if (kind.type !== nft.NFT_MSG_NEWRULE) continue
    for (const each of decodeRule(view, message).value.expressions)
      if (each.kind === 'match' && each.name === 'nfacct') names.add(cString(each.info))
  }
  return names
}
