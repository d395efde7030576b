import { serviceOf, sliceOf } from '../support/objects.ts'

/** ClusterIP of these Services. */
export const VIP = '172.30.200.1'

export const ports = (count: number) =>
  Array.from({ length: count }, (_, i) => ({ name: `p${i}`, port: 1_000 + i, protocol: 'TCP' }))

export const addressesOf = (count: number) =>
  Array.from({ length: count }, (_, i) => `10.9.${i >> 8}.${i & 255}`)

/** A Service of so many ports with a slice that has so many endpoints for each. */
export function wide(name: string, portCount: number, endpoints: number): readonly object[] {
  return [
    serviceOf(name, VIP, { ports: ports(portCount) }),
    sliceOf(name, addressesOf(endpoints), { ports: ports(portCount) }),
  ]
}

/** A Service of so many ports at so many addresses. */
export function far(name: string, portCount: number, addresses: number): readonly object[] {
  const externalIPs = Array.from({ length: addresses }, (_, i) => `198.51.${i >> 8}.${i & 255}`)
  return [serviceOf(name, VIP, { ports: ports(portCount), externalIPs })]
}
