import { onTestFinished } from 'vitest'
import { parseIp } from '../../src/base/ip.ts'
import { IpsetClient } from '../../src/kernel/ipset/client.ts'
import { IpvsClient } from '../../src/kernel/ipvs/client.ts'
import { DummyClient } from '../../src/kernel/link/dummy.ts'
import { createAddressReader } from '../../src/kernel/link/links.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import type { IpvsKernel } from '../../src/modes/ipvs/observe.ts'
import type { IpvsPlan } from '../../src/modes/ipvs/plan.ts'
import { IpvsPlane } from '../../src/modes/ipvs/plane.ts'
import { DEFAULT_IPVS_OPTIONS, type IpvsOptions } from '../../src/modes/ipvs/settings.ts'
import type { IpvsState } from '../../src/modes/ipvs/state.ts'
import type { ModeEvent } from '../../src/modes/mode.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { FakeClock } from './fake-clock.ts'
import { IpvsNode } from './ipvs-node.ts'
import { PlaneRig } from './plane-rig.ts'

export interface IpvsRigOptions {
  readonly node: IpvsNode
  readonly clock?: FakeClock
  readonly options?: Partial<IpvsOptions>
  readonly driftPollMs?: number
  readonly resyncPeriodMs?: number
  /** Nobody tells of addresses. */
  readonly deaf?: boolean
  /** The generation is watched instead of polled, and never changes. */
  readonly quiet?: boolean
}

export const NODE_IP = '192.168.77.1'

/** The clients of one process on a node in memory. */
export function ipvsKernelOf(node: IpvsNode, clock: FakeClock): IpvsKernel {
  const ipset = new IpsetClient({ transport: node.open('ipset'), clock })
  return {
    ipset,
    nft: createNftClient({ transport: node.open('nft'), clock, ipsets: ipset }),
    ipvs: new IpvsClient({ transport: node.open('ipvs'), clock }),
    dummy: new DummyClient({ transport: node.open('link'), clock }),
  }
}

/** One process of the IPVS mode on a node in memory. */
export class IpvsRig extends PlaneRig<IpvsState, IpvsPlan> {
  readonly upkeep: ModeEvent[]
  readonly plane: IpvsPlane
  readonly #closeAll: () => Promise<void>

  constructor({
    node,
    clock = new FakeClock(),
    options,
    deaf = false,
    quiet = false,
    ...periods
  }: IpvsRigOptions) {
    const kernel = ipvsKernelOf(node, clock)
    const reader = createAddressReader({ openTransport: () => node.links.open(), clock })
    const upkeep: ModeEvent[] = []
    const plane = new IpvsPlane({
      ...kernel,
      clock,
      options: { ...DEFAULT_IPVS_OPTIONS, ...options },
      ...(deaf ? {} : { watchAddresses: changed => reader.watch(changed) }),
      ...(quiet ? { writers: { openTransport: () => repeating(node, clock), own: 0 } } : {}),
      report: event => upkeep.push(event),
    })
    super({ plane, clock, localIps: [parseIp(NODE_IP) ?? ''], ...periods })
    this.plane = plane
    this.upkeep = upkeep
    this.#closeAll = async () => {
      await plane.close()
      await Promise.all([...Object.values(kernel), reader].map(client => client.close()))
    }
  }

  protected override closeRest(): Promise<void> {
    return this.#closeAll()
  }
}

export interface IpvsBench {
  readonly node: IpvsNode
  readonly clock: FakeClock
  /** Starts one more process on the node, which ends with the test. */
  readonly start: (
    options?: Partial<IpvsOptions>,
    more?: Omit<IpvsRigOptions, 'node' | 'clock' | 'options'>,
  ) => IpvsRig
  readonly stop: (rig: IpvsRig) => Promise<void>
}

/** A node in memory for one test. */
export function ipvsBench(schedulers?: readonly string[]): IpvsBench {
  const clock = new FakeClock()
  const node = new IpvsNode({ nowMs: () => clock.nowMs(), ...(schedulers && { schedulers }) })
  const running = new Set<IpvsRig>()
  const stop = async (rig: IpvsRig) => {
    if (running.delete(rig)) await rig.close()
  }
  return {
    node,
    clock,
    start(options, more = {}) {
      const rig = new IpvsRig({ node, clock, ...more, ...(options && { options }) })
      running.add(rig)
      onTestFinished(() => stop(rig))
      return rig
    },
    stop,
  }
}

/** A socket that repeats a request, and calls back once although nothing has changed. */
function repeating(node: IpvsNode, clock: FakeClock): Transport {
  return Object.assign(node.open('nft'), {
    repeat: (_request: Uint8Array, everyMs: number, changed: () => void) => ({
      expect: () => undefined,
      stop: clock.after(everyMs, changed),
    }),
  })
}
