import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { builtBy } from '../support/reference/binaries.ts'

/** The programs and images that test/cluster/build.mjs has built, and those of test/reference. */
export interface Binaries {
  path(name: string): string
  /** A folder for each of the lists of PATH: programs find each other there. */
  readonly searchPath: string
  /** A store of containerd with all images in it. */
  readonly images: string
}

/** Why a cluster cannot run here; undefined when it can. */
export type Obstacle = string | undefined

const BUILD = 'node test/cluster/build.mjs'
/** What nodes and tests start, with Debian's packages. */
const TOOLS = {
  ip: 'iproute2',
  nft: 'nftables',
  iptables: 'iptables',
  conntrack: 'conntrack',
  curl: 'curl',
  socat: 'socat',
  nsenter: 'util-linux',
  setpriv: 'util-linux',
}

/** `root` is the checkout. Throws nothing: what is missing is the obstacle. */
export function findPrograms(root: string): { readonly binaries?: Binaries; readonly obstacle: Obstacle } {
  if (process.getuid?.() !== 0) return { obstacle: 'nodes need root (cgroups and mounts of their own)' }
  const missing = Object.entries(TOOLS).filter(([tool]) => !isInPath(tool))
  if (missing.length > 0)
    return {
      obstacle: `there is no ${missing.map(([tool]) => tool).join(', no ')}; apt-get install -y --no-install-recommends ${[...new Set(missing.map(([, name]) => name))].join(' ')}`,
    }
  const cluster = builtBy(join(root, 'test/cluster/build.mjs'))
  const reference = builtBy(join(root, 'test/reference/build.mjs'))
  const folder = String(cluster.folder)
  const lacking = Array.isArray(cluster.missing) ? cluster.missing.map(String) : []
  const absent = ['etcd', 'kube-apiserver', 'kube-proxy', 'kubectl'].filter(
    name => typeof reference[name] !== 'string',
  )
  if (lacking.length + absent.length > 0)
    return { obstacle: `${[...absent, ...lacking].join(', ')} not built yet (${BUILD}: 20 to 40 minutes)` }
  const path = (name: string) => {
    const found = reference[name]
    return typeof found === 'string' ? found : join(folder, name)
  }
  return {
    binaries: {
      path,
      searchPath: [folder, ...new Set(['etcd', 'kubectl'].map(name => join(path(name), '..')))].join(':'),
      images: String(cluster.images),
    },
    obstacle: undefined,
  }
}

function isInPath(tool: string): boolean {
  const folders = [...(process.env.PATH ?? '').split(':'), '/usr/sbin', '/sbin']
  return folders.some(folder => existsSync(join(folder, tool)))
}
