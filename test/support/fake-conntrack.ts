import type { ConntrackReader, FlowVisitor, TakeEntry } from '../../src/kernel/conntrack/client.ts'
import type { Flow, FlowFilter, ReplyFilter } from '../../src/kernel/conntrack/flow.ts'
import { ByteWriter, viewOf } from '../../src/netlink/attribute.ts'
import { readMessages } from '../../src/netlink/message.ts'
import { appendNew, type Entry, entryText, flow, flowText } from '../unit/kernel/conntrack/flows.ts'

interface Ways {
  /** Lists all entries, as Linux before 5.15 does. */
  readonly ignoresFilter?: boolean
}

/** A connection-tracking table that lists its entries as the kernel does. */
export class FakeConntrack implements Pick<ConntrackReader, 'dump' | 'dumpByReply' | 'delete' | 'close'> {
  entries: readonly Entry[]
  readonly dumps: string[] = []
  readonly deleted: string[] = []
  failure: Error | undefined
  deleteFailure: Error | undefined
  isTorn = false
  /** Called once a listing has begun, before its first entry. */
  during: (filter: ReplyFilter) => void = () => undefined
  readonly #ids = new Map<string, number>()
  readonly #ways: Ways

  constructor(entries: readonly Entry[], ways: Ways = {}) {
    this.entries = entries
    this.#ways = ways
  }

  async dumpByReply(filter: ReplyFilter, take: TakeEntry): Promise<boolean> {
    const { isAnswered, isDnat } = filter
    this.dumps.push(isAnswered ? 'answered' : 'unanswered')
    if (this.failure !== undefined) throw this.failure
    const isListed = ({ isHalfOpen, to, answeredBy }: Entry) =>
      isHalfOpen !== isAnswered && (isDnat !== true || to !== answeredBy)
    const listed = this.entries.filter(each => this.#ways.ignoresFilter === true || isListed(each))
    this.during(filter)
    for (const each of listed) {
      const out = new ByteWriter(256)
      appendNew(out, { ...each, id: this.#idOf(each) }, 1)
      const view = viewOf(out.written().slice())
      for (const message of readMessages(view)) take(view, message)
    }
    return !this.isTorn
  }

  async dump({ family, protocol }: FlowFilter, { isWanted, visit }: FlowVisitor): Promise<boolean> {
    this.dumps.push(`${protocol} ${family}`)
    if (this.failure !== undefined) throw this.failure
    for (const each of this.entries) {
      const { from, to, answeredBy, isHalfOpen } = each
      const listed = flow(from, to, answeredBy, { protocol: each.protocol, isHalfOpen })
      if (listed.family !== family || each.protocol !== protocol) continue
      if (isWanted(listed.destination, listed.destinationPort)) visit(listed)
    }
    return true
  }

  async delete(flows: readonly Flow[]): Promise<{ readonly deleted: number; readonly gone: number }> {
    if (this.deleteFailure !== undefined) throw this.deleteFailure
    const texts = new Set(flows.map(flowText))
    this.deleted.push(...texts)
    this.entries = this.entries.filter(each => !texts.has(entryText(each)))
    return { deleted: flows.length, gone: 0 }
  }

  async close(): Promise<void> {
    this.entries = []
  }

  /** The kernel's ids have 32 bits. */
  #idOf(entry: Entry): number {
    const text = entryText(entry)
    const id = this.#ids.get(text) ?? 0xffff_fff0 - this.#ids.size
    this.#ids.set(text, id)
    return id
  }
}
