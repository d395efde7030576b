import { expect } from 'vitest'
import type { Daemon } from '../support/daemon.ts'
import { eventually } from '../support/patience.ts'
import type { Cluster } from './cluster.ts'
import { peakOf } from './cluster-process.ts'
import { frontendNames } from './kernel.ts'
import { nameOf, service } from './objects.ts'

const MIB = 1 << 20
/** Limit of deploy/kubernetes/base/daemonset.yaml. */
const LIMIT_BYTES = 512 * MIB

export function refusalsOf(daemon: Daemon, object: string): readonly string[] {
  return daemon.said('refused').flatMap(record => (record.object === object ? [String(record.reason)] : []))
}

/** Others come and go, and the daemon stays below its limit. */
export async function servesOthers(cluster: Cluster, daemon: Daemon, shape: string): Promise<void> {
  cluster.put(...service(50))
  cluster.remove(...service(3))
  await eventually(() => frontendNames().has(nameOf(50)) && !frontendNames().has(nameOf(3)))
  expect(daemon.hasExited).toBe(false)
  const peak = peakOf(daemon.pid)
  console.log(`${shape}: peak ${Math.round(peak / MIB)} MiB`)
  expect(peak).toBeLessThan(LIMIT_BYTES)
}
