import type { NftClient } from '../../src/kernel/nft/client.ts'
import { IptablesPlane } from '../../src/modes/iptables/plane.ts'
import type { IptablesOptions } from '../../src/modes/iptables/settings.ts'
import { iptablesOptionsOf, openClient, type PipelineConfig } from './pipeline.ts'

interface OpenIptablesPlane {
  readonly client: NftClient
  readonly plane: IptablesPlane
}

/** A plane of the mode on the real kernel, in the network namespace this process is in now. */
export function openIptablesPlane(
  config: PipelineConfig,
  more: Partial<IptablesOptions> = {},
): OpenIptablesPlane {
  const client = openClient()
  return {
    client,
    plane: new IptablesPlane({ client, options: { ...iptablesOptionsOf(config), ...more } }),
  }
}
