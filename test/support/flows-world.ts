import { setTimeout as pause } from 'node:timers/promises'
import { SYNC_SHARE, systemClock } from '../../src/base/clock.ts'
import { type FlowEvent, FlowReconciler } from '../../src/flows/flow-reconciler.ts'
import { type ConntrackClient, createConntrackClient } from '../../src/kernel/conntrack/client.ts'
import { EMPTY_STATE } from '../../src/modes/nftables/state.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { flowText } from '../unit/kernel/conntrack/flows.ts'
import { decodeSighting, encodeProbe } from './lab/probe.ts'
import { closeTopology, openTopology, type Topology } from './lab/topology.ts'
import { eventually, Patience } from './patience.ts'
import { type Computed, change, commitAll, compute, type KernelPlane, openPlane } from './pipeline.ts'

export const openTransport = () => openNetlink({ protocol: NETLINK_NETFILTER })
export const NODE = '192.168.0.2'
/** A datagram that is nowhere after that was dropped. */
const ANSWER_MS = 5_000
const CONFIG = { nodePortAddresses: [`${NODE}/32`] }

/** The Service address that datagrams go to unless they say otherwise. */
export const VIP = '172.30.0.53'

interface Datagram {
  readonly protocol?: 'UDP' | 'SCTP'
  readonly from?: 'outside' | 'pod' | 'node'
  readonly source?: string
  readonly sourcePort?: number
  readonly destination?: string
  readonly port?: number
}

/** A node with its rules and the flow reconciler, as the daemon puts them together, and packets. */
export class World {
  readonly events: FlowEvent[] = []
  readonly topology: Topology
  readonly #plane: KernelPlane
  readonly #seen = new Map<number, string>()
  client: ConntrackClient
  #flows: FlowReconciler
  #computed: Computed
  #held = EMPTY_STATE
  #ident = 0x20000000

  private constructor(topology: Topology, seen: Map<number, string>, config: typeof CONFIG) {
    this.topology = topology
    this.#seen = seen
    this.#computed = compute(config, [NODE, '192.168.1.2'])
    this.#plane = openPlane(config)
    this.client = createConntrackClient({ openTransport, clock: systemClock })
    this.#flows = this.#start()
  }

  static async open(config = CONFIG): Promise<World> {
    const seen = new Map<number, string>()
    const topology = await openTopology([], (place, packet) => {
      const sighting = decodeSighting(packet)
      if (sighting === undefined) return
      const { kind, ident, destination, port } = sighting
      seen.set(ident, kind === 'probe' ? `${place} ${destination}:${port}` : 'refused')
    })
    return new World(topology, seen, config)
  }

  async close(): Promise<void> {
    await this.#flows.stop()
    await Promise.all([this.client.close(), this.#plane.client.close()])
    await closeTopology(this.topology)
  }

  #start(client: ConntrackClient = this.client): FlowReconciler {
    const report = (event: FlowEvent) => this.events.push(event)
    return new FlowReconciler({
      client,
      clock: systemClock,
      random: Math.random,
      share: () => SYNC_SHARE,
      report,
    })
  }

  /** As a process that ends and another that begins: what it does not keep in the kernel is lost. */
  async restart(client?: ConntrackClient): Promise<void> {
    await this.#flows.stop()
    this.#flows = this.#start(client)
    this.offer()
    await this.looked()
  }

  offer(): void {
    const { snapshot, table } = this.#computed.resolved
    this.#flows.offer(snapshot, table)
  }

  /** Brings the kernel to these objects; the flow reconciler is told of it unless it is stopped at that moment. */
  async program(objects: readonly object[], remove: readonly string[] = [], told = true): Promise<void> {
    this.#computed = change(this.#computed, { objects, remove })
    this.#held = await commitAll(this.#plane.plane, this.#held, this.#computed.state)
    if (told) this.offer()
  }

  /** Waits for a pass that got through. */
  async looked(): Promise<void> {
    const before = this.events.length
    await eventually(() => this.events.slice(before).some(({ kind }) => kind === 'reconciled'))
  }

  /** Sends one datagram and tells where it came out: `pods 10.180.0.1:5353`, `refused`, or `nowhere`. */
  async send(datagram: Datagram = {}): Promise<string> {
    const { from = 'outside', source = '203.0.113.5', sourcePort = 4000, ...to } = datagram
    const { destination = VIP, port = 53, protocol = 'UDP' } = to
    const ident = ++this.#ident
    const pipe = from === 'pod' ? this.topology.pods : this.topology[from]
    const probe = { source, sourcePort, destination, destinationPort: port, protocol, ident }
    // A busy machine drops packets between namespaces: the same flow is sent again.
    const patience = new Patience(ANSWER_MS)
    for (let turn = 0; !this.#seen.has(ident) && !patience.isOver; turn++) {
      if (turn % 40 === 0) pipe.send([encodeProbe(probe)])
      await pause(5)
    }
    return this.#seen.get(ident) ?? 'nowhere'
  }

  /** Sends again and again until the datagrams come out there. */
  async reaches(place: string, datagram: Datagram = {}): Promise<void> {
    let at = ''
    const isThere = async () => {
      at = await this.send(datagram)
      return at === place
    }
    await eventually(isThere, { stepMs: 20, describe: () => `datagrams go to ${at}, not to ${place}` })
  }

  /** All flows of UDP, as text. */
  async udp(): Promise<string[]> {
    const found: string[] = []
    const visit = (each: Parameters<typeof flowText>[0]) => found.push(flowText(each))
    await this.client.dump({ family: 'IPv4', protocol: 'UDP' }, { isWanted: () => true, visit })
    return found.sort()
  }

  deleted(): number {
    return this.events.reduce((sum, event) => sum + (event.kind === 'reconciled' ? event.deleted : 0), 0)
  }
}
