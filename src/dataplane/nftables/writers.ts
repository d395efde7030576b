import { type ForeignCommitsOptions, watchForeignCommits } from '../../kernel/nft/monitor.ts'
import type { WriterCommit } from '../../reconcile/dataplane.ts'

export interface Watching {
  readonly openTransport: () => ForeignCommitsOptions['transport']
  /** Port id of the socket that our own commits come from. */
  readonly own: number
  /** Name of our tables. */
  readonly table: string
}

/** Names the processes behind others' commits, on a socket of its own that ends with the subscription. */
export function watchWriters(
  { openTransport, own, table }: Watching,
  report: (commit: WriterCommit) => void,
): () => void {
  const transport = openTransport()
  const ours = new Set([`ip ${table}`, `ip6 ${table}`])
  const commits = watchForeignCommits({
    transport,
    ownPortIds: new Set([own]),
    onCommit: ({ generation, processId = 0, processName = 'an unnamed process', tables, complete }) => {
      const touchesUs = tables.some(name => ours.has(name))
      // Nobody is cleared by half of a story: whoever polls the generation finds a commit that was not told of.
      if (!touchesUs && !complete) return
      report({ generation, processId, processName, own: false, touchesUs })
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
