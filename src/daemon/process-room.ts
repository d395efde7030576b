import { readFileSync } from 'node:fs'
import { getHeapStatistics } from 'node:v8'
import { type DescriptorBudget, type DescriptorUse, descriptorBudget } from '../base/descriptor-budget.ts'
import type { Config } from '../config/config.ts'
import type { ProcessRoom } from '../modes/mode.ts'
import { findMode } from '../modes/registry.ts'
import { memoryLimit } from './memory-limit.ts'

/** What this process may take of its machine, at once. */
export function processRoom(): ProcessRoom {
  return {
    descriptors: descriptors(),
    memoryBytes: memoryLimit(),
    heapBytes: getHeapStatistics().heap_size_limit,
  }
}

/** The rest is the program's own, that of other buffers, and what is garbage before it is collected. */
const SERVICES_SHARE = 0.6
/** Node.js lets the heap have half of a control group's memory, of a large machine less. */
const HEAP_SHARE = 0.5

/** Computes the memory for all Services, in bytes; undefined when no limit is known. */
export function servicesBytes({ memoryBytes, heapBytes }: Partial<ProcessRoom> = {}): number | undefined {
  const limits = [memoryBytes, heapBytes === undefined ? undefined : heapBytes / HEAP_SHARE]
  const least = Math.min(...limits.map(limit => limit ?? Number.POSITIVE_INFINITY))
  return Number.isFinite(least) ? SERVICES_SHARE * least : undefined
}

/** Maximum memory of a part of a held object: see partsOf(). */
const PART_BYTES = 256

/** Computes how many parts of objects may be held; undefined when no limit is known. */
export function partsMax(room?: Partial<ProcessRoom>): number | undefined {
  const bytes = servicesBytes(room)
  return bytes === undefined ? undefined : bytes / PART_BYTES
}

/** Divides the descriptors of a daemon with this configuration. It keeps a small part for a change to userspace mode. */
export function daemonDescriptors(
  room: ProcessRoom | undefined,
  { api, proxyMode }: Pick<Config, 'api' | 'proxyMode'>,
): DescriptorBudget {
  const always: readonly DescriptorUse[] = ['healthz', 'metrics', 'healthChecks', 'healthCheckListeners']
  const uses = [...always, ...(api === undefined ? [] : API)]
  return findMode(proxyMode).relays
    ? descriptorBudget(room?.descriptors, [...uses, ...RELAY])
    : descriptorBudget(room?.descriptors, uses, RELAY)
}

/** The relay's part of it. */
export function relayRoom(room: ProcessRoom | undefined, { relay }: DescriptorBudget): ProcessRoom {
  return { memoryBytes: undefined, ...room, descriptors: relay }
}

/** The same of `kprobe api`. */
export function apiDescriptors(room: ProcessRoom): DescriptorBudget {
  return descriptorBudget(room.descriptors, ['metrics', ...API])
}

const API: readonly DescriptorUse[] = ['api']
const RELAY: readonly DescriptorUse[] = ['relay']

/** The soft limit, which Node.js has raised to the hard one. Undefined where there is no /proc. */
function descriptors(): number | undefined {
  try {
    const [, most] = /^Max open files\s+(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
    return most === undefined ? undefined : Number(most)
  } catch {
    return undefined
  }
}
