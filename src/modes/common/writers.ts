import { GenerationWatch } from '../../kernel/nft/dump.ts'
import { type ForeignCommitsOptions, type Touched, watchForeignCommits } from '../../kernel/nft/monitor.ts'
import {
  counterOf,
  type Dataplane,
  type Generation,
  generationOf,
  type WriterCommit,
} from '../../reconcile/dataplane.ts'

export interface WatchedSocket {
  readonly openTransport: () => ForeignCommitsOptions['transport']
  /** The port id of the socket that our own commits come from. */
  readonly own: number
}

/** Watches the generation over a socket of its own, which is closed with the watch. */
export function generationWatch(
  openTransport: WatchedSocket['openTransport'],
  counter: (generation: Generation) => number = counterOf,
): NonNullable<Dataplane<unknown>['watchGeneration']> {
  return (everyMs, changed) => {
    const watch = GenerationWatch.open(openTransport(), everyMs, changed)
    return watch && { expect: generation => watch.expect(counter(generation)), stop: () => watch.stop() }
  }
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
