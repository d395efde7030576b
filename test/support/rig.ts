import { type Clock, systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { createNftablesPlane } from '../../src/modes/nftables/plane.ts'
import type { NftablesPlan, NftablesState } from '../../src/modes/nftables/state.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { nftablesOptionsOf, type PipelineConfig } from './pipeline.ts'
import { PlaneRig } from './plane-rig.ts'

export interface RigOptions {
  readonly transport: Transport
  readonly clock?: Clock
  readonly config?: PipelineConfig
  readonly driftPollMs?: number
  /** A socket that listens; without it nobody is named. */
  readonly openListener?: () => Transport
}

/** The nftables mode over a socket of the test's choice. */
export class Rig extends PlaneRig<NftablesState, NftablesPlan> {
  readonly client: NftClient

  constructor(options: RigOptions) {
    const { transport, clock = systemClock, config = {}, openListener, ...periods } = options
    const client = createNftClient({ transport, clock })
    const nftables = nftablesOptionsOf(config)
    const plane = createNftablesPlane({
      client,
      options: nftables,
      ...(openListener && { writers: { openTransport: openListener, own: transport.portId } }),
    })
    super({ plane, clock, config, ...periods })
    this.client = client
  }

  protected override closeRest(): Promise<void> {
    return this.client.close()
  }
}
