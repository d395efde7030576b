import { formatIp, formatIpPort, type Ip } from '../base/ip.ts'
import type { EndpointSlice } from './service.ts'

/** A Pod as an EndpointSlice names it, at one of its addresses. */
interface PodPlace {
  /** `namespace/name`. */
  readonly pod: string
  readonly ip: Ip
  readonly ports: readonly number[]
}

/** Gives the Pod, `namespace/name`, of `ADDRESS:PORT` or `ADDRESS`; undefined where none or several Pods have it. */
export type PodNames = (address: string) => string | undefined

/** Lists the Pods that EndpointSlices name. A Pod is in the namespace of its slice. */
export function* podPlaces(slices: Iterable<EndpointSlice>): Generator<PodPlace> {
  for (const { key, targetNames, endpoints, ports } of slices) {
    if (targetNames === undefined) continue
    const namespace = key.slice(0, key.indexOf('/') + 1)
    const names = targetNames.split(',')
    const numbers = ports.map(({ port }) => port)
    for (const [at, { ip }] of endpoints.entries()) {
      const name = names[at] ?? ''
      if (name !== '') yield { pod: namespace + name, ip, ports: numbers }
    }
  }
}

/** Indexes Pods by their addresses. Pods of the host's network share one, and differ by their ports. */
export function podNames(places: Iterable<PodPlace>): PodNames {
  const pods = new Map<string, string>()
  for (const { pod, ip, ports } of places)
    for (const address of [formatIp(ip), ...ports.map(port => formatIpPort(ip, port))])
      pods.set(address, (pods.get(address) ?? pod) === pod ? pod : AMBIGUOUS)
  return address => pods.get(address) || undefined
}

const AMBIGUOUS = ''

/** `10.1.0.1:80 (pod shop/cart-a)`, or the address alone. */
export function podText(address: string, pod: string | undefined): string {
  return pod === undefined ? address : `${address} (pod ${pod})`
}
