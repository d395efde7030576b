import {
  NFT_MSG_DELCHAIN,
  NFT_MSG_DELRULE,
  NFT_MSG_DELSET,
  NFT_MSG_DELSETELEM,
  NFT_MSG_DELTABLE,
  NFT_MSG_NEWCHAIN,
  NFT_MSG_NEWRULE,
  NFT_MSG_NEWSET,
  NFT_MSG_NEWSETELEM,
  NFT_MSG_NEWTABLE,
} from '../../../src/kernel/nft/constants.ts'
import { align4, type ByteView } from '../../../src/netlink/attribute.ts'
import { u32be } from '../../../src/netlink/codecs.ts'
import {
  NFNL_BATCH_GENID,
  NFNL_MSG_BATCH_BEGIN,
  NFNL_MSG_BATCH_END,
  NFNL_SUBSYS_NFTABLES,
  NLM_F_ACK,
  NLM_F_REQUEST,
  NLMSG_HDRLEN,
} from '../../../src/netlink/constants.ts'
import { errnoNumber } from '../../../src/netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH } from '../../../src/netlink/message.ts'
import { attributeSet } from '../../../src/netlink/schema.ts'
import { deleteChain, deleteRule, deleteTable, newChain, newRule, newTable } from './apply-chains.ts'
import { deleteElements, deleteSet, newElements, newSet } from './apply-sets.ts'
import { attributesOf, type Call, familyIn } from './call.ts'
import { checkTable } from './check-table.ts'
import type { FakeKernel } from './kernel.ts'
import { Journal, type Notice, Refusal } from './objects.ts'
import type { Verdict } from './replies.ts'

export interface BatchOutcome {
  /** Whether anything changed. */
  readonly committed: boolean
  readonly replies: readonly { readonly asked: Message; readonly verdict: Verdict }[]
  /** What there is to tell, when committed. */
  readonly notices: readonly (() => Notice)[]
}

const HANDLERS: ReadonlyMap<number, (call: Call) => void> = new Map([
  [NFT_MSG_NEWTABLE, newTable],
  [NFT_MSG_DELTABLE, deleteTable],
  [NFT_MSG_NEWCHAIN, newChain],
  [NFT_MSG_DELCHAIN, deleteChain],
  [NFT_MSG_NEWRULE, newRule],
  [NFT_MSG_DELRULE, deleteRule],
  [NFT_MSG_NEWSET, newSet],
  [NFT_MSG_DELSET, deleteSet],
  [NFT_MSG_NEWSETELEM, newElements],
  [NFT_MSG_DELSETELEM, deleteElements],
])

const BATCH_BEGIN = attributeSet({ generation: [NFNL_BATCH_GENID, u32be] })
const SUCCESS: Verdict = { errno: 0 }

/**
 * nfnetlink_rcv_skb_batch: every message is tried and every refusal is reported; unless all went well and the batch has
 * its end, all of it is taken back. Jumps are checked at the end, and if they are wrong the batch runs once more with a
 * check after each message that changes them, so that the culprit is named.
 */
export function runBatch(kernel: FakeKernel, view: ByteView): BatchOutcome {
  const stale = staleness(kernel, view)
  if (stale !== undefined) return { committed: false, replies: [stale], notices: [] }
  const first = attempt(kernel, view, { checkEach: false })
  return first.loops ? attempt(kernel, view, { checkEach: true }).outcome : first.outcome
}

function staleness(kernel: FakeKernel, view: ByteView): BatchOutcome['replies'][number] | undefined {
  const begin = messageAt(view, 0)
  if (begin === undefined) return undefined
  const { generation } = attributesOf({ view, message: begin }, BATCH_BEGIN)
  if (generation === undefined || generation === kernel.generation) return undefined
  return { asked: begin, verdict: { errno: errnoNumber('ERESTART') } }
}

interface Attempt {
  readonly outcome: BatchOutcome
  /** Everything was fine but for the jumps as a whole. */
  readonly loops: boolean
}

