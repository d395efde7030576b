import { formatIpPort, parseIp } from '../base/ip.ts'
import { namesIn, noted, type ServiceNames } from '../modes/common/service-names.ts'
import { askDaemon } from './admin-client.ts'

/**
 * Reads the names of IPVS objects from the daemon: kernel objects of IPVS carry none. Undefined without a socket.
 * Throws if no daemon answers there, or on a malformed answer.
 */
export async function askServiceNames(adminSocket: string): Promise<ServiceNames | undefined> {
  if (adminSocket === '') return undefined
  const answer = await askDaemon(adminSocket, '/state')
  if (answer.kind === 'absent') throw new Error(`no daemon answers at ${adminSocket}`)
  return serviceNames(answer.value)
}

/** Reads the answer of /state (ServiceJson) and skips entries of another shape. */
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

/** Formats a frontend; `:30080` for a node port. */
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
