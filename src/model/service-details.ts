import type { Ip } from '../base/ip.ts'
import { readAddress } from './address.ts'
import { isJson, isPort, type Json } from './fields.ts'
import type { ServiceDetails } from './service.ts'

/** Reads the details of a Service that parseService() has read. Invalid details cause no refusal. */
export function readServiceDetails(root: Json): ServiceDetails {
  const metadata = isJson(root.metadata) ? root.metadata : NOTHING
  const spec = isJson(root.spec) ? root.spec : NOTHING
  return {
    labels: textsOf(metadata.labels),
    annotations: textsOf(metadata.annotations),
    targetPorts: targetPortsOf(spec.ports),
  }
}

/** Reads the hostnames of a slice's endpoints, by address. Undefined without any. */
export function readHostnames({ endpoints }: Json): Readonly<Record<Ip, string>> | undefined {
  if (!Array.isArray(endpoints)) return undefined
  const names: Record<Ip, string> = {}
  let isEmpty = true
  for (const endpoint of endpoints) {
    if (!isJson(endpoint) || !Array.isArray(endpoint.addresses)) continue
    const { addresses, hostname } = endpoint
    const ip = readAddress(addresses[0])
    if (typeof hostname !== 'string' || hostname === '' || ip === undefined) continue
    names[ip] ??= hostname
    isEmpty = false
  }
  return isEmpty ? undefined : names
}

const NOTHING: Json = {}

function textsOf(value: unknown): Readonly<Record<string, string>> {
  if (!isJson(value)) return {}
  const texts: Record<string, string> = {}
  for (const [key, text] of Object.entries(value)) if (typeof text === 'string') texts[key] = text
  return texts
}

function targetPortsOf(value: unknown): Readonly<Record<string, number | string>> {
  const targets: Record<string, number | string> = {}
  if (!Array.isArray(value)) return targets
  for (const port of value) {
    if (!isJson(port)) continue
    const { name, protocol, targetPort } = port
    const key = targetKey(typeof name === 'string' ? name : '', typeof protocol === 'string' ? protocol : '')
    const isName = typeof targetPort === 'string' && targetPort !== ''
    if (key in targets || !(isName || (isPort(targetPort) && targetPort !== port.port))) continue
    targets[key] = targetPort
  }
  return targets
}

/** A key of ServiceDetails.targetPorts. */
export function targetKey(name: string, protocol: string): string {
  return `${name}/${protocol || 'TCP'}`
}
