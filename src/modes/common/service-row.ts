import { compareIps, formatIpPort } from '../../base/ip.ts'
import type { Backend } from '../../model/frontend.ts'

/** One place at which traffic is caught, and what becomes of it: what people and `-o json` are shown. */
export interface ServiceRow {
  /** `namespace/name:port`. */
  readonly service: string
  /** `ClusterIP`, `External` (externalIPs and load-balancer addresses: the kernel does not tell them apart), `NodePort`. */
  readonly type: string
  readonly protocol: string
  /** `10.96.0.10:80`; `*:30080` for every address of the node. */
  readonly frontend: string
  /** `balance`, `relay` (in userspace mode), `reject` or `drop`. */
  readonly action: string
  /** Where everybody's connections go, or nobody's but those below say otherwise. */
  readonly endpoints: readonly string[]
  /** With a Local policy: where connections from outside go, source address kept. */
  readonly localEndpoints?: readonly string[]
  /** Clients that may connect; absent when all may. */
  readonly allowedFrom?: readonly string[]
  readonly affinitySeconds?: number
  /** Where the daemon takes connections that it relays. */
  readonly listener?: string
  /** With a Local policy: where it takes those of pods and of the node. */
  readonly insideListener?: string
  /** `NOT REACHED …` when packets do not come here, `INCOMPLETE …` when something else is missing; absent when all is well. */
  readonly problem?: string
  /** Of the rules that it was read from; absent for what was computed. */
  readonly mode?: string
}

/** What a problem begins with. */
export const NOT_REACHED = 'NOT REACHED'
export const INCOMPLETE = 'INCOMPLETE'

/** By address, as numbers, in every command and mode. */
export function endpointTexts(endpoints: readonly Pick<Backend, 'ip' | 'port'>[]): readonly string[] {
  return [...endpoints]
    .sort((a, b) => compareIps(a.ip, b.ip) || a.port - b.port)
    .map(({ ip, port }) => formatIpPort(ip, port))
}

/** Whether it is of a Service, `namespace/name`; of any when that is empty. */
export function isOfService(services: readonly string[], service: string): boolean {
  return service === '' || services.some(name => name === service || name.startsWith(`${service}:`))
}
