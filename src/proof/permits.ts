import { u16be } from '../base/octets.ts'
import { difference, onlyValue, point, type Region, union } from './evaluate/region.ts'
import { LOCAL, loopback, regionOfIps } from './evaluate/values.ts'
import type { Leaf } from './evaluate/walk.ts'
import type { FamilyMeaning, Fate } from './meaning.ts'
import { protocolOf } from './packet-class.ts'

/** Effects of kube-proxy's IPVS chains that packets may have beside their fate: modes/ipvs/README.md. */
export class Permits {
  readonly #meaning: FamilyMeaning
  #serviceAddresses: Region | undefined
  #ports: ReadonlyMap<string, Region> | undefined

  constructor(meaning: FamilyMeaning) {
    this.#meaning = meaning
  }

  /** Gives the fate that packets of an end meet; undefined where they may meet it as they do. */
  fateAt(leaf: Leaf, fate: Fate): Fate | undefined {
    if (!this.#meaning.promises.kubeProxyChains) return fate
    const { machine, end } = leaf
    if (fate.kind === 'reject') return this.#opens(leaf) ? undefined : fate
    const asked = fate.kind === 'endpoints' && fate.masquerade
    if (machine.masquerade === asked || !this.#masqueradesAsItLikes(leaf)) return fate
    if (fate.kind === 'endpoints') return { ...fate, masquerade: machine.masquerade }
    return fate.kind === 'pass' && end === 'pass' ? undefined : fate
  }

  /** A process of this node may reach a private virtual server, and a health check port at each address of Services. */
  #opens({ machine, end }: Leaf): boolean {
    const { server, sent, box } = machine
    if (end === 'endpoint')
      return (
        sent &&
        server !== undefined &&
        server.ip === onlyValue(box.destination) &&
        this.#meaning.clusterIps.has(server.ip)
      )
    return end === 'pass' && this.#isAmong(box.destinationPort, this.#portsOf('health checks'))
  }

  #masqueradesAsItLikes({ machine: { box, masquerade } }: Leaf): boolean {
    const { family, places, clusterIps } = this.#meaning
    this.#serviceAddresses ??= regionOfIps([...clusterIps, ...places.flatMap(({ ip }) => ip ?? [])])
    const sources = [loopback(family === 'IPv4' ? 4 : 16), this.#serviceAddresses]
    if (sources.some(its => this.#isAmong(box.source, its))) return true
    const protocol = protocolOf(box)
    if (!masquerade || protocol === undefined || !this.#isAmong(box.destinationType, LOCAL)) return false
    return this.#isAmong(box.destinationPort, this.#portsOf(protocol))
  }

  #isAmong(region: Region, others: Region): boolean {
    return region.length > 0 && difference(region, others).length === 0
  }

  #portsOf(of: string): Region {
    if (this.#ports === undefined) {
      const { nodePorts, healthCheckPorts } = this.#meaning
      const ports = new Map([['health checks', union(healthCheckPorts.flatMap(port => point(u16be(port))))]])
      for (const { protocol, port } of nodePorts)
        ports.set(protocol, union([...(ports.get(protocol) ?? []), ...point(u16be(port))]))
      this.#ports = ports
    }
    return this.#ports.get(of) ?? []
  }
}
