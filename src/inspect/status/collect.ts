import { errorText } from '../../base/errors.ts'
import { statusOf } from './status.ts'
import type { StatusDocument } from './status-document.ts'
import type { StatusFacts } from './status-facts.ts'

/** Where the facts come from: the command reads sockets and the kernel, and the page of a daemon reads the daemon itself. */
export interface StatusSources {
  readonly wallMs: () => number
  readonly version: string
  /** Rejects where nothing can be said about this node; the others may fail each. */
  readonly daemon: () => Promise<StatusFacts['daemon']>
  readonly rules: (daemon: StatusFacts['daemon']) => Promise<StatusFacts['rules']>
  readonly conntrack: (daemon: StatusFacts['daemon']) => Promise<StatusFacts['conntrack']>
  readonly refused: () => Promise<StatusFacts['refused']>
  readonly unanswered: (daemon: StatusFacts['daemon']) => Promise<StatusFacts['unanswered']>
}

/** Reads the facts and judges them. */
export async function collectStatus(sources: StatusSources): Promise<StatusDocument> {
  const daemon = await sources.daemon()
  const unread: StatusFacts['unread'][number][] = []
  const tried = async <T>(part: string, read: () => Promise<T | undefined>): Promise<T | undefined> => {
    try {
      return await read()
    } catch (error) {
      unread.push({ part, reason: errorText(error) })
      return undefined
    }
  }
  if (daemon.kind === 'answers' && daemon.refused === undefined)
    unread.push({ part: 'refused fields', reason: 'a daemon of an older release does not report them' })
  const rules = await tried('rules', () => sources.rules(daemon))
  const conntrack = await tried('connection table', () => sources.conntrack(daemon))
  const refused = await tried('refused packets', sources.refused)
  const unanswered = await tried('connections', () => sources.unanswered(daemon))
  const { version, wallMs } = sources
  return statusOf({ wallMs: wallMs(), version, daemon, rules, conntrack, refused, unanswered, unread })
}
