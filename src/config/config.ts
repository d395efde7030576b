import type { Cidr } from '../base/cidr.ts'
import type { DataplaneName } from '../reconcile/dataplane.ts'

/** Modes of this build. */
export type ProxyMode = Extract<DataplaneName, 'nftables'>

/** The whole configuration, validated and frozen: nothing else in the program reads flags or files. */
export interface Config {
  readonly proxyMode: ProxyMode
  readonly backend: 'netlink' | 'dry-run'
  readonly source: SourceConfig
  readonly once: boolean
  /** Lower-cased name of this node. */
  readonly nodeName: string
  readonly serviceProxyName: string | undefined
  readonly detectLocal: DetectLocal
  readonly masqueradeAll: boolean
  /** 0 to 31. */
  readonly masqueradeBit: number
  readonly nodePortAddresses: NodePortSelection
  /** Least distance between two commits, milliseconds. */
  readonly minSyncPeriodMs: number
  /** Period of healing without a sign of damage, milliseconds. */
  readonly syncPeriodMs: number
  readonly logFormat: 'text' | 'json'
  readonly verbosity: number
  /** When not empty, externalIPs outside these are refused. */
  readonly allowedExternalCidrs: readonly Cidr[]
  /** When not empty, load-balancer addresses outside these are refused. */
  readonly allowedLoadBalancerCidrs: readonly Cidr[]
}

export type SourceConfig = { readonly kind: 'kube' } | { readonly kind: 'file'; readonly path: string }

/** How pods of this node are told from other traffic (kube-proxy's --detect-local-mode). */
export type DetectLocal =
  /** The first CIDR of each family counts; without one there is no detector for that family. */
  | { readonly kind: 'ClusterCIDR'; readonly cidrs: readonly Cidr[] }
  /** node.spec.podCIDRs. */
  | { readonly kind: 'NodeCIDR' }
  | { readonly kind: 'BridgeInterface'; readonly name: string }
  | { readonly kind: 'InterfaceNamePrefix'; readonly prefix: string }

export type NodePortSelection = {
  /** The Node's first address of each family. */
  readonly primary: boolean
  readonly cidrs: readonly Cidr[]
}
