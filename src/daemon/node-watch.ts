import { type Clock, Pacer } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { errorOf } from '../base/errors.ts'
import {
  type Cidr,
  FAMILIES,
  type Family,
  familyOf,
  formatIp,
  isLoopback,
  isUnspecified,
} from '../base/ip.ts'
import type { Log } from '../base/log.ts'
import type { Config, NodePortSelection } from '../config/config.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { NodeInfo } from '../model/snapshot.ts'
import { WarningPace } from './warning-pace.ts'

type FamilyConfig = Pick<Config, 'nodePortAddresses' | 'detectLocal' | 'bindAddress'>

interface NodeWatchOptions {
  readonly clock: Clock
  readonly log: Log
  readonly config: () => Pick<Config, 'nodeName' | 'source'> & FamilyConfig
  /** Origin of the name: a flag, a field of the configuration, or `hostname`. */
  readonly nameFrom: string
  readonly others: () => Promise<readonly string[]>
}

type Sight = 'unseen' | 'found' | 'missing' | 'deleted'

/** Warns while this machine's Node object is missing: without it node ports and Local policies do not work. */
export class NodeWatch {
  readonly #options: NodeWatchOptions
  readonly #families: FamilyWatch
  readonly #warnings: Pacer
  #sight: Sight = 'unseen'
  /** Counts changes of the sight: a warning of an earlier one is void. */
  #changes = 0
  readonly #pace = new WarningPace()
  /** The last warning was about files without any Node. */
  #isOptionalSaid = false
  #doubts: readonly string[] = []

  constructor(options: NodeWatchOptions) {
    this.#options = options
    this.#families = new FamilyWatch(options)
    this.#warnings = new Pacer({ clock: options.clock, run: () => this.#warn() })
  }

