import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { eventually } from '../support/patience.ts'
import type { Binaries } from './binaries.ts'
import { cgroupHierarchies } from './leftovers.ts'
import type { Namespaces } from './namespaces.ts'
import type { NodePlan, Site } from './site.ts'

const START_MAX_MS = 60_000
const MAX_PODS = 200
/** Of version 1: a new cpuset has no processors and no memory, and takes no process. */
const CPUSET_FILES = ['cpuset.cpus', 'cpuset.mems']

/** Writes what a node is configured with, and starts it. Resolves when its kubelet runs. */
export async function startNode(
  site: Site,
  node: NodePlan,
  { namespaces, binaries, root }: NodeTools,
): Promise<void> {
  mkdirSync(node.folder, { recursive: true })
  writeFileSync(
    join(node.folder, 'kubelet.json'),
    JSON.stringify(kubeletConfiguration(site, node), undefined, 2),
  )
  writeFileSync(join(node.folder, 'containerd.toml'), containerdConfiguration(binaries))
  mkdirSync(join(node.folder, 'cni/net.d'), { recursive: true })
  writeFileSync(
    join(node.folder, 'cni/net.d/10-cluster.conflist'),
    JSON.stringify(networkConfiguration(site, node), undefined, 2),
  )
  writeFileSync(join(node.folder, 'resolv.conf'), `nameserver ${site.subnets[0]?.gateway}\n`)
  makeCgroups(node)
  const log = join(node.folder, 'init.log')
  // Of an earlier start of this node.
  rmSync(log, { force: true })
  const child = namespaces.start(
    {
      file: 'sh',
      args: [
        '-c',
        enterCgroups(node),
        'sh',
        `/run/netns/${node.name}`,
        join(root, 'test/cluster/node-init.sh'),
      ],
      env: {
        PATH: `${binaries.searchPath}:${process.env.PATH ?? ''}:/usr/sbin:/sbin`,
        NODE: node.name,
        FOLDER: node.folder,
        IMAGES: binaries.images,
        NODE_IP: node.addresses.join(','),
      },
    },
    log,
  )
  writeFileSync(join(node.folder, 'outer.pid'), String(child.pid))
  const words = () => `node ${node.name} does not start: ${log}\n${readFileSync(log, 'utf8').slice(-2_000)}`
  const isStarted = () => {
    if (child.exitCode !== null) throw new Error(words())
    return /^started$/m.test(readFileSync(log, 'utf8'))
  }
  await eventually(isStarted, { limitMs: START_MAX_MS, describe: words })
}

export interface NodeTools {
  readonly namespaces: Namespaces
  readonly binaries: Binaries
  /** The checkout. */
  readonly root: string
}

/** The shell script that puts itself into the node's cgroups before it makes its namespaces. */
function enterCgroups(node: NodePlan): string {
  const moves = systemCgroups(node).map(folder => `echo $$ > '${folder}/cgroup.procs'`)
  const unshare = 'unshare --mount --uts --ipc --pid --fork --kill-child --propagation private'
  return `set -e; ${moves.join('; ')}; exec nsenter --net="$1" ${unshare} sh "$2"`
}

function systemCgroups(node: NodePlan): readonly string[] {
  return cgroupHierarchies().map(hierarchy => join(hierarchy, node.cgroup, 'system'))
}

function makeCgroups(node: NodePlan): void {
  for (const hierarchy of cgroupHierarchies())
    for (const folder of [join(hierarchy, node.cgroup), join(hierarchy, node.cgroup, 'system')]) {
      const parent = join(folder, '..')
      enableControllers(parent)
      mkdirSync(folder, { recursive: true })
      const there = readdirSync(folder)
      if (there.includes('cgroup.controllers')) continue
      for (const name of CPUSET_FILES.filter(file => there.includes(file)))
        writeFileSync(join(folder, name), readFileSync(join(parent, name), 'utf8'))
    }
}

/** Of version 2: a cgroup has the controllers that its parent passes on. */
function enableControllers(parent: string): void {
  const file = join(parent, 'cgroup.controllers')
  if (!existsSync(file)) return
  const controllers = readFileSync(file, 'utf8').split(/\s+/).filter(Boolean)
  writeFileSync(join(parent, 'cgroup.subtree_control'), controllers.map(name => `+${name}`).join(' '))
}

function kubeletConfiguration(site: Site, node: NodePlan): object {
  return {
    apiVersion: 'kubelet.config.k8s.io/v1beta1',
    kind: 'KubeletConfiguration',
    failSwapOn: false,
    failCgroupV1: false,
    cgroupDriver: 'cgroupfs',
    cgroupRoot: `/${node.cgroup}`,
    enforceNodeAllocatable: [],
    containerRuntimeEndpoint: 'unix:///run/containerd/containerd.sock',
    volumePluginDir: '/var/lib/kubelet/volume-plugins',
    clusterDNS: [site.subnets[0]?.dns],
    clusterDomain: 'cluster.local',
    resolvConf: join(node.folder, 'resolv.conf'),
    imageGCHighThresholdPercent: 100,
    imageGCLowThresholdPercent: 99,
    evictionHard: {
      'memory.available': '50Mi',
      'nodefs.available': '1%',
      'nodefs.inodesFree': '1%',
      'imagefs.available': '1%',
    },
    serializeImagePulls: false,
    maxPods: MAX_PODS,
    podPidsLimit: -1,
    tlsCertFile: join(site.folder, `pki/${node.name}.crt`),
    tlsPrivateKeyFile: join(site.folder, `pki/${node.name}.key`),
    authentication: { anonymous: { enabled: true }, webhook: { enabled: false } },
    authorization: { mode: 'AlwaysAllow' },
    enableSystemLogHandler: true,
  }
}

/** A bridge of pods whose addresses are routed between nodes as they are. */
function networkConfiguration(site: Site, node: NodePlan): object {
  const ranges = node.podCidrs.map(subnet => [{ subnet }])
  const routes = site.subnets.map(({ family }) => ({ dst: family === 'ipv4' ? '0.0.0.0/0' : '::/0' }))
  const ipam = { type: 'host-local', ranges, routes }
  return {
    cniVersion: '1.0.0',
    name: 'cluster',
    plugins: [
      { type: 'bridge', bridge: 'cni0', isGateway: true, ipMasq: false, hairpinMode: true, ipam },
      { type: 'portmap', capabilities: { portMappings: true } },
    ],
  }
}

function containerdConfiguration(binaries: Binaries): string {
  const cri = (name: string) => `[plugins.'io.containerd.cri.v1.${name}]`
  return `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs", "io.containerd.nri.v1.nri"]
[grpc]
address = "/run/containerd/containerd.sock"
${cri("images'")}
snapshotter = "overlayfs"
${cri("images'.pinned_images")}
sandbox = "${readFileSync(join(binaries.images, 'pause-name'), 'utf8').trim()}"
${cri("runtime'")}
disable_apparmor = true
restrict_oom_score_adj = true
${cri("runtime'.containerd.runtimes.runc")}
runtime_type = "io.containerd.runc.v2"
${cri("runtime'.containerd.runtimes.runc.options")}
BinaryName = "${binaries.path('runc')}"
SystemdCgroup = false
${cri("runtime'.cni")}
bin_dirs = ["${join(binaries.path('bridge'), '..')}"]
conf_dir = "/var/lib/cni/net.d"
`
}
