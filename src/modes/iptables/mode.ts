import type { Mode } from '../mode.ts'
import { CHAIN_DUMP } from '../xt-common/dump.ts'
import { chainNames, SAME_CHAINS } from '../xt-common/layout.ts'
import {
  cleanIptables,
  readIptablesRecord,
  retireIptables,
  settleIptablesRecord,
  writeIptablesRecord,
} from './cleanup.ts'
import { iptablesFindings } from './doctor.ts'
import { openIptables } from './open.ts'
import { answersAtLoopback, IPTABLES_SETTINGS, iptablesProving, tuneIptables } from './settings.ts'
import { iptablesHeld } from './show.ts'
import { iptablesTracer } from './trace.ts'

export const iptables: Mode = {
  name: 'iptables',
  title: 'iptables',
  settings: IPTABLES_SETTINGS,
  kernelPart: 'nf_tables and xtables',
  open: (context, use) => use(openIptables(context)),
  retire: retireIptables,
  trace: iptablesTracer,
  held: iptablesHeld,
  dumps: [CHAIN_DUMP],
  examine: iptablesFindings,
  // The rules consist of xtables extensions. Of the features of nf_tables they need only nat chains.
  needsFeature: kind => kind === 'nat' || kind === 'log',
  cleanup: cleanIptables,
  cleanupOnRequest: true,
  isRecorded: async kernel => (await readIptablesRecord(kernel)) !== undefined,
  settleRecord: settleIptablesRecord,
  tune: tuneIptables,
  record: writeIptablesRecord,
  whyNotAtLocalhost: ({ iptables: { localhostNodePorts } }) =>
    localhostNodePorts ? undefined : 'iptables.localhostNodePorts is false',
  resolving: config => ({ loopbackNodePorts: answersAtLoopback(config) }),
  // Measured at 100 to 1,000 ports of one Service: docs/decisions/0022-shares.md.
  costs: { frontend: 1_536, sliceEndpoint: 0, endpoint: 2_200, perFrontend: false },
  // One rule depends on tcpBeLiberal.
  fields: ['iptables', 'conntrack'],
  countsFailures: true,
  tableName: () => undefined,
  lock: {
    of: proxy => `kprobe/chains/${chainNames(proxy).prefix}`,
    taken:
      '--service-proxy-name has the same hash: its iptables chains have the same names; choose another name',
  },
  proving: iptablesProving,
  exclusive: () => SAME_CHAINS,
}
