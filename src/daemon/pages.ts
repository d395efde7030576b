import type { Config } from '../config/config.ts'
import { modelFlags } from '../config/daemon-config.ts'
import type { ServiceFrontends } from '../model/frontend.ts'
import type { MemoryLimit } from '../model/node-context.ts'
import type { Memo } from '../model/resolve.ts'
import type { ServiceKey } from '../model/service.ts'
import { serviceJson } from '../model/service-json.ts'
import { snapshotJson } from '../model/snapshot-json.ts'
import type { AdminPages } from '../telemetry/admin-server.ts'
import type { Receipts } from '../telemetry/receipts.ts'
import { networkNamespace } from './instance.ts'
import type { Intake } from './intake.ts'
import type { Programming } from './programming.ts'

interface PagesOptions {
  readonly programming: () => Programming | undefined
  readonly config: () => Config
  readonly version: string
  readonly intake: Pick<Intake, 'snapshot' | 'complete' | 'status' | 'refused'>
  readonly nowMs: () => number
  readonly receipts: Receipts
}

/** Makes the pages of the admin socket: plain values, computed for each request, Service by Service. */
export function adminPages(options: PagesOptions): AdminPages {
  const { programming, config, version, intake, nowMs, receipts } = options
  return {
    state() {
      const status = programming()?.status
      const table = status?.table
      const heardMs = intake.status?.heardMs
      return {
        snapshot: intake.snapshot.number,
        synced: status?.syncedNumber,
        error: status?.error?.message,
        quarantined: status?.quarantined.map(({ service, error }) => ({ service, error: error.message })),
        source: {
          missing: intake.status?.missing,
          trouble: intake.status?.trouble,
          silentMs: heardMs === undefined ? undefined : Math.round(nowMs() - heardMs),
        },
        services: servicesJson(table === undefined ? [] : table.services.values()),
      }
    },
    plan: () => programming()?.pending(),
    receipts: () => receipts.lines,
    config: async () => ({ version, network: await networkNamespace(), flags: modelFlags(config()) }),
    snapshot: () => ({
      complete: intake.complete,
      servicesBytes: programming()?.servicesBytes,
      refused: refusedOver(programming()?.status.memo),
      refusedSlices: intake.refused
        .map(({ refusal }) => refusal)
        .filter(({ service }) => service !== undefined),
      ...snapshotJson(intake.snapshot),
    }),
  }
}

/** Lists Services that exceed a memory limit, with that limit. */
function refusedOver(memo: Memo | undefined): readonly (readonly [ServiceKey, MemoryLimit])[] {
  return memo?.admission?.oversized.entries().map(([key, { limit }]) => [key, limit]) ?? []
}

function* servicesJson(services: readonly ServiceFrontends[]) {
  for (const service of services) yield serviceJson(service)
}
