import { finish } from '../../../../src/base/clock.ts'
import type { PageSource } from '../../../../src/daemon/optional-parts.ts'
import { resolve } from '../../../../src/model/resolve.ts'
import type { Snapshot } from '../../../../src/model/snapshot.ts'
import { resolveOptions } from '../../../../src/modes/resolve-options.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { configFrom } from '../../../support/parse-flags.ts'

const CONFIG = configFrom(['--hostname-override=here', '--cluster-cidr=10.1.0.0/16'])

/** What the page asks of a daemon that has read nothing, unless told otherwise. */
export function pageSource(more: Partial<PageSource> = {}): PageSource {
  return {
    clock: new FakeClock(),
    wallMs: () => 0,
    version: 'test',
    config: () => CONFIG,
    flags: new Map(),
    configz: () => ({}),
    health: () => ({}),
    status: () => ({}),
    receipts: () => [],
    snapshot: () => ({}),
    held: () => undefined,
    ...more,
  }
}

/** What a daemon holds that has programmed a Snapshot. */
export function heldOf(snapshot: Snapshot, memoryBytes?: number) {
  return {
    ...finish(resolve(resolveOptions(CONFIG, memoryBytes), undefined, snapshot)),
    syncedNumber: 1,
    error: undefined,
    failedFamily: undefined,
    quarantined: [
      { service: 'ns/svc-004', error: new Error('no room'), failures: 1, retryAtMs: 0, subject: {} },
    ],
  }
}
