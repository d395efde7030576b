import { readFileSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { getHeapStatistics } from 'node:v8'
import { codeOf } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import type { ProcessRoom } from '../modes/mode.ts'

export function processRoom(): ProcessRoom {
  const args = [...(process.env.NODE_OPTIONS ?? '').split(/\s+/), ...process.execArgv]
  return {
    descriptors: descriptors(),
    memoryBytes: memoryLimit(),
    heapBytes: heapLimit(getHeapStatistics().heap_size_limit, args),
  }
}

const MIB = 1 << 20

/**
 * Computes what the heap can hold for long, in bytes. The limit that Node.js reports includes the young generation: 3 MiB
 * where the limit comes from a control group, and 48 MiB beside the value of an option.
 */
export function heapLimit(reported: number, args: readonly string[]): number {
  const options = args.flatMap(arg => /^--max[-_]old[-_]space[-_]size=(\d+)$/.exec(arg)?.[1] ?? [])
  const mib = Number(options.at(-1) ?? 0)
  return mib > 0 ? Math.min(reported, mib * MIB) : reported
}

/**
 * Share of the limit for Services and objects. The rest holds the program itself, other buffers, and garbage before its
 * collection.
 */
const SHARE = 0.6
/** Share of Services that are served. The rest is for objects that sources hold, and for lists that arrive. */
const SERVICES_SHARE = 0.75

/** Computes the memory for Services and objects, in bytes; undefined when no limit is known. */
function sharedBytes({ memoryBytes, heapBytes }: Partial<ProcessRoom> = {}): number | undefined {
  // Node.js allows the heap half of a control group's memory; it is smaller on a large machine.
  const limits = [memoryBytes, heapBytes === undefined ? undefined : 2 * heapBytes]
  const least = Math.min(...limits.map(limit => limit ?? Number.POSITIVE_INFINITY))
  return Number.isFinite(least) ? SHARE * least : undefined
}

/** Computes the memory for all Services that are served, in bytes; undefined when no limit is known. */
export function servicesBytes(room?: Partial<ProcessRoom>): number | undefined {
  const bytes = sharedBytes(room)
  return bytes === undefined ? undefined : SERVICES_SHARE * bytes
}

/** Computes how many parts of objects may be held; undefined when no limit is known. */
export function partsMax(room?: Partial<ProcessRoom>): number | undefined {
  const bytes = sharedBytes(room)
  // A part takes 128 bytes at most: see partsOf().
  return bytes === undefined ? undefined : Math.floor(((1 - SERVICES_SHARE) * bytes) / 128)
}

/** Divides the descriptors of a daemon, whose mode may change. */
export function daemonDescriptors(room: Partial<ProcessRoom> | undefined): DescriptorBudget {
  return descriptorBudget(room?.descriptors, USES)
}

/** Gives the limits of the relay: its share of the descriptors. */
export function forwarderRoom(room: ProcessRoom | undefined, { relay }: DescriptorBudget): ProcessRoom {
  return { memoryBytes: undefined, ...room, descriptors: relay }
}

export function apiDescriptors(room: ProcessRoom): Pick<DescriptorBudget, 'metrics' | 'api'> {
  return descriptorBudget(room.descriptors, ['metrics', 'api'])
}

/** Reads the soft limit, which Node.js has raised to the hard limit. Undefined without /proc. */
function descriptors(): number | undefined {
  try {
    const [, most] = /^Max open files\s+(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
    return most === undefined ? undefined : Number(most)
  } catch {
    return undefined
  }
}

/** A hierarchy of control groups that limits memory: its mount point, and the name of its limit. */
const HIERARCHIES = [
  { controllers: /^0::(.*)$/m, mount: 'sys/fs/cgroup', file: 'memory.max' },
  { controllers: /^0::(.*)$/m, mount: 'sys/fs/cgroup/unified', file: 'memory.max' },
  {
    controllers: /^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:(.*)$/m,
    mount: 'sys/fs/cgroup/memory',
    file: 'memory.limit_in_bytes',
  },
] as const

/**
 * Gives the memory limit of this process in bytes. It is the minimum of the limits of its control group and its parents
 * (cgroup v2 and v1), and of the machine's memory; undefined if none is readable. `root` replaces `/`. In a container,
 * the mount usually has the container's own group at its root, whatever path /proc names.
 */
export function memoryLimit(root = '/'): number | undefined {
  const groups = read(join(root, 'proc/self/cgroup')) ?? ''
  const limits = HIERARCHIES.flatMap(({ controllers, mount, file }) => {
    const path = controllers.exec(groups)?.[1]
    return path === undefined ? [] : upwards(path).map(each => read(join(root, mount, each, file)))
  })
  const total = /^MemTotal:\s+(\d+) kB$/m.exec(read(join(root, 'proc/meminfo')) ?? '')?.[1]
  const bytes = [
    // `max` means no limit in cgroup v2. Without a limit, cgroup v1 gives a number that exceeds every machine's memory.
    ...limits.map(text => Number.parseInt(text ?? '', 10)),
    1024 * Number(total),
  ].filter(limit => limit > 0)
  return bytes.length === 0 ? undefined : Math.min(...bytes)
}

function upwards(path: string): readonly string[] {
  const paths = [join('/', path)]
  for (let at = paths[0] ?? '/'; at !== '/'; ) {
    at = dirname(at)
    paths.push(at)
  }
  return paths
}

/** Reads a file; undefined if it does not exist or is not readable. */
function read(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if (ABSENT.includes(codeOf(error))) return undefined
    throw new Error(`cannot read ${path} to find the memory limit`, { cause: error })
  }
}

const ABSENT: readonly string[] = ['ENOENT', 'ENOTDIR', 'EACCES', 'EPERM']

/**
 * Sets oom_score_adj of this process: -1000 (the kernel never kills it when memory runs out) to 1000. A lower value
 * needs CAP_SYS_RESOURCE. Services do not depend on it, so that a failure is only logged.
 */
export async function setOomScoreAdj(
  value: number,
  log: Log,
  path = '/proc/self/oom_score_adj',
): Promise<void> {
  try {
    await writeFile(path, String(value))
  } catch (err) {
    log.info({ err }, `cannot set oom_score_adj=${value} (needs CAP_SYS_RESOURCE); continuing`)
  }
}

const USES = ['healthz', 'metrics', 'healthChecks', 'healthCheckListeners', 'api', 'relay'] as const
type DescriptorUse = (typeof USES)[number]

export type DescriptorBudget = Readonly<Record<DescriptorUse, number>>

/** The maximum of each part, and its weight where there is not enough for all. */
const CLAIMS: Readonly<Record<DescriptorUse, { readonly most: number; readonly weight: number }>> = {
  healthz: { most: 512, weight: 1 },
  metrics: { most: 512, weight: 1 },
  healthChecks: { most: 1_024, weight: 2 },
  // Kubernetes supports no cluster with more Services of that kind.
  healthCheckListeners: { most: 8_192, weight: 6 },
  api: { most: 2_048, weight: 2 },
  relay: { most: 20_480, weight: 6 },
}

/**
 * Divides the descriptors of a process (undefined where the limit is unknown) between the parts that it may use, by weight.
 * A reserve of 128, or of half where that is less, is for the API server, netlink, listening servers, files and pipes.
 */
function descriptorBudget(limit: number | undefined, uses: readonly DescriptorUse[]): DescriptorBudget {
  const room = (limit ?? Infinity) - Math.min(128, (limit ?? Infinity) / 2)
  const weights = uses.reduce((sum, use) => sum + CLAIMS[use].weight, 0)
  const part = (use: DescriptorUse) => {
    const { most, weight } = CLAIMS[use]
    return uses.includes(use) ? Math.min(most, Math.floor((room * weight) / weights)) : 0
  }
  return {
    healthz: part('healthz'),
    metrics: part('metrics'),
    healthChecks: part('healthChecks'),
    healthCheckListeners: part('healthCheckListeners'),
    api: part('api'),
    relay: part('relay'),
  }
}
