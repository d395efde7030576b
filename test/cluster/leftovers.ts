import { existsSync, readdirSync, readFileSync, rmdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { eventually } from '../support/patience.ts'
import { Namespaces } from './namespaces.ts'
import { cgroupPrefix, type NodePlan, type Site } from './site.ts'

const CGROUPS = '/sys/fs/cgroup'
const CGROUPS_MAX_MS = 30_000
const END_MAX_MS = 30_000

/**
 * Ends a cluster, whole or half made, and removes what the kernel does not remove with its processes: cgroups and the
 * folder. Gives false when there was nothing.
 */
export async function removeCluster(site: Site): Promise<boolean> {
  const wasThere = existsSync(site.folder) || cgroupsOf(site).length > 0
  await Namespaces.open(site.folder)?.end()
  // Those that waited, outside of the namespaces, for a process in there.
  await eventually(() => processesOf(site).length === 0, {
    limitMs: END_MAX_MS,
    describe: () => `processes ${processesOf(site).join(', ')} use ${site.folder}`,
  })
  await removeCgroups(site)
  rmSync(site.folder, { recursive: true, force: true })
  return wasThere
}

/** What is left of a cluster, in words; nothing after `removeCluster`. */
export function leftoversOf(site: Site): readonly string[] {
  return [
    ...processesOf(site).map(pid => `process ${pid}`),
    ...cgroupsOf(site).map(folder => `cgroup ${folder}`),
    ...mountsOf(site).map(mount => `mount ${mount}`),
    ...(existsSync(site.folder) ? [`folder ${site.folder}`] : []),
  ]
}

/** The hierarchies of version 1, each a folder; one folder for version 2. */
export function cgroupHierarchies(): readonly string[] {
  if (existsSync(join(CGROUPS, 'cgroup.controllers'))) return [CGROUPS]
  return readdirSync(CGROUPS, { withFileTypes: true })
    .filter(entry => entry.isDirectory() && entry.name !== 'unified')
    .map(({ name }) => join(CGROUPS, name))
    .filter(folder => existsSync(join(folder, 'cgroup.procs')))
}

function cgroupsOf(site: Site): readonly string[] {
  const prefix = cgroupPrefix(site.parameters.name)
  // Beside those of version 1, runc makes cgroups in the one of version 2 as well.
  const all = [...new Set([...cgroupHierarchies(), join(CGROUPS, 'unified')])].filter(one => existsSync(one))
  return all.flatMap(hierarchy =>
    readdirSync(hierarchy)
      .filter(name => name.startsWith(prefix) && /^\d+$/.test(name.slice(prefix.length)))
      .map(name => join(hierarchy, name)),
  )
}

/** A node whose processes have ended has no cgroups when it starts again: kubelet looks at all that it finds. */
export async function removeNodeCgroups({ cgroup }: NodePlan): Promise<void> {
  const found = () =>
    cgroupHierarchies()
      .map(hierarchy => join(hierarchy, cgroup))
      .filter(existsSync)
  await eventually(
    () => {
      for (const folder of found()) removeTree(folder)
      return found().length === 0
    },
    { limitMs: CGROUPS_MAX_MS, describe: () => `cannot remove the cgroups ${found().join(' ')}` },
  )
}

/** The kernel holds a cgroup for a moment after its last process has ended. */
async function removeCgroups(site: Site): Promise<void> {
  await eventually(
    () => {
      for (const folder of cgroupsOf(site)) removeTree(folder)
      return cgroupsOf(site).length === 0
    },
    { limitMs: CGROUPS_MAX_MS, describe: () => `cannot remove the cgroups ${cgroupsOf(site).join(' ')}` },
  )
}

function removeTree(folder: string): void {
  for (const entry of readdirSync(folder, { withFileTypes: true }))
    if (entry.isDirectory()) removeTree(join(folder, entry.name))
  try {
    rmdirSync(folder)
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'EBUSY')) throw error
  }
}

/** Those in one of its cgroups, and those whose command names its folder. */
function processesOf(site: Site): readonly number[] {
  const prefix = `/${cgroupPrefix(site.parameters.name)}`
  return readdirSync('/proc')
    .filter(name => /^\d+$/.test(name))
    .map(Number)
    .filter(pid => pid !== process.pid)
    .filter(
      pid =>
        textOf(`/proc/${pid}/cgroup`).includes(prefix) ||
        textOf(`/proc/${pid}/cmdline`)
          .split('\0')
          .some(word => word.startsWith(`${site.folder}/`)),
    )
}

function mountsOf(site: Site): readonly string[] {
  return textOf('/proc/self/mountinfo')
    .split('\n')
    .map(line => line.split(' ')[4] ?? '')
    .filter(mount => mount.startsWith(`${site.folder}/`))
}

/** Empty for a process that has ended meanwhile. */
function textOf(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}
