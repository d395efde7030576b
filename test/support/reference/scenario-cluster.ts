import { setTimeout as sleep } from 'node:timers/promises'
import { assert } from '../../../src/base/errors.ts'
import { CLUSTER_CIDR, type PipelineConfig } from '../pipeline.ts'
import type { ScenarioStep } from '../scenario.ts'
import { type Api, ApiRefusal, isObject, type KubeObject } from './api.ts'
import type { ProxyConfig } from './kube-proxy-peer.ts'
import { LAB_NODE, namespaceObject } from './lab-node.ts'

const VERSIONS: Readonly<Record<string, string>> = {
  Service: 'v1',
  EndpointSlice: 'discovery.k8s.io/v1',
  Node: 'v1',
}
/** Kept by the API server itself, from its flags. */
const SERVICE_CIDR = 'ServiceCIDR'
/** A change of the Node comes by a watch of its own, which no fence stands in. */
const NODE_SETTLE_MS = 400

/** The objects of one scenario at a time, in a real API server. */
export class ScenarioCluster {
  readonly #api: Api
  readonly #present = new Map<string, KubeObject>()
  readonly #namespaces = new Set<string>(['kube-system'])
  #nodeChanged = false

  constructor(api: Api) {
    this.#api = api
  }

  /** Gives the API server's words about the first object that it does not take. */
  async apply({ objects, remove }: ScenarioStep): Promise<string | undefined> {
    for (const name of remove) await this.#remove(name)
    for (const object of objects) {
      const refusal = await this.#put(object)
      if (refusal !== undefined) return refusal
    }
    return undefined
  }

  /** As it was before the scenario. */
  async clear(): Promise<void> {
    await Promise.all([...this.#present.keys()].map(name => this.#remove(name)))
    if (!this.#nodeChanged) return
    await this.#api.put(LAB_NODE)
    await sleep(NODE_SETTLE_MS)
    this.#nodeChanged = false
  }

  async #put(given: unknown): Promise<string | undefined> {
    assert(isObject(given), `not an object: ${JSON.stringify(given)}`)
    const name = nameOf(given)
    if (given.kind === SERVICE_CIDR)
      return isOfTheServer(given) ? undefined : `${name} is kept by the API server`
    if (VERSIONS[given.kind] !== given.apiVersion) return undefined
    const object = completed(given)
    try {
      await this.#ensureNamespace(object.metadata.namespace)
      if (mustBeReplaced(this.#present.get(name), object)) await this.#remove(name)
      await this.#api.put(object)
    } catch (error) {
      if (!(error instanceof ApiRefusal)) throw error
      return `${name}: ${error.message}`
    }
    if (object.kind !== 'Node') this.#present.set(name, object)
    else if (JSON.stringify(given) !== JSON.stringify(SCENARIO_NODE)) await this.#settleNode()
    return undefined
  }

  async #settleNode(): Promise<void> {
    this.#nodeChanged = true
    await sleep(NODE_SETTLE_MS)
  }

  async #remove(name: string): Promise<void> {
    const [kind = '', key = ''] = name.split(' ')
    const [namespace = '', object = ''] = key.split('/')
    await this.#api.remove(VERSIONS[kind] ?? '', kind, { namespace, name: object })
    this.#present.delete(name)
  }

  async #ensureNamespace(name: string | undefined): Promise<void> {
    if (name === undefined || this.#namespaces.has(name)) return
    await this.#api.put(namespaceObject(name))
    this.#namespaces.add(name)
  }
}

const SCENARIO_NODE = {
  ...LAB_NODE,
  spec: { podCIDRs: ['10.180.0.0/24', 'fd00:10::/96'] },
}

function nameOf({ kind, metadata: { namespace, name } }: KubeObject): string {
  return `${kind} ${namespace === undefined ? name : `${namespace}/${name}`}`
}

const CIDRS = ['172.30.0.0/16', 'fd00:172:30::/112']

function isOfTheServer({ metadata, spec }: KubeObject): boolean {
  const cidrs = isRecord(spec) && Array.isArray(spec.cidrs) ? spec.cidrs : []
  return metadata.name === 'kubernetes' && cidrs.every(cidr => CIDRS.includes(cidr))
}

/** With what the API server asks for and no proxy looks at; without what it sets itself. */
export function completed(object: KubeObject): KubeObject {
  const { uid, creationTimestamp, resourceVersion, ...metadata } = object.metadata
  const spec = object.spec
  if (object.kind !== 'Service' || !isRecord(spec)) return { ...object, metadata }
  return { ...object, metadata, spec: completedSpec(spec) }
}

function completedSpec(spec: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  const { clusterIP, clusterIPs, ...rest } = spec
  if (spec.type === 'ExternalName') return rest
  const isDual = Array.isArray(clusterIPs) && clusterIPs.length === 2
  return isDual ? { ipFamilyPolicy: 'RequireDualStack', ...spec } : spec
}

/** An update cannot do it: the object has to go first. */
function mustBeReplaced(before: KubeObject | undefined, after: KubeObject): boolean {
  const address = ({ spec }: KubeObject) => (isRecord(spec) ? spec.clusterIP : undefined)
  if (before === undefined || address(before) === undefined || address(after) === undefined) return false
  return address(before) !== address(after)
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null
}

/** A scenario's configuration in the fields of a KubeProxyConfiguration; what only kprobe has is left out. */
export function proxyConfigOf(config: PipelineConfig): ProxyConfig {
  const { detectLocalMode, clusterCIDR = CLUSTER_CIDR, detectLocal, nodePortAddresses } = config
  const { masqueradeAll = false, masqueradeBit = 14 } = config
  return {
    clusterCIDR,
    ...(detectLocalMode === undefined ? {} : { detectLocalMode }),
    ...(detectLocal === undefined ? {} : { detectLocal }),
    ...(nodePortAddresses === undefined ? {} : { nodePortAddresses }),
    nftables: { masqueradeAll, masqueradeBit, minSyncPeriod: '10ms', syncPeriod: '30s' },
  }
}
