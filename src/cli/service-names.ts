import { formatIp, formatIpPort, type Ip } from '../base/ip.ts'
import { askDaemon } from './admin-client.ts'

/** Whom places serve: names as `namespace/name:port`, or `namespace/name` where a whole Service is meant. */
export interface ServiceNames {
  at(protocol: string, ip: Ip, port: number): string | undefined
  atNodePort(protocol: string, port: number): string | undefined
  atAddress(ip: Ip): string | undefined
}

/** Nobody says. */
export const NO_NAMES: ServiceNames = {
  at: () => undefined,
  atNodePort: () => undefined,
  atAddress: () => undefined,
}

/**
 * Kernel objects of IPVS carry no names: the daemon knows them. Undefined where none answers at the socket. Throws when
 * it answers badly.
 */
export async function askServiceNames(adminSocket: string): Promise<ServiceNames | undefined> {
  if (adminSocket === '') return undefined
  const answer = await askDaemon(adminSocket, '/state')
  return answer.kind === 'absent' ? undefined : serviceNames(answer.value)
}

/** Of what /state says: its shape is PrintedService's; what has another one is passed over. */
export function serviceNames(state: unknown): ServiceNames {
  const places = new Map<string, string>()
  const addresses = new Map<string, string>()
  for (const service of listAt(state, 'services')) {
    const name = textAt(service, 'service')
    for (const port of listAt(service, 'ports')) {
      const key = textAt(port, 'key')
      const { display, protocol } = partsOf(key)
      for (const words of [...listAt(port, 'cluster'), ...listAt(port, 'local')])
        places.set(`${protocol} ${String(words).split(' ')[0]}`, display)
      for (const words of listAt(port, 'frontends')) {
        const [, place = ''] = String(words).split(' ')
        places.set(`${protocol} ${place}`, display)
        addresses.set(place.replace(/:\d+$/, '').replace(/^\[|\]$/g, ''), name)
      }
    }
  }
  return {
    at: (protocol, ip, port) => places.get(`${protocol} ${formatIpPort(ip, port)}`),
    atNodePort: (protocol, port) => places.get(`${protocol} :${port}`),
    atAddress: ip => addresses.get(formatIp(ip)),
  }
}

/** `ns/web:http/TCP/IPv4`. */
function partsOf(key: string): { readonly display: string; readonly protocol: string } {
  const parts = key.split('/')
  const [protocol = ''] = parts.slice(-2)
  return { display: parts.slice(0, -2).join('/').replace(/:$/, ''), protocol }
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
