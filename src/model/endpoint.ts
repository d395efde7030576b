import type { Family, Ip } from '../base/ip.ts'
import type { Refusal } from './refusal.ts'
import type { Protocol, ServiceKey } from './service.ts'

/** An EndpointSlice as this project reads it. */
export interface EndpointSlice {
  /** `namespace/name` of the slice. */
  readonly key: string
  readonly service: ServiceKey
  readonly family: Family
  /** Wall clock: when the change that led to this version happened; 0 when the slice does not say. */
  readonly triggerTimeMs: number
  readonly ports: readonly EndpointPort[]
  /** Sorted by address; those of one address in the order of the object. */
  readonly endpoints: readonly Endpoint[]
  /** Hostnames of endpoints, by address. Absent unless requested (ParseOptions), and without any. */
  readonly hostnames?: Readonly<Record<Ip, string>>
  /**
   * Names of the endpoints' pods in the order of `endpoints`, joined by commas: one text, because there are many of them.
   * Absent where no endpoint has one.
   */
  readonly targetNames?: string
  /** Present where no port and no endpoint is held, for want of memory: the parts of the whole (object-parts.ts). */
  readonly leftOut?: number
  readonly refusals: readonly Refusal[]
}

export interface EndpointPort {
  readonly name: string
  readonly protocol: Protocol
  readonly port: number
}

export interface Endpoint {
  readonly ip: Ip
  /** UID of the pod: distinguishes a pod that moved between slices from one that inherited an address; may be empty. */
  readonly targetUid: string
  readonly nodeName: string
  /** One of eight objects, that all endpoints share. */
  readonly conditions: EndpointConditions
  /** NO_HINTS when there are none. */
  readonly hints: EndpointHints
}

export interface EndpointConditions {
  readonly ready: boolean
  readonly serving: boolean
  readonly terminating: boolean
}

/** The zones and nodes whose clients an endpoint is meant for: KEP-2433, KEP-3015. */
export interface EndpointHints {
  readonly forZones: readonly string[]
  readonly forNodes: readonly string[]
}

export const NO_HINTS: EndpointHints = { forZones: [], forNodes: [] }

/** The slices of one Service, sorted by key; never empty. */
export type SliceList = readonly EndpointSlice[]
