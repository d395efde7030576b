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
  isTorn = false
  readonly #ways: Ways

  constructor(entries: readonly Entry[], ways: Ways = {}) {
    this.entries = entries
    this.#ways = ways
  }

  async dumpByReply({ isAnswered }: ReplyFilter, take: TakeEntry): Promise<boolean> {
    this.dumps.push(isAnswered ? 'answered' : 'unanswered')
    if (this.failure !== undefined) throw this.failure
    const listed = this.entries.filter(
      each => this.#ways.ignoresFilter === true || each.isHalfOpen !== isAnswered,
    )
    for (const each of listed) {
      const out = new ByteWriter(256)
      appendNew(out, { ...each, id: 7 }, 1)
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
    const texts = new Set(flows.map(flowText))
    this.deleted.push(...texts)
    this.entries = this.entries.filter(each => !texts.has(entryText(each)))
    return { deleted: flows.length, gone: 0 }
  }

  async close(): Promise<void> {
    this.entries = []
  }
}
