import { systemClock } from '../../src/base/clock.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { parseObject } from '../../src/model/parse.ts'
import { resolve } from '../../src/model/resolve.ts'
import {
  applyEvents,
  EMPTY_SNAPSHOT,
  type Snapshot,
  type SourceEvent,
  ValuePool,
} from '../../src/model/snapshot.ts'
import { IptablesPlane } from '../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../src/modes/iptables/settings.ts'
import { createNftablesPlane } from '../../src/modes/nftables/plane.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import type { Dataplane, Plan } from '../../src/reconcile/dataplane.ts'
import type { ReconcilerEvent } from '../../src/reconcile/pass.ts'
import { Reconciler } from '../../src/reconcile/reconciler.ts'

/** Objects between two breaths while parsing. */
const PARSE_SLICE = 500

/** The daemon's own parts, without files and signals around them. */
export interface Pipeline {
  /** Parses, applies and offers; resolves when the kernel holds it all. */
  load(objects: Iterable<object>): Promise<void>
  /** As load, but resolves with the first commit that follows. */
  change(object: object): Promise<void>
  cleanup(): Promise<void>
  stop(): Promise<void>
}

export interface NftablesPipeline extends Pipeline {
  readonly transport: Transport
}

export function createPipeline(wrap: (transport: Transport) => Transport = same => same): NftablesPipeline {
  const transport = wrap(openNetlink({ protocol: NETLINK_NETFILTER }))
  const client = createNftClient({ transport, clock: systemClock })
  const plane = createNftablesPlane({ client, options: PLANE_OPTIONS })
  return { ...pipelineOf(plane, () => client.close()), transport }
}

/** The iptables mode; nobody looks for drift meanwhile. */
export function createIptablesPipeline(
  wrap: (transport: Transport) => Transport = same => same,
): NftablesPipeline {
  const transport = wrap(openNetlink({ protocol: NETLINK_NETFILTER }))
  const client = createNftClient({ transport, clock: systemClock })
  const plane = new IptablesPlane({ client, options: DEFAULT_IPTABLES_OPTIONS })
  return { ...pipelineOf(plane, () => client.close()), transport }
}

/** A socket of which each datagram that is sent is told of first. */
export function overheard(transport: Transport, heard: (datagram: Uint8Array) => void): Transport {
  return {
    portId: transport.portId,
    sendLimitBytes: transport.sendLimitBytes,
    sendSync(datagram) {
      heard(datagram)
      transport.sendSync(datagram)
    },
    send(datagram) {
      heard(datagram)
      return transport.send(datagram)
    },
    receive: into => transport.receive(into),
    watch: readable => transport.watch(readable),
    join: group => transport.join(group),
    leave: group => transport.leave(group),
    close: () => transport.close(),
  }
}

/** No pass rests here, so that each change measures its own way only. */
export function pipelineOf<State, P extends Plan<State>>(
  plane: Dataplane<State, P>,
  close: () => Promise<void>,
): Pipeline {
  const waiting = new Set<(event: ReconcilerEvent) => void>()
  const reconciler = new Reconciler({
    plane,
    resolve: (previous, snapshot) => resolve(RESOLVE_OPTIONS, previous, snapshot),
    clock: systemClock,
    random: Math.random,
    minIntervalMs: 0,
    share: Number.POSITIVE_INFINITY,
    resyncPeriodMs: 3_600_000,
    driftPollMs: 0,
    report: event => {
      if (event.kind === 'failed' || event.kind === 'quarantined') throw event.error
      for (const listener of waiting) listener(event)
    },
  })
  let snapshot: Snapshot = EMPTY_SNAPSHOT
  const pool = new ValuePool()
  const until = (kind: ReconcilerEvent['kind']): Promise<void> =>
    new Promise(done => {
      const listener = (event: ReconcilerEvent): void => {
        if (event.kind !== kind) return
        waiting.delete(listener)
        done()
      }
      waiting.add(listener)
    })
  return {
    async load(objects) {
      const synced = until('synced')
      let events: SourceEvent[] = []
      for (const object of objects) {
        events.push(eventOf(object, pool))
        if (events.length < PARSE_SLICE) continue
        snapshot = applyEvents(snapshot, events)
        events = []
        await systemClock.breathe()
      }
      snapshot = applyEvents(snapshot, events)
      reconciler.offer(snapshot)
      await synced
    },
    change(object) {
      const committed = until('committed')
      snapshot = applyEvents(snapshot, [eventOf(object, pool)])
      reconciler.offer(snapshot)
      return committed
    },
    cleanup: () => plane.cleanup(),
    async stop() {
      await reconciler.stop()
      await close()
    },
  }
}

const RESOLVE_OPTIONS = {
  nodeName: 'node-0',
  serviceProxyName: undefined,
  nodePortSelection: { primary: false, cidrs: [] },
  allowedExternalCidrs: [],
  allowedLoadBalancerCidrs: [],
  allowServiceExternalIps: true,
  balancing: { policy: 'random' as const },
  bindAddress: undefined,
}

const PLANE_OPTIONS = {
  tableName: 'kube-proxy',
  natPriority: -100,
  masqueradeAll: false,
  masqueradeBit: 14,
  detector: { IPv4: undefined, IPv6: undefined },
  connectionCounters: false,
  logGroup: 0,
}

/** With the pool that a source of the daemon has. */
function eventOf(object: object, pool: ValuePool): SourceEvent {
  const event = parseObject(object, pool)
  if (event === undefined || 'reason' in event)
    throw new Error(`not accepted: ${JSON.stringify(event ?? object)}`)
  return event
}
