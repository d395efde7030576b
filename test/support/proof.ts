import { PersistentMap } from '../../src/base/collections.ts'
import { type Cidr, parseCidr } from '../../src/base/ip.ts'
import { GATE_LOCALHOST } from '../../src/config/config.ts'
import type { IpvsHeld } from '../../src/kernel/ipvs/state.ts'
import { NF_DROP } from '../../src/kernel/nft/constants.ts'
import type { AnyTable, ChainHook, ElementGroup, Expression, Rule } from '../../src/kernel/nft/state.ts'
import type { Snapshot } from '../../src/model/snapshot.ts'
import type { Proving } from '../../src/modes/mode.ts'
import type { MeaningConfig } from '../../src/proof/meaning.ts'
import { meaningOf } from '../../src/proof/meanings.ts'
import { type Proof, prove } from '../../src/proof/prove.ts'
import { endpoint, serviceOf, sliceOf } from './objects.ts'
import { CLUSTER_CIDR, NODE_NAME, type PipelineConfig } from './pipeline.ts'

/** The configuration of a scenario, as the proof reads it: not by way of the options of a mode. */
export function meaningConfigOf(config: PipelineConfig): MeaningConfig {
  const addresses = config.nodePortAddresses ?? ['primary']
  return {
    nodeName: NODE_NAME,
    serviceProxyName: config.serviceProxyName,
    detectLocal: detectLocalOf(config),
    masqueradeAll: config.masqueradeAll ?? false,
    nodePortAddresses: {
      primary: addresses.includes('primary'),
      cidrs: cidrs(addresses.filter(address => address !== 'primary')),
    },
    allowedExternalCidrs: cidrs(config.allowedExternalCidrs ?? []),
    allowedLoadBalancerCidrs: cidrs(config.allowedLoadBalancerCidrs ?? []),
    allowServiceExternalIps: true,
    bindAddress: undefined,
    // Scenarios have no relay.
    featureGates: { [GATE_LOCALHOST]: false },
  }
}

function detectLocalOf(config: PipelineConfig): MeaningConfig['detectLocal'] {
  const { bridgeInterface = '', interfaceNamePrefix = '' } = config.detectLocal ?? {}
  switch (config.detectLocalMode ?? 'ClusterCIDR') {
    case 'NodeCIDR':
      return { kind: 'NodeCIDR' }
    case 'BridgeInterface':
      return { kind: 'BridgeInterface', name: bridgeInterface }
    case 'InterfaceNamePrefix':
      return { kind: 'InterfaceNamePrefix', prefix: interfaceNamePrefix }
    case 'ClusterCIDR': {
      const texts = (config.clusterCIDR ?? CLUSTER_CIDR).split(',').filter(text => text !== '')
      return { kind: 'ClusterCIDR', cidrs: cidrs(texts) }
    }
  }
}

function cidrs(texts: readonly string[]): readonly Cidr[] {
  return texts.flatMap(text => parseCidr(text) ?? [])
}

/** Proves tables against what objects mean. */
export function proofOf(
  config: PipelineConfig,
  snapshot: Snapshot,
  tables: readonly AnyTable[],
  proving?: Proving,
  ipvs?: { readonly held: IpvsHeld; readonly ownName: string },
): Proof {
  const promises = proving === undefined ? {} : { promises: proving.promises }
  const meanings = meaningOf(snapshot, { ...meaningConfigOf(config), ...promises })
  const owns = proving?.owns
  const ownName = ipvs?.ownName ?? (proving === undefined ? 'kube-proxy' : '')
  return prove({ meanings, tables, ownName, owns, ipvs: ipvs?.held })
}

/** The rules that may decide, each with the reason why they cannot be followed. */
export const doubtsOf = ({ unknowns }: Pick<Proof, 'unknowns'>) => unknowns.map(({ doubt }) => doubt)

export const rule = (...expressions: readonly Expression[]): Rule => ({ expressions, comment: '' })
export const DROP: Expression = { kind: 'verdict', verdict: { code: NF_DROP, chain: undefined } }

/** A table of another program with one base chain. */
export function other(
  hook: Pick<ChainHook, 'hooknum'> & Partial<ChainHook>,
  rules: readonly Rule[],
  more: Partial<AnyTable> = {},
): AnyTable {
  const base: ChainHook = { type: 'filter', priority: 0, ...hook }
  return {
    family: 'ip',
    name: 'other',
    flags: 0,
    comment: undefined,
    chains: new Map([['first', { name: 'first', hook: base, rules }]]),
    sets: new Map(),
    elements: PersistentMap.empty<ElementGroup>(),
    ...more,
  }
}

export const NODE = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: NODE_NAME },
  status: { addresses: [{ type: 'InternalIP', address: '192.168.0.2' }] },
}

/** A Service with a node port, and a pod on each of two nodes; more of its ports, and more endpoints. */
export function webService({
  ports = [],
  targets = [],
  endpoints = [],
}: {
  readonly ports?: readonly object[]
  readonly targets?: readonly object[]
  readonly endpoints?: readonly string[]
} = {}): readonly [object, object] {
  return [
    serviceOf('ns1/web', '172.30.0.41', {
      type: 'NodePort',
      ports: [{ name: 'http', port: 80, protocol: 'TCP', nodePort: 30080 }, ...ports],
    }),
    sliceOf('ns1/web', ['10.180.0.1', endpoint('10.180.1.1', { nodeName: 'other-node' }), ...endpoints], {
      ports: [{ name: 'http', port: 8080, protocol: 'TCP' }, ...targets],
    }),
  ]
}
