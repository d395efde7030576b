import type { Touched } from '../../kernel/nft/monitor.ts'
import type { WriterCommit } from '../../reconcile/dataplane.ts'
import { type WatchedSocket, watchWritersOf } from '../common/writers.ts'

export interface Watching extends WatchedSocket {
  /** Name of our tables. */
  readonly table: string
}

/** Names the processes behind others' commits to any table, and says which of them are to ours. */
export function watchWriters(
  { table: ours, ...socket }: Watching,
  report: (commit: WriterCommit) => void,
): () => void {
  const touchesUs = ({ family, table }: Touched): boolean =>
    table === ours && (family === 'ip' || family === 'ip6')
  return watchWritersOf({ ...socket, touchesUs }, report)
}
