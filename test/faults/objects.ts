import { renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

export interface ServiceOptions {
  /** `10.0.1.1:8080`; all have one port. */
  readonly endpoints?: readonly string[]
  readonly port?: number
  /** Session affinity with this timeout, in seconds. */
  readonly affinityS?: number
}

/** Address of the Service of this number, in 172.30.0.0/16. */
export function clusterIp(number: number): string {
  return `172.30.${number >> 8}.${number & 255}`
}

export function nameOf(number: number): string {
  return `ns/s${number}`
}

export function service(number: number, options: ServiceOptions = {}): readonly object[] {
  const { endpoints = endpointsOf(number, 2), port = 80, affinityS } = options
  const [namespace, name] = nameOf(number).split('/')
  const addresses = endpoints.map(endpoint => endpoint.split(':')[0])
  const targetPort = Number(endpoints[0]?.split(':')[1] ?? 8080)
  return [
    {
      kind: 'Service',
      apiVersion: 'v1',
      metadata: { name, namespace },
      spec: {
        clusterIP: clusterIp(number),
        clusterIPs: [clusterIp(number)],
        ipFamilies: ['IPv4'],
        ports: [{ name: 'http', port, protocol: 'TCP' }],
        ...(affinityS === undefined ? {} : stickiness(affinityS)),
      },
    },
    {
      kind: 'EndpointSlice',
      apiVersion: 'discovery.k8s.io/v1',
      metadata: { name: `${name}-1`, namespace, labels: { 'kubernetes.io/service-name': name } },
      addressType: 'IPv4',
      ports: [{ name: 'http', port: targetPort, protocol: 'TCP' }],
      endpoints: addresses.map(address => ({ addresses: [address], conditions: { ready: true } })),
    },
  ]
}

function stickiness(timeoutSeconds: number): object {
  return { sessionAffinity: 'ClientIP', sessionAffinityConfig: { clientIP: { timeoutSeconds } } }
}

/** So many endpoints that no Service of another number has. */
export function endpointsOf(number: number, count: number): readonly string[] {
  return Array.from({ length: count }, (_, i) => `10.${1 + (number >> 8)}.${number & 255}.${i + 1}:8080`)
}

/** Services numbered from 0. */
export function services(count: number, options: ServiceOptions = {}): readonly object[] {
  return Array.from({ length: count }, (_, number) => service(number, options)).flat()
}

export function writeObjects(folder: string, objects: readonly object[]): void {
  const file = join(folder, 'objects.json')
  const unfinished = join(folder, '.objects.unfinished')
  writeFileSync(unfinished, JSON.stringify({ kind: 'List', apiVersion: 'v1', items: objects }))
  renameSync(unfinished, file)
}