  /** Takes the Node of a source that has read everything. */
  take(node: NodeInfo | undefined): void {
    const before = this.#sight
    this.#sight = node === undefined ? 'missing' : node.deleted === true ? 'deleted' : 'found'
    if (node !== undefined) this.#checkFamilies(node)
    if (this.#sight === before) return
    this.#changes++
    this.#pace.reset()
    this.#isOptionalSaid = false
    this.#warnings.cancel()
    if (this.#sight !== 'found') this.#warnings.wake()
    else if (before !== 'unseen')
      this.#options.log.info({ node: node?.name, ips: node?.ips.map(formatIp) }, 'Node found')
  }

  #checkFamilies(node: NodeInfo): void {
    const { config, log } = this.#options
    const before = this.#doubts
    this.#doubts = familyDoubts(config(), node)
    for (const text of this.#doubts) if (!before.includes(text)) log.warn({ node: node.name }, text)
  }

  synced(table: FrontendTable): void {
    if (this.#sight === 'found') this.#families.look(table)
  }

  stop(): void {
    this.#sight = 'found'
    this.#changes++
    void this.#warnings.stop()
  }

  async #warn(): Promise<number | undefined> {
    const { log, config, nameFrom } = this.#options
    const [sight, changes] = [this.#sight, this.#changes]
    const { nodeName, source } = config()
    const { nodes, err } = await this.#others()
    if (this.#changes !== changes) return undefined
    const facts = { node: nodeName, nameFrom, nodes, ...(err === undefined ? {} : { err }) }
    // Files may omit all Nodes deliberately, so that one warning is enough until a file has one.
    const isOptional = sight === 'missing' && source.kind === 'file' && nodes.length === 0
    if (sight === 'deleted') log.warn(facts, DELETED)
    else if (!isOptional || !this.#isOptionalSaid)
      log.warn(
        facts,
        `${isOptional ? 'no Node object in the files' : 'Node not found'}: ${this.#effects(isOptional)}`,
      )
    this.#isOptionalSaid = isOptional
    if (isOptional) this.#pace.reset()
    return this.#pace.next()
  }

  async #others(): Promise<{ readonly nodes: readonly string[]; readonly err?: Error }> {
    try {
      return { nodes: await this.#options.others() }
    } catch (thrown) {
      return { nodes: [], err: errorOf(thrown) }
    }
  }

  #effects(isOptional: boolean): string {
    const { nodePortAddresses, detectLocal } = this.#options.config()
    return [
      ...(needsNode(nodePortAddresses) ? [withoutNode(nodePortAddresses)] : []),
      ...(detectLocal.kind === 'NodeCIDR' ? ['no pod counts as local to this node'] : []),
      ...(isOptional ? [] : ['/healthz answers 503']),
      'policy Local reaches only endpoints whose nodeName is this name',
      isOptional
        ? 'add a Node object of this name, or set --nodeport-addresses'
        : 'set --hostname-override to the name of the Node of this machine',
    ].join('; ')
  }
}

const DELETED =
  'Node deleted: its last addresses stay in use, /healthz answers 503 until a Node of this name exists again'

/** Warns if Services of a family have node ports and the Node has no address of it, or none at all. */
class FamilyWatch {
  readonly #options: NodeWatchOptions
  readonly #used = new Set<Family>()
  readonly #warned = new Set<Family>()
  /** The warning that node ports answer on no address was given. */
  #isClosed = false
  #previous: FrontendTable['services'] = PersistentMap.empty()

  constructor(options: NodeWatchOptions) {
    this.#options = options
  }

  look({ services, node }: FrontendTable): void {
    const { log, config } = this.#options
    for (const key of this.#used.size < FAMILIES.length
      ? PersistentMap.changes(this.#previous, services)
      : [])
      for (const { family, frontends } of services.get(key)?.ports ?? [])
        if (frontends.some(({ kind }) => kind === 'NodePort')) this.#used.add(family)
    this.#previous = services
    const { nodeName, nodePortAddresses } = config()
    const isClosed = needsNode(nodePortAddresses) && node.ips.length === 0
    if (isClosed && this.#used.size > 0 && !this.#isClosed)
      log.warn({ node: nodeName }, noAddress(nodePortAddresses))
    this.#isClosed = isClosed && this.#used.size > 0
    for (const family of FAMILIES) {
      const has = node.ips.some(ip => familyOf(ip) === family)
      const chosen = nodePortAddresses.cidrs.some(({ ip }) => familyOf(ip) === family)
      const isOpen = nodePortAddresses.primary && !has && !chosen && node.ips.length > 0
      if (!isOpen) this.#warned.delete(family)
      else if (this.#used.has(family) && !this.#warned.has(family)) {
        this.#warned.add(family)
        log.warn({ node: nodeName, family, ips: node.ips.map(formatIp) }, ONE_FAMILY)
      }
    }
  }
}

/** Tests whether node ports listen on no address but loopback until the Node has an address. */
function needsNode({ primary, cidrs }: NodePortSelection): boolean {
  return primary && cidrs.every(({ ip }) => isLoopback(ip))
}

function withoutNode({ cidrs }: NodePortSelection): string {
  return cidrs.length === 0 ? 'node ports answer on no address' : 'node ports answer at localhost alone'
}

function noAddress(selection: NodePortSelection): string {
  return `Node has no address: ${withoutNode(selection)}; set --nodeport-addresses to choose`
}

const ONE_FAMILY =
  'Node has no address of this family: its node ports answer on all addresses of the family, as with kube-proxy; set --nodeport-addresses to choose'

/** Names the ranges that leave out a family of the cluster, as kube-proxy's warnings at its start do. */
function familyDoubts(
  { nodePortAddresses, detectLocal, bindAddress }: FamilyConfig,
  { ips, podCidrs }: Pick<NodeInfo, 'ips' | 'podCidrs'>,
): readonly string[] {
  const first = bindAddress === undefined || isUnspecified(bindAddress) ? ips[0] : bindAddress
  if (first === undefined) return []
  const primary = familyOf(first)
  const clusterCidrs = detectLocal.kind === 'ClusterCIDR' ? detectLocal.cidrs : []
  const nodePorts = nodePortAddresses.primary ? [] : nodePortAddresses.cidrs
  const used = [ips.map(familyOf), familiesOf(clusterCidrs), familiesOf(podCidrs)]
  const isDual = used.some(families => new Set(families).size > 1)
  const doubts: string[] = []
  const only = onlyFamilyOf(nodePorts)
  if (only !== undefined && (only !== primary || isDual))
    doubts.push(
      `nodePortAddresses has only ${only} ranges, and the cluster uses ${otherOf(only)} as well: node ports answer on all ${otherOf(only)} addresses of this node; add a range of ${otherOf(only)}`,
    )
  const other = otherOf(primary)
  if (onlyFamilyOf(clusterCidrs) === other)
    doubts.push(
      `clusterCIDR has only ${other} ranges, and the Node is ${primary}-primary: no ${primary} client counts as a pod of the cluster; add a range of ${primary}`,
    )
  if (detectLocal.kind === 'NodeCIDR' && onlyFamilyOf(podCidrs) === other)
    doubts.push(
      `spec.podCIDRs of the Node has only ${other} ranges, and the Node is ${primary}-primary: no ${primary} client counts as a pod of this node`,
    )
  return doubts
}

const familiesOf = (cidrs: readonly Cidr[]): readonly Family[] => cidrs.map(({ ip }) => familyOf(ip))
const otherOf = (family: Family): Family => (family === 'IPv4' ? 'IPv6' : 'IPv4')

function onlyFamilyOf(cidrs: readonly Cidr[]): Family | undefined {
  const [family, ...more] = new Set(familiesOf(cidrs))
  return more.length === 0 ? family : undefined
}
