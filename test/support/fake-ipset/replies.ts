import { SET } from '../../../src/kernel/ipset/state.ts'
import { NLM_F_MULTI, NLMSG_ERROR } from '../../../src/netlink/constants.ts'
import { writeNfGenMsg } from '../../../src/netlink/message.ts'
import {
  type AttributeSet,
  type Attributes,
  type Fields,
  type ValuesOf,
  writeAttributes,
} from '../../../src/netlink/schema.ts'
import { kernelMessage } from '../fake-kernel/replies.ts'
import { type FakeElement, type FakeIpset, TYPES } from './sets.ts'

export interface ReplyHead {
  readonly command: number
  readonly sequence: number
  readonly portId: number
  readonly flags?: number
}

export function ipsetMessage<F extends Fields>(
  { command, sequence, portId, flags = 0 }: ReplyHead,
  table: AttributeSet<F>,
  values: Attributes<F>,
): Uint8Array {
  return kernelMessage({ type: (6 << 8) | command, flags, sequence, portId }, out => {
    writeNfGenMsg(out.out, { family: 2, resourceId: 0 })
    writeAttributes(out, table, values)
  })
}

/** The whole refused message, with the line of the culprit where the request has its own (call_ad). */
export function refusedEntry(
  request: Uint8Array,
  { errno, line, lineAt, portId }: { errno: number; line: number; lineAt: number; portId: number },
): Uint8Array {
  const copy = Buffer.from(request)
  copy.writeUInt32LE(line, lineAt)
  return kernelMessage({ type: NLMSG_ERROR, flags: 0, sequence: copy.readUInt32LE(8), portId }, ({ out }) => {
    out.u32(-errno >>> 0)
    out.raw(copy)
  })
}

interface ListAsked extends Omit<ReplyHead, 'command' | 'flags'> {
  /** IPSET_FLAG_LIST_*. */
  readonly detail: number
}

const LIST_SETNAME = 2
const LIST_HEADER = 4
const IPSET_CMD_LIST = 7
/** About as many as fit into the page that the kernel lists into. */
const ELEMENTS_PER_MESSAGE = 80

/** Made one by one while the reader reads; until a set is read to its end, it is in use. */
export function* listMessages(sets: readonly FakeIpset[], asked: ListAsked): IterableIterator<Uint8Array> {
  const head = { ...asked, command: IPSET_CMD_LIST, flags: NLM_F_MULTI }
  for (const set of sets) {
    set.listings++
    try {
      yield* setMessages(set, head, asked.detail)
    } finally {
      set.listings--
    }
  }
}

function* setMessages(set: FakeIpset, head: ReplyHead, detail: number): IterableIterator<Uint8Array> {
  const short = { protocol: 6, name: set.name }
  if ((detail & LIST_SETNAME) !== 0) {
    yield ipsetMessage(head, SET, short)
    return
  }
  const { type, revision, family } = set
  const whole = { ...short, type, revision, family, shape: shapeOf(set) }
  if ((detail & LIST_HEADER) !== 0) {
    yield ipsetMessage(head, SET, whole)
    return
  }
  const elements = [...set.elements.values()]
  for (let from = 0; from === 0 || from < elements.length; from += ELEMENTS_PER_MESSAGE) {
    const entries = elements.slice(from, from + ELEMENTS_PER_MESSAGE).map(asListed)
    yield ipsetMessage(head, SET, { ...(from === 0 ? whole : short), entries })
  }
}

function shapeOf(set: FakeIpset): NonNullable<ValuesOf<typeof SET>['shape']> {
  const { type, references, elements, hashSize, maxElements, initialValue, timeoutS } = set
  const memoryBytes = 216 + elements.size * 16
  const common = { references, memoryBytes, elements: elements.size, timeout: timeoutS }
  if (type === 'bitmap:port') return { ...common, portFrom: 0, portTo: 0xffff }
  const tellsBuckets = set.revision >= (TYPES[type]?.buckets ?? 0)
  return { ...common, hashSize, maxElements, ...(tellsBuckets ? { bucketSize: 12, initialValue } : {}) }
}

function asListed({ ip, port, protocol, ip2, prefix2, flags }: FakeElement) {
  const address = (bytes: string) => (bytes.length === 4 ? { v4: bytes } : { v6: bytes })
  return {
    ip: ip === undefined ? undefined : address(ip),
    port,
    protocol,
    ip2: ip2 === undefined ? undefined : address(ip2),
    prefix2,
    flags,
  }
}
