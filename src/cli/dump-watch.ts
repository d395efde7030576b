import { pause, restMs, systemClock } from '../base/clock.ts'
import { HERE } from '../daemon/open.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import type { ServiceRow } from '../modes/common/show.ts'
import type { Io } from './io.ts'

export interface RowsRead {
  readonly rows: readonly ServiceRow[]
  /** All rows come from nf_tables, whose generation tells whether any has changed. */
  readonly isNftAlone: boolean
}

/** Time between two looks at the generation. */
const LOOK_MS = 500
/** Share of a core that reading rows may take. */
const SHARE = 0.1

interface RowsSource {
  /** Prints all rows, and gives them. */
  readonly first: () => Promise<RowsRead>
  readonly read: () => Promise<RowsRead>
  /** Formats some rows, with a heading. */
  readonly textOf: (rows: readonly ServiceRow[]) => string
}

/** Prints all rows, and then those that are added, change or go, until the command is to end. */
export async function watchRows(
  io: Pick<Io, 'out' | 'outWritten' | 'signal' | 'outLost'>,
  { first, read, textOf }: RowsSource,
): Promise<void> {
  const client = createNftClient({ transport: HERE.sockets.netfilter(), clock: HERE.clock })
  const end = AbortSignal.any([io.signal, io.outLost])
  try {
    let generation = client.generation()
    // A commit during the first read makes the next look read again, and compare with what was printed.
    let { rows, isNftAlone } = await first()
    while (!end.aborted) {
      await pause(systemClock, LOOK_MS, end)
      const now = client.generation()
      if (now === generation && isNftAlone) continue
      generation = now
      const started = systemClock.nowMs()
      const next = await read()
      const changed = changedRows(rows, next.rows)
      // The heading stands above the first table alone.
      if (changed.length > 0) io.out(textOf(changed).replace(/^[^\n]*\n/, ''))
      // Changes behind a reader that stalls are merged into one.
      await io.outWritten()
      rows = next.rows
      isNftAlone = next.isNftAlone
      await pause(systemClock, restMs(systemClock.nowMs() - started, SHARE), end)
    }
  } finally {
    await client.close()
  }
}

/** Lists the rows of `after` that `before` has not in the same form, and then those that are gone. Pure. */
export function changedRows(
  before: readonly ServiceRow[],
  after: readonly ServiceRow[],
): readonly ServiceRow[] {
  const old = new Map(before.map(row => [keyOf(row), JSON.stringify(row)]))
  const kept = new Set(after.map(keyOf))
  return [
    ...after.filter(row => old.get(keyOf(row)) !== JSON.stringify(row)),
    ...before.filter(row => !kept.has(keyOf(row))).map(row => ({ ...row, problem: 'gone' })),
  ]
}

function keyOf({ service, mode, type, protocol, frontend }: ServiceRow): string {
  return [service, mode, type, protocol, frontend].join('\0')
}
