import { formatCidr } from '../../base/cidr.ts'
import { OWN_IPVS_FLAGS } from '../../config/ipvs-flags.ts'
import { tuneIpvs } from '../../kernel/ipvs/sysctl-files.ts'
import { missingFails } from '../common/tune.ts'
import type { Mode, ModeSettings } from '../mode.ts'
import { SAME_CHAINS } from '../xt-common/same-chains.ts'
import { cleanIpvs, cleanKubeProxyIpvs } from './cleanup.ts'
import { ipvsFindings } from './doctor.ts'
import { IPVS_DUMPS } from './dump.ts'
import { freeFromIpvs, hasIpvsTable, IPVS_DEVICE, ipvsTracer, openIpvs, retireIpvs } from './open.ts'
import { DEFAULT_IPVS_OPTIONS } from './options.ts'
import { ipvsHeld } from './show.ts'

const IPVS_SETTINGS: ModeSettings = {
  // As in kube-proxy's conversion from v1alpha1, this mode reads the settings of masquerading from the section `iptables`.
  masqueradeAll: 'iptables.masqueradeAll',
  masqueradeBit: 'iptables.masqueradeBit',
  minSyncPeriod: 'ipvs.minSyncPeriod',
  syncPeriod: 'ipvs.syncPeriod',
  periodFlags: { min: 'ipvs-min-sync-period', sync: 'ipvs-sync-period' },
  // IPVS reports no changes: besides the digests, only a full resync finds them.
  defaultSyncPeriod: 30_000_000_000n,
  notNegative: ['ipvs.tcpFinTimeout', 'ipvs.tcpTimeout', 'ipvs.udpTimeout'],
  countsConnections: true,
  ownFlags: OWN_IPVS_FLAGS,
  flagTexts: ({ ipvs }) => ({
    'ipvs-scheduler': ipvs.scheduler,
    'ipvs-exclude-cidrs': ipvs.excludeCidrs.map(formatCidr).join(),
    'ipvs-strict-arp': `${ipvs.strictArp}`,
    'ipvs-tcp-timeout': `${ipvs.tcpTimeoutS}s`,
    'ipvs-tcpfin-timeout': `${ipvs.tcpFinTimeoutS}s`,
    'ipvs-udp-timeout': `${ipvs.udpTimeoutS}s`,
    'ipvs-rules': ipvs.rules,
    'ipvs-drain-timeout': `${ipvs.drainTimeoutMs}ms`,
    'ipvs-digest-period': `${ipvs.digestPeriodMs}ms`,
  }),
}

export const ipvs: Mode = {
  name: 'ipvs',
  title: 'IPVS',
  settings: IPVS_SETTINGS,
  kernelPart: 'IPVS',
  open: (context, use) => use(openIpvs(context)),
  retire: retireIpvs,
  trace: ipvsTracer,
  held: ipvsHeld,
  dumps: IPVS_DUMPS,
  examine: ipvsFindings,
  free: freeFromIpvs,
  // IPVS itself balances connections and remembers clients.
  needsFeature: kind => kind !== 'numgen' && kind !== 'dynamic',
  cleanup: cleanIpvs,
  cleanupKubeProxy: cleanKubeProxyIpvs,
  ownsElsewhere: hasIpvsTable,
  tune: async ({ ipvs }, options) => missingFails(await tuneIpvs(ipvs, options)),
  // A virtual server has one address, and no address stands for all addresses.
  resolving: () => ({ listNodePortAddresses: true, bindsExternalIps: true }),
  // Estimated: docs/decisions/0022-shares.md.
  costs: { frontend: 1_536, sliceEndpoint: 0, endpoint: 800, perFrontend: true },
  fields: ['ipvs'],
  // IPVS needs a virtual server for each address.
  needsAddresses: true,
  device: IPVS_DEVICE,
  tableName: proxy => (proxy === undefined ? DEFAULT_IPVS_OPTIONS.tableName : undefined),
  notNamed:
    'a network namespace has one list of virtual servers, and the unnamed proxy removes those that it does not know',
  exclusive: ({ ipvs }) => (ipvs.rules === 'iptables' ? SAME_CHAINS : undefined),
}
