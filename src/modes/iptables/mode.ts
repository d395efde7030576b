import type { Mode } from '../mode.ts'
import { chainNames } from '../xt-common/layout.ts'
import { SAME_CHAINS } from '../xt-common/same-chains.ts'
import { cleanIptables } from './cleanup.ts'
import { iptablesFindings } from './doctor.ts'
import { answersAtLoopback } from './loopback.ts'
import { iptablesTracer, openIptables, retireIptables } from './open.ts'
import { readIptablesRecord, writeIptablesRecord } from './record.ts'
import { IPTABLES_SETTINGS } from './settings.ts'
import { settleIptablesRecord } from './settle-record.ts'
import { iptablesHeld } from './show.ts'
import { tuneIptables } from './tune.ts'

export const iptables: Mode = {
  name: 'iptables',
  title: 'iptables',
  settings: IPTABLES_SETTINGS,
  kernelPart: 'nf_tables and xtables',
  open: (context, use) => use(openIptables(context)),
  retire: retireIptables,
  trace: iptablesTracer,
  held: iptablesHeld,
  examine: iptablesFindings,
  // The rules are made of xtables.
  needsFeature: kind => kind === 'nat',
  cleanup: cleanIptables,
  cleanupOnRequest: true,
  isRecorded: async kernel => (await readIptablesRecord(kernel)) !== undefined,
  settleRecord: settleIptablesRecord,
  tune: tuneIptables,
  record: writeIptablesRecord,
  resolving: config => ({ loopbackNodePorts: answersAtLoopback(config) }),
  // Measured at 100 to 1,000 ports of one Service: docs/decisions/0022-shares.md.
  costs: { frontend: 1_536, sliceEndpoint: 0, endpoint: 2_200, perFrontend: false },
  // A rule follows from tcpBeLiberal.
  fields: ['iptables', 'conntrack'],
  countsFailures: true,
  tableName: () => undefined,
  lock: {
    of: proxy => `kprobe/chains/${chainNames(proxy).prefix}`,
    taken:
      '--service-proxy-name has the same hash: its iptables chains have the same names; choose another name',
  },
  exclusive: () => SAME_CHAINS,
}
