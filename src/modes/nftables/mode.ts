import { type Config, GATE_LOCALHOST } from '../../config/config.ts'
import { familiesAtLocalhost } from '../../model/node-context.ts'
import type { Mode } from '../mode.ts'
import { cleanNftables } from './cleanup.ts'
import { nftablesFeatures } from './doctor.ts'
import { nftablesTracer, openNftables, retireNftables } from './open.ts'
import { NFTABLES_SETTINGS, proxyOfTable, tableNameOf } from './settings.ts'
import { nftablesHeld } from './show.ts'

/** Whether the gate leaves node ports at localhost to the relay. */
function mayRelay({ featureGates }: Pick<Config, 'featureGates'>): boolean {
  return featureGates[GATE_LOCALHOST] !== false
}

export const nftables: Mode = {
  name: 'nftables',
  title: 'nftables',
  settings: NFTABLES_SETTINGS,
  kernelPart: 'nf_tables',
  open: (context, use) => use(openNftables(context)),
  retire: retireNftables,
  trace: nftablesTracer,
  held: nftablesHeld,
  features: nftablesFeatures,
  needsFeature: () => true,
  cleanup: cleanNftables,
  whyNotAtLocalhost: config => (mayRelay(config) ? undefined : `the feature gate ${GATE_LOCALHOST} is false`),
  resolving: config => ({ relaysLocalhost: mayRelay(config) }),
  relaysSome: config => mayRelay(config) && familiesAtLocalhost(config.nodePortAddresses).length > 0,
  // Measured at 100 to 1,000 ports of one Service: docs/decisions/0022-shares.md.
  costs: { frontend: 1_280, sliceEndpoint: 320, endpoint: 320, perFrontend: false },
  tableName: tableNameOf,
  proxyOfTable,
  isProvable: true,
}
