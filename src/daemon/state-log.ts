import type { Log } from '../base/log.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { SourceStatus } from '../source/source.ts'
import type { HealthAnswer } from '../telemetry/health.ts'
import { totalsOf } from './banner.ts'
import type { Programming } from './programming.ts'

export interface StateFacts {
  /** Undefined before the first plane is open. */
  readonly programming: Pick<Programming, 'mode' | 'status'> | undefined
  readonly source: SourceStatus | undefined
  readonly snapshot: Snapshot
  readonly health: HealthAnswer
  readonly nowMs: number
}

/** Logs what an operator asks a daemon first, in one record. */
export function logState(log: Log, { programming, source, snapshot, health, nowMs }: StateFacts): void {
  const { node } = snapshot
  const status = programming?.status
  const heardMs = source?.heardMs
  log.info(
    {
      mode: programming?.mode,
      ...(status?.table === undefined ? { services: 0 } : totalsOf(status.table)),
      snapshot: snapshot.number,
      synced: status?.syncedNumber,
      quarantined: status?.quarantined.length ?? 0,
      error: status?.error?.message,
      node: node === undefined ? 'not found' : node.deleted === true ? 'deleted' : 'found',
      healthz: health.code,
      reason: health.body.reason,
      missing: source?.missing,
      trouble: source?.trouble,
      silentMs: heardMs === undefined ? undefined : Math.round(nowMs - heardMs),
    },
    'state',
  )
}
