import { namesIn, noted, type ServiceNames } from '../modes/common/service-names.ts'
import { askDaemon } from './admin-client.ts'

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

/** Of what /state says: its shape is PrintedService's; what has another one is passed over. */
export function serviceNames(state: unknown): ServiceNames {
  const found = noted()
  const { places, addresses, clusterIps } = found
  for (const service of listAt(state, 'services')) {
    const name = textAt(service, 'service')
    for (const port of listAt(service, 'ports')) {
      const key = textAt(port, 'key')
      const { display, protocol } = partsOf(key)
      for (const words of [...listAt(port, 'cluster'), ...listAt(port, 'local')])
        places.set(`${protocol} ${String(words).split(' ')[0]}`, display)
      for (const words of listAt(port, 'frontends')) {
        const [kind, place = ''] = String(words).split(' ')
        const address = place.replace(/:\d+$/, '').replace(/^\[|\]$/g, '')
        places.set(`${protocol} ${place}`, display)
        addresses.set(address, name)
        if (kind === 'ClusterIP') clusterIps.set(address, name)
      }
    }
  }
  return namesIn(found, true)
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
