import type { ServiceFrontends } from '../model/frontend.ts'
import type { Service, ServicePortSpec } from '../model/service.ts'
import { targetKey } from '../model/service-details.ts'
import type { SliceList } from '../model/slice-groups.ts'

/** A Service as this node sees it: its object, what was resolved from it, and its slices. */
export interface ServiceView {
  readonly service: Service
  readonly frontends: ServiceFrontends
  readonly slices: SliceList
}

/** A number, or the name of a port that each pod has a number of its own for. */
export function targetOf(service: Service, { name, protocol, port }: ServicePortSpec): number | string {
  return service.details?.targetPorts[targetKey(name, protocol)] ?? port
}
