/** The type that sig-network's documents name for a service proxy. */
export const DEFAULT_CONDITION = 'ServiceProxyReady'

/** Conditions that kubelet, or the cloud's controller, sets itself. */
const TAKEN: readonly string[] = [
  'Ready',
  'MemoryPressure',
  'DiskPressure',
  'PIDPressure',
  'NetworkUnavailable',
]
const TYPE_LENGTH_MAX = 316
const TYPE = /^([a-z0-9]([-a-z0-9.]*[a-z0-9])?\/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/

/** Gives the reason why a text cannot be the type of the condition; undefined if it can. */
export function whyNotConditionType(type: string): string | undefined {
  if (TAKEN.includes(type)) return 'is a condition that kubelet or a cloud controller sets; use another type'
  return TYPE.test(type) && type.length <= TYPE_LENGTH_MAX
    ? undefined
    : 'is not the type of a condition, such as ServiceProxyReady or example.com/ServiceProxyReady'
}
