import { compareIps, familyOf, formatIp, formatIpPort } from '../../base/ip.ts'
import { u32be } from '../../base/octets.ts'
import { compareTexts } from '../../base/text.ts'
import * as ipvs from './constants.ts'
import {
  type IpvsProtocol,
  isPersistent,
  type RealServer,
  type VirtualAddress,
  type VirtualServer,
  WHOLE_ADDRESS,
} from './state.ts'

interface PrintedServer {
  readonly server: VirtualServer
  readonly destinations: readonly RealServer[]
}

/** Prints the lines of `ipvsadm -S -n`, sorted by address. It omits the kind of a tunnel: -R reads it as IPIP. */
export function printSave(servers: readonly PrintedServer[]): readonly string[] {
  const sorted = [...servers].sort((a, b) => compareAddresses(a.server, b.server))
  return sorted.flatMap(({ server, destinations }) => [
    `-A ${printServer(server)}`,
    ...[...destinations].sort(compareDestinations).map(each => `-a ${printDestination(server, each)}`),
  ])
}

const PROTOCOL_OPTIONS: Readonly<Record<IpvsProtocol, string>> = {
  TCP: '-t',
  UDP: '-u',
  SCTP: '--sctp-service',
}

function printAddress({ protocol, ip, port }: VirtualAddress): string {
  return `${PROTOCOL_OPTIONS[protocol]} ${formatIpPort(ip, port)}`
}

function printServer(server: VirtualServer): string {
  const { scheduler, flags, timeoutS } = server
  const parts = [`${printAddress(server)} -s ${scheduler}`]
  if (isPersistent(server)) parts.push(`-p ${timeoutS}`, ...printNetmask(server))
  if ((flags & ipvs.IP_VS_SVC_F_ONEPACKET) !== 0) parts.push('-o')
  const names = schedulerFlags(scheduler, flags)
  if (names.length > 0) parts.push(`-b ${names.join(',')}`)
  return parts.join(' ')
}

function printNetmask({ ip, netmask }: VirtualServer): readonly string[] {
  const family = familyOf(ip)
  if (netmask === WHOLE_ADDRESS[family]) return []
  return [`-M ${family === 'IPv4' ? formatIp(u32be(netmask)) : netmask}`]
}

/** Two schedulers name these flags themselves (net/netfilter/ipvs/ip_vs_sh.c, ip_vs_mh.c). */
function schedulerFlags(scheduler: string, flags: number): readonly string[] {
  const hasNames = scheduler === 'sh' || scheduler === 'mh'
  const names = [
    [ipvs.IP_VS_SVC_F_SCHED1, hasNames ? `${scheduler}-fallback` : 'flag-1'],
    [ipvs.IP_VS_SVC_F_SCHED2, hasNames ? `${scheduler}-port` : 'flag-2'],
    [ipvs.IP_VS_SVC_F_SCHED3, 'flag-3'],
  ] as const
  return names.filter(([bit]) => (flags & bit) !== 0).map(([, name]) => name)
}

/** A method without an ipvsadm option is printed as masquerading, as ipvsadm does. */
const FORWARDING_OPTIONS: ReadonlyMap<number, string> = new Map([
  [ipvs.IP_VS_CONN_F_MASQ, '-m'],
  [ipvs.IP_VS_CONN_F_LOCALNODE, '-g'],
  [ipvs.IP_VS_CONN_F_TUNNEL, '-i'],
  [ipvs.IP_VS_CONN_F_DROUTE, '-g'],
  [ipvs.IP_VS_CONN_F_BYPASS, '-b'],
])

function printDestination(server: VirtualAddress, { ip, port, forwarding, weight }: RealServer): string {
  const method = FORWARDING_OPTIONS.get(forwarding) ?? '-m'
  return `${printAddress(server)} -r ${formatIpPort(ip, port)} ${method} -w ${weight}`
}

function compareAddresses(a: VirtualAddress, b: VirtualAddress): number {
  return compareIps(a.ip, b.ip) || compareTexts(a.protocol, b.protocol) || a.port - b.port
}

function compareDestinations(a: RealServer, b: RealServer): number {
  return compareIps(a.ip, b.ip) || a.port - b.port
}
