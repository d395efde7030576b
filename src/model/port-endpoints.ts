import type { Steps } from '../base/steps.ts'
import { candidatesInSteps, type Wanted } from './candidates.ts'
import type { Endpoint, EndpointSlice } from './endpoint.ts'
import type { SliceList } from './slice-groups.ts'

/** The endpoints of a port in one family, sorted by address and port, each once. */
export interface PortEndpoints {
  readonly endpoints: readonly Endpoint[]
  /** The port of all of them, or of each. */
  readonly ports: number | readonly number[]
}

/** The same choice as candidatesOf(), without the slices. */
export function* endpointsOf(slices: SliceList, wanted: Wanted): Steps<PortEndpoints> {
  const candidates = yield* candidatesInSteps(slices, wanted)
  return { endpoints: candidates.map(({ endpoint }) => endpoint), ports: candidates.map(({ port }) => port) }
}

const NONE: PortEndpoints = { endpoints: [], ports: 0 }

/**
 * The same without a copy where one slice says it all, as it mostly does; undefined when several slices have endpoints of
 * the port, or one has an address twice.
 */
export function endpointsOfOneSlice(slices: SliceList, wanted: Wanted): PortEndpoints | undefined {
  let only: PortEndpoints = NONE
  for (let index = 0; index < slices.length; index++) {
    const slice = slices[index]
    if (slice === undefined || slice.family !== wanted.family) continue
    for (let at = 0; at < slice.ports.length; at++) {
      const its = slice.ports[at]
      if (its === undefined || its.name !== wanted.name || its.protocol !== wanted.protocol) continue
      if (only !== NONE || !isOnce(slice)) return undefined
      only = { endpoints: slice.endpoints, ports: its.port }
    }
  }
  return only
}

/** Whether each address is there once; they are sorted. */
function isOnce({ endpoints }: EndpointSlice): boolean {
  let last = ''
  for (let index = 0; index < endpoints.length; index++) {
    const ip = endpoints[index]?.ip ?? ''
    if (ip === last) return false
    last = ip
  }
  return true
}
