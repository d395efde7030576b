import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

/** A hierarchy of control groups that limits memory: where it is mounted, and what its limit is called. */
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
 * Memory that this process may have, bytes: the least of the limits of its control group, of those above it (cgroup v2 and
 * v1), and the machine's memory; undefined where none can be read. `root` stands for `/`. A container mostly sees its own
 * group at the root of the mount, whatever path it is told.
 */
export function memoryLimit(root = '/'): number | undefined {
  const groups = read(join(root, 'proc/self/cgroup')) ?? ''
  const limits = HIERARCHIES.flatMap(({ controllers, mount, file }) => {
    const path = controllers.exec(groups)?.[1]
    return path === undefined ? [] : upwards(path).map(each => read(join(root, mount, each, file)))
  })
  const total = /^MemTotal:\s+(\d+) kB$/m.exec(read(join(root, 'proc/meminfo')) ?? '')?.[1]
  const bytes = [
    // `max` is none; without one, cgroup v1 says more than any machine has.
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

/** Undefined where there is no such file, or it may not be read. */
function read(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if (error instanceof Error && 'code' in error && ABSENT.has(String(error.code))) return undefined
    throw new Error(`cannot read ${path} to find the memory limit`, { cause: error })
  }
}

const ABSENT: ReadonlySet<string> = new Set(['ENOENT', 'ENOTDIR', 'EACCES', 'EPERM'])
