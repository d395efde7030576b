import { tuneIpvs } from '../../kernel/ipvs/sysctls.ts'
import { missingFails } from '../../kernel/sysctl/sysctls.ts'
import type { Mode } from '../mode.ts'
import { SAME_CHAINS } from '../xt-common/layout.ts'
import { cleanIpvs, cleanKubeProxyIpvs, freeFromIpvs, retireIpvs } from './cleanup.ts'
import { ipvsFindings } from './doctor.ts'
import { IPVS_DUMPS } from './dump.ts'
import { hasIpvsTable } from './kernel.ts'
import { openIpvs } from './open.ts'
import { ipvsProving } from './proving.ts'
import { DEFAULT_IPVS_OPTIONS, IPVS_DEVICE, IPVS_SETTINGS } from './settings.ts'
import { ipvsHeld } from './show.ts'
import { ipvsTracer } from './trace.ts'

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
  needsFeature: kind => kind !== 'numgen' && kind !== 'dynamic' && kind !== 'log',
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
  proving: ipvsProving,
  tableName: proxy => (proxy === undefined ? DEFAULT_IPVS_OPTIONS.tableName : undefined),
  notNamed:
    'a network namespace has one list of virtual servers, and the unnamed proxy removes those that it does not know',
  exclusive: ({ ipvs }) => (ipvs.rules === 'iptables' ? SAME_CHAINS : undefined),
}
