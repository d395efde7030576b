import type { NftClient } from '../../kernel/nft/client.ts'
import { type ForeignCommitsOptions, type Touched, watchForeignCommits } from '../../kernel/nft/monitor.ts'
import { type Dataplane, generationOf, type WriterCommit } from '../../reconcile/dataplane.ts'

export interface WatchedSocket {
  readonly openTransport: () => ForeignCommitsOptions['transport']
  /** The port id of the socket that our own commits come from. */
  readonly own: number
}

/** Watches the generation for the client that makes our own commits, over a socket of its own. */
export function generationWatch(
  client: Pick<NftClient, 'watchGeneration'>,
  openTransport: WatchedSocket['openTransport'],
): NonNullable<Dataplane<unknown>['watchGeneration']> {
  return (everyMs, changed) => client.watchGeneration(openTransport(), everyMs, changed)
}

interface WatchedObjects extends WatchedSocket {
  /** Whether the changed object is ours or leads to ours. */
  readonly touchesUs: (touched: Touched) => boolean
}

/**
 * Reports the processes that commit for other programs. It uses a socket of its own, which is closed with the
 * subscription.
 */
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
      // An incomplete notification proves nothing. The generation poll finds the commit.
      if (!concerned && !complete) return
      report({
        generation: generationOf(generation),
        processId,
        processName,
        own: false,
        touchesUs: concerned,
      })
    },
    // The generation poll still finds the commit. Without its notification the writer stays unnamed.
    onOverrun: () => undefined,
  })
  return () => {
    commits.stop()
    // The socket only receives, so nothing is in flight.
    void transport.close()
  }
}

/** Does the same for a mode whose objects are its own tables `ip` and `ip6` of this name. */
export function watchTableWriters(
  { table: ours, ...socket }: WatchedSocket & { readonly table: string },
  report: (commit: WriterCommit) => void,
): () => void {
  const touchesUs = ({ family, table }: Touched): boolean =>
    table === ours && (family === 'ip' || family === 'ip6')
  return watchWritersOf({ ...socket, touchesUs }, report)
}