function attempt(kernel: FakeKernel, view: ByteView, options: { readonly checkEach: boolean }): Attempt {
  const journal = new Journal()
  const { complete, failed, replies } = readBatch(kernel, view, { ...options, journal })
  const isWhole = complete && !failed
  const loops = isWhole && ![...journal.toValidate].every(isSound)
  if (isWhole && !loops)
    return { outcome: { committed: journal.changes > 0, replies, notices: journal.notices }, loops }
  journal.rollBack()
  return { outcome: { committed: false, replies, notices: [] }, loops }
}

function isSound(table: Parameters<typeof checkTable>[0]): boolean {
  try {
    checkTable(table)
    return true
  } catch (error) {
    if (error instanceof Refusal) return false
    throw error
  }
}

interface Run {
  complete: boolean
  failed: boolean
  replies: { readonly asked: Message; readonly verdict: Verdict }[]
}

interface RunOptions {
  readonly checkEach: boolean
  readonly journal: Journal
}

function readBatch(kernel: FakeKernel, view: ByteView, options: RunOptions): Run {
  const run: Run = { complete: false, failed: false, replies: [] }
  let at = 0
  for (let message = messageAt(view, at); at < view.bytes.length; message = messageAt(view, at)) {
    // A broken frame, and a batch within a batch, end everything without a word.
    if (message === undefined || (message.type === NFNL_MSG_BATCH_BEGIN && at > 0)) {
      return { ...run, complete: false, replies: [] }
    }
    const wantsAck = (message.flags & NLM_F_ACK) !== 0
    if (message.type === NFNL_MSG_BATCH_END) {
      run.complete = true
      const isAcked = wantsAck && !run.failed
      if (isAcked) run.replies.push({ asked: message, verdict: SUCCESS })
      return run
    }
    const verdict = at === 0 ? SUCCESS : verdictOn(kernel, { view, message, ...options })
    if (verdict.errno !== 0) run.failed = true
    if (wantsAck || verdict.errno !== 0) run.replies.push({ asked: message, verdict })
    at = align4(message.end)
  }
  return run
}

interface Step extends RunOptions {
  readonly view: ByteView
  readonly message: Message
}

function verdictOn(kernel: FakeKernel, step: Step): Verdict {
  const { view, message, journal } = step
  const forced = kernel.forced.find(({ matches }) => matches(message))
  if (forced !== undefined) return { errno: errnoNumber(forced.code) }
  const handler = message.type >> 8 === NFNL_SUBSYS_NFTABLES ? HANDLERS.get(message.type & 255) : undefined
  const isRequest = (message.flags & NLM_F_REQUEST) !== 0
  if (!isRequest || handler === undefined) return { errno: errnoNumber('EINVAL') }
  journal.blame = undefined
  const heard = journal.notices.length
  const family = familyIn(view, message)
  try {
    handler({ space: kernel.space, journal, view, message, family })
    // Of sets and elements, and of what is added and has no number yet, listeners are told what was asked.
    if (journal.notices.length === heard) journal.notices.push(() => repeated({ view, message, family }))
    if (step.checkEach && changesJumps(message)) for (const table of journal.toValidate) checkTable(table)
    return SUCCESS
  } catch (error) {
    if (!(error instanceof Refusal)) throw error
    return { errno: error.errno, offset: error.offset ?? journal.culprit() }
  }
}

function repeated({ view, message, family }: Pick<Call, 'view' | 'message' | 'family'>): Notice {
  const body = view.bytes.subarray(message.start + NFGENMSG_LENGTH, message.end)
  return { kind: message.type & 255, family, asked: message, write: ({ out }) => out.raw(body) }
}

function changesJumps({ type }: Message): boolean {
  return (type & 255) === NFT_MSG_NEWRULE || (type & 255) === NFT_MSG_NEWSETELEM
}

/** The message at `at`, if its frame is whole. */
function messageAt({ data }: ByteView, at: number): Message | undefined {
  if (data.byteLength - at < NLMSG_HDRLEN + NFGENMSG_LENGTH) return undefined
  const length = data.getUint32(at, true)
  if (length < NLMSG_HDRLEN + NFGENMSG_LENGTH || length > data.byteLength - at) return undefined
  return {
    type: data.getUint16(at + 4, true),
    flags: data.getUint16(at + 6, true),
    sequence: data.getUint32(at + 8, true),
    portId: data.getUint32(at + 12, true),
    start: at + NLMSG_HDRLEN,
    end: at + length,
  }
}
