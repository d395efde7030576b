import { formatIp, formatIpPort, type Ip, parseIp } from '../base/ip.ts'
import { readU16be } from '../base/octets.ts'
import type { Element, Table } from '../kernel/nft/state.ts'
import { LAYOUTS } from '../modes/common/family.ts'
import { protocolOfKey } from '../modes/common/octet-keys.ts'
import { askDaemon } from './admin-client.ts'

/** Whom places serve: names as `namespace/name:port`, or `namespace/name` where a whole Service is meant. */
export interface ServiceNames {
  /** What has no name here is nobody's. */
  readonly isComplete: boolean
  at(protocol: string, ip: Ip, port: number): string | undefined
  atNodePort(protocol: string, port: number): string | undefined
  atAddress(ip: Ip): string | undefined
  /** The Service whose ClusterIP it is: ports of it that no frontend has are its, too. */
  atClusterIp(ip: Ip): string | undefined
}

/**
 * Kernel objects of IPVS carry no names: the daemon knows them. Undefined without a socket. Throws when no daemon answers
 * there, or when it answers badly.
 */
export async function askServiceNames(adminSocket: string): Promise<ServiceNames | undefined> {
  if (adminSocket === '') return undefined
  const answer = await askDaemon(adminSocket, '/state')
  if (answer.kind === 'absent') throw new Error(`no daemon answers at ${adminSocket}`)
  return serviceNames(answer.value)
}

/** Reads the answer of /state (ServiceJson) and skips what has another shape. */
export function serviceNames(state: unknown): ServiceNames {
  const found = noted()
  const { places, addresses, clusterIps } = found
  for (const service of listAt(state, 'services')) {
    const name = textAt(service, 'service')
    for (const port of listAt(service, 'ports')) {
      const [display, protocol] = [textAt(port, 'name'), textAt(port, 'protocol')]
      const backends = [...listAt(port, 'cluster'), ...listAt(port, 'local')]
      for (const each of [...backends, ...listAt(port, 'frontends')])
        places.set(`${protocol} ${placeOf(each)}`, display)
      for (const frontend of listAt(port, 'frontends')) {
        const address = textAt(frontend, 'ip')
        addresses.set(address, name)
        if (fieldOf(frontend, 'kind') === 'ClusterIP') clusterIps.set(address, name)
      }
    }
  }
  return namesIn(found, true)
}

/** Of the comments in our own tables: places that a rule is about, and the ClusterIPs that they lead to. */
export function namesOfElements(tables: readonly Table[]): ServiceNames {
  const found = noted()
  for (const { family, elements } of tables)
    for (const group of elements.values())
      for (const element of group) noteElement(found, element, LAYOUTS[family].addressLength)
  return namesIn(found, false)
}

function noteElement(found: Noted, { key, data, comment }: Element, addressLength: number): void {
  const protocol = protocolOfKey(key)
  if (comment === '' || protocol === undefined) return
  const name = comment.replace(/:.*$/, '')
  const note = (octets: string) => {
    const ip = octets.slice(0, addressLength)
    const port = readU16be(octets, octets === key ? addressLength + 4 : addressLength)
    found.places.set(`${protocol} ${formatIpPort(ip, port)}`, comment)
    found.addresses.set(formatIp(ip), name)
    return formatIp(ip)
  }
  note(key)
  if (typeof data === 'string') found.clusterIps.set(note(data), name)
}

/** Names by `TCP 10.96.0.1:80` (`TCP :30080` for NodePorts), and by address. */
interface Noted {
  readonly places: Map<string, string>
  readonly addresses: Map<string, string>
  readonly clusterIps: Map<string, string>
}

function noted(): Noted {
  return { places: new Map(), addresses: new Map(), clusterIps: new Map() }
}

function namesIn({ places, addresses, clusterIps }: Noted, isComplete: boolean): ServiceNames {
  return {
    isComplete,
    at: (protocol, ip, port) => places.get(`${protocol} ${formatIpPort(ip, port)}`),
    atNodePort: (protocol, port) => places.get(`${protocol} :${port}`),
    atAddress: ip => addresses.get(formatIp(ip)),
    atClusterIp: ip => clusterIps.get(formatIp(ip)),
  }
}

/** `:30080` for a NodePort. */
function placeOf(place: unknown): string {
  const [ip, port] = [parseIp(textAt(place, 'ip')), Number(fieldOf(place, 'port'))]
  return ip === undefined ? `:${port}` : formatIpPort(ip, port)
}

function listAt(value: unknown, field: string): readonly unknown[] {
  const list: unknown = fieldOf(value, field)
  return Array.isArray(list) ? list : []
}

function textAt(value: unknown, field: string): string {
  const text = fieldOf(value, field)
  return typeof text === 'string' ? text : ''
}

function fieldOf(value: unknown, field: string): unknown {
  return typeof value === 'object' && value !== null ? Reflect.get(value, field) : undefined
}
