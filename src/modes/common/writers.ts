import { type ForeignCommitsOptions, type Touched, watchForeignCommits } from '../../kernel/nft/monitor.ts'
import type { WriterCommit } from '../../reconcile/dataplane.ts'

export interface WatchedSocket {
  readonly openTransport: () => ForeignCommitsOptions['transport']
  /** Port id of the socket that our own commits come from. */
  readonly own: number
}

interface WatchedObjects extends WatchedSocket {
  /** Whether what a notification is about is ours, or leads to what is. */
  readonly touchesUs: (touched: Touched) => boolean
}

/** Names the processes behind others' commits, on a socket of its own that ends with the subscription. */
export function watchWritersOf(
  { openTransport, own, touchesUs: concerns }: WatchedObjects,
  report: (commit: WriterCommit) => void,
): () => void {
  const transport = openTransport()
  const commits = watchForeignCommits({
    transport,
    ownPortIds: new Set([own]),
    concerns,
    onCommit: ({ generation, processId = 0, processName = 'an unnamed process', concerned, complete }) => {
      // Nobody is cleared by half of a story: whoever polls the generation finds a commit that was not told of.
      if (!concerned && !complete) return
      report({ generation, processId, processName, own: false, touchesUs: concerned })
    },
    // The generation tells that somebody committed; without its notification nobody is named.
    onOverrun: () => undefined,
  })
  return () => {
    commits.stop()
    // Nothing is in flight on a socket that only listens.
    void transport.close()
  }
}

/** The same for a mode whose objects are tables of its own, `ip` and `ip6` of this name. */
export function watchTableWriters(
  { table: ours, ...socket }: WatchedSocket & { readonly table: string },
  report: (commit: WriterCommit) => void,
): () => void {
  const touchesUs = ({ family, table }: Touched): boolean =>
    table === ours && (family === 'ip' || family === 'ip6')
  return watchWritersOf({ ...socket, touchesUs }, report)
}
