import { type Octets, readU32host } from '../../../src/base/octets.ts'
import {
  COMMAND,
  type DESTINATION,
  IP_VS_CONN_F_FWD_MASK,
  IP_VS_SCHEDNAME_MAXLEN,
  type SERVICE,
} from '../../../src/kernel/ipvs/state.ts'
import { IPPROTO_TCP } from '../../../src/kernel/nft/constants.ts'
import type { ByteView } from '../../../src/netlink/attribute.ts'
import { AF_INET, AF_INET6 } from '../../../src/netlink/constants.ts'
import { NetlinkError } from '../../../src/netlink/errors.ts'
import { genericSpan } from '../../../src/netlink/genetlink.ts'
import type { Message } from '../../../src/netlink/message.ts'
import { readAttributes, type ValuesOf } from '../../../src/netlink/schema.ts'
import { refuse } from '../fake-kernel/call.ts'
import { type FakeAddress, type FakeDestination, type FakeServer, NO_STATS } from './objects.ts'

/** The attributes of a command. What the codec cannot read, the kernel's policy does not accept either. */
export function commandIn(view: ByteView, message: Message): ValuesOf<typeof COMMAND> {
  try {
    return readAttributes(view, COMMAND, genericSpan(message))
  } catch (error) {
    if (error instanceof NetlinkError) return refuse('EINVAL')
    throw error
  }
}

type ServiceValues = ValuesOf<typeof SERVICE>

/** The first half of ip_vs_genl_parse_service. */
export function addressIn(service: ServiceValues | undefined, hasIpv6: boolean): FakeAddress {
  if (service === undefined) return refuse('EINVAL')
  checkScheduler(service.scheduler)
  const { family, protocol, address, port, mark } = service
  if (family === undefined) return refuse('EINVAL')
  if (mark !== undefined) {
    checkFamily(family, hasIpv6)
    return { family, protocol: IPPROTO_TCP, address: '', port: 0, mark }
  }
  if (protocol === undefined || address === undefined || port === undefined) return refuse('EINVAL')
  checkFamily(family, hasIpv6)
  return { family, protocol, address: unionOf(address, family), port, mark: 0 }
}

type ServerSettings = Pick<FakeServer, 'scheduler' | 'flags' | 'timeoutS' | 'netmask'>

/** The other half, which NEW and SET want. The flags' mask is always whole. */
export function settingsIn(service: ServiceValues): ServerSettings {
  const { scheduler, flags, timeoutS, netmask } = service
  if (scheduler === undefined || flags === undefined || timeoutS === undefined || netmask === undefined)
    return refuse('EINVAL')
  return { scheduler, flags, timeoutS, netmask }
}

/** What ip_vs_add_service and ip_vs_edit_service check, in their order. */
export function checkSettings(
  { family }: FakeAddress,
  { scheduler, netmask }: ServerSettings,
  schedulers: ReadonlySet<string>,
): void {
  if (scheduler !== 'none' && !schedulers.has(scheduler)) refuse('ENOENT')
  if (family !== AF_INET6) return
  const length = readU32host(netmask)
  if (length < 1 || length > 128) refuse('EINVAL')
}

/** ip_vs_genl_parse_dest for a real server of `server`; `full` for NEW and SET. */
export function destinationIn(
  destination: ValuesOf<typeof DESTINATION> | undefined,
  server: FakeAddress,
  { full, hasIpv6 }: { readonly full: boolean; readonly hasIpv6: boolean },
): FakeDestination {
  const { address, port, forwarding, weight, connectionsMax, connectionsLow } = destination ?? {}
  if (address === undefined || port === undefined) return refuse('EINVAL')
  const settings = [forwarding, weight, connectionsMax, connectionsLow]
  if (full && settings.includes(undefined)) refuse('EINVAL')
  const family =
    destination?.family === undefined || destination.family === 0 ? server.family : destination.family
  checkFamily(family, hasIpv6)
  const method = (forwarding ?? 0) & IP_VS_CONN_F_FWD_MASK
  if (full && family !== server.family && method !== TUNNEL) refuse('EINVAL')
  return {
    family,
    address: unionOf(address, family),
    port,
    weight: weight ?? 0,
    forwarding: method,
    connectionsMax: connectionsMax ?? 0,
    connectionsLow: connectionsLow ?? 0,
    activeConnections: 0,
    inactiveConnections: 0,
    stats: NO_STATS,
  }
}

const TUNNEL = 2

/** What ip_vs_add_dest and ip_vs_edit_dest check first. */
export function checkLimits({ weight, connectionsMax, connectionsLow }: FakeDestination): void {
  if ((weight | 0) < 0 || connectionsLow > connectionsMax) refuse('ERANGE')
}

/** What ip_vs_new_dest checks: an address that packets can be sent to, none of which is the node's own here. */
export function checkReachable({ family, address }: FakeDestination): void {
  const first = address.charCodeAt(0)
  const second = address.charCodeAt(1)
  const isFine =
    family === AF_INET
      ? first !== 0 && (first & 0xf0) !== 0xe0 && address.slice(0, 4) !== '\xff\xff\xff\xff'
      : first !== 0xff &&
        !(first === 0xfe && (second & 0xc0) === 0x80) &&
        !/^\0{16}$/.test(address) &&
        !address.startsWith(`${'\0'.repeat(10)}\xff\xff`)
  if (!isFine) refuse('EINVAL')
}

function checkScheduler(scheduler: string | undefined): void {
  if (scheduler !== undefined && scheduler.length >= IP_VS_SCHEDNAME_MAXLEN) refuse('EINVAL')
}

function checkFamily(family: number, hasIpv6: boolean): void {
  if (family !== AF_INET && !(family === AF_INET6 && hasIpv6)) refuse('EAFNOSUPPORT')
}

/** ip_vs_addr_copy: of IPv4, what lies behind the address does not count. */
function unionOf(address: Octets, family: number): Octets {
  return family === AF_INET ? address.slice(0, 4).padEnd(16, '\0') : address
}
