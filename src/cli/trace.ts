import { systemClock } from '../base/clock.ts'
import { nearest } from '../base/text.ts'
import { quote } from '../config/flag.ts'
import { HERE } from '../daemon/open.ts'
import { familyName, isOfService, type ServiceRow } from '../modes/common/show.ts'
import { NFT_FAMILIES } from '../modes/common/tables.ts'
import type { TracePlace } from '../modes/common/trace-table.ts'
import type { HeldMode } from '../modes/mode.ts'
import { readModes } from '../modes/registry.ts'
import { askServiceNames } from './admin-client.ts'
import { ownCommand } from './command.ts'
import { EXIT_FINE, type Io } from './io.ts'
import { placeOf } from './programmed.ts'
import { RuleNames } from './rule-names.ts'
import { readTraceRequest, resolvePeers, TRACE_FLAGS, type TraceRequest } from './trace-request.ts'
import { followPackets, TraceTables } from './trace-session.ts'

export const command = ownCommand({
  name: 'trace',
  description:
    'Traces real packets through the rules of all programs in nf_tables, live: which rule decided at each step, the\n' +
    'conntrack entry, and what became of the packet. Needs no daemon. Ends after --duration or --count packets.',
  details: [
    'Example:',
    '  kprobe trace --service shop/cart',
    '  kprobe trace --from 203.0.113.0/24 --reject-only --duration 5m',
    '',
    'A table of its own starts the trace (`meta nftrace set 1`). The kernel removes it when the command ends, also after SIGKILL (Linux 5.12; before, `kprobe cleanup` and the next start of the daemon remove it). The kernel matches, and limits the rate: other packets and the rest of a flood only meet the lookup. What the limit leaves out and what the kernel lost is reported at the end.',
    'The trace sees rules of nftables mode, of iptables-nft, and of IPVS and userspace mode. It does not see legacy iptables, tc, XDP, eBPF and IPVS itself: a packet that ends there is reported as not seen again. Places of --service are those at the start.',
  ],
  flags: TRACE_FLAGS,
  read: readTraceRequest,
  run: trace,
})

/** Gives the places of a Service in the kernel. Throws when it has none. */
function placesOf(held: readonly HeldMode[], service: string): readonly TracePlace[] {
  const rows = held.flatMap(mode => mode.rows)
  const places = rows
    .filter(row => isOfService([row.service], service))
    .flatMap(row => tracePlaceOf(row) ?? [])
  if (places.length > 0) return places
  if (held.length === 0)
    throw new Error(
      'the kernel holds no rules of kprobe, so that --service has no addresses; use --from or --to',
    )
  const names = rows.map(row => (service.includes(':') ? row.service : row.service.replace(/:.*$/, '')))
  const near = nearest(service, names)
  const hint = near === undefined ? '' : `; did you mean ${near}?`
  throw new Error(`the kernel holds nothing for the Service ${quote(service)}${hint}`)
}

function tracePlaceOf(row: ServiceRow): TracePlace | undefined {
  const place = placeOf(row)
  const { protocol } = row
  if (place === undefined || (protocol !== 'TCP' && protocol !== 'UDP' && protocol !== 'SCTP'))
    return undefined
  return { protocol, ip: place.ip, family: familyName(place.family), port: place.port }
}

async function trace(request: TraceRequest, io: Io): Promise<number> {
  const serviceNames = await askServiceNames(request.adminSocket)
  const { proxyName: proxy } = request
  const what = { ...HERE, families: NFT_FAMILIES, proxyName: proxy }
  const read = async () => (await readModes(what, () => serviceNames)).held
  const names = new RuleNames({ clock: systemClock, proxy, read })
  try {
    const held = await names.load()
    const places = request.service === '' ? undefined : placesOf(held, request.service)
    const peers = await resolvePeers(request)
    const tables = new TraceTables()
    try {
      await followPackets(request, io, { names, tables, match: { ...request, ...peers, places } })
    } finally {
      await tables.close()
    }
    return EXIT_FINE
  } finally {
    await names.close()
  }
}
