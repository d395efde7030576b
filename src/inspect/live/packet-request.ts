import { type FlagReader, type FlagSpec, flag, quote } from '../../config/flag.ts'
import { readInstanceName, readSocketPath } from '../../config/own-flags.ts'
import type { ServiceRow } from '../../modes/common/show.ts'
import { readNamespace } from '../model-request.ts'
import { checkAddresses, given, hintAt, readFilterClient, readFilterTarget, TARGETS } from '../peers.ts'
import { NAMES_IN, readServiceFlag } from '../service-flag.ts'

const OUTPUTS = ['text', 'json'] as const
const COUNT = { min: 1, max: 100_000, fallback: 100 } as const
const DURATION = { minMs: 1, maxMs: 3_600_000, fallbackMs: 30_000 } as const

export const PACKET_FLAGS = {
  service: flag(
    '--service NAMESPACE/NAME[:PORT]',
    'only packets to this Service, at all its addresses and node ports; a port is a name, as `kprobe dump` prints it',
    { namesService: true },
  ),
  namespace: NAMES_IN,
  from: flag(
    '--from CLIENT',
    'only packets from this client: an address, a CIDR, pod/NAMESPACE/NAME, node/NAME (this node), or outside: every address but those of pods, Services and this node',
  ),
  to: flag('--to TARGET', `only packets to this destination: ${TARGETS}`, { namesService: true }),
  count: flag(`--count N = ${COUNT.fallback}`, `end after N packets, 1 to ${COUNT.max}`),
  duration: flag('--duration DURATION = 30s', 'end after this time, at most 1h'),
  output: flag('-o, --output FORMAT = text', 'text, or json: one object a line', { choices: OUTPUTS }),
} as const satisfies Readonly<Record<string, FlagSpec>>

export type PacketRequest = ReturnType<typeof readPacketRequest>

export function readPacketRequest(reader: FlagReader) {
  const namespace = readNamespace(reader)
  const service = readServiceFlag(reader, namespace, { mayHavePort: true })
  const client = given(reader, 'from', readFilterClient, namespace)
  const from = client === undefined ? [] : [client]
  const to = given(reader, 'to', readFilterTarget, namespace)
  checkAddresses(reader, from, to)
  return {
    service,
    from,
    to,
    packets: reader.integer('count', COUNT),
    durationMs: reader.durationMs('duration', DURATION),
    output: reader.oneOf('output', OUTPUTS, 'text'),
    adminSocket: readSocketPath(reader),
    proxyName: readInstanceName(reader),
  }
}

/** Says that no rule is for the Service, or for those of the namespace. */
export function notHeldText(rows: readonly Pick<ServiceRow, 'service'>[], service: string): string {
  if (service.endsWith('/')) return `the kernel serves no Service of the namespace ${service.slice(0, -1)}`
  const hint = hintAt(
    service,
    rows.map(row => row.service),
  )
  return `the kernel holds nothing for the Service ${quote(service)}${hint}`
}
