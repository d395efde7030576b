import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

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

/** `/a/b`, `/a`, `/`. */
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
    if (error instanceof Error && 'code' in error && ABSENT.has(String(error.code))) return undefined
    throw new Error(`cannot read ${path} to find the memory limit`, { cause: error })
  }
}

const ABSENT: ReadonlySet<string> = new Set(['ENOENT', 'ENOTDIR', 'EACCES', 'EPERM'])
