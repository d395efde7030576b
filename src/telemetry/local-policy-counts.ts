import type { Family } from '../base/ip.ts'
import { PersistentMap } from '../base/persistent-map.ts'
import type { FrontendTable, PortFrontends, ServiceFrontends } from '../model/frontend.ts'

/** Numbers of service ports with traffic policy Local and no endpoint on this node: these drop new connections. */
export interface LocalPolicyCounts {
  readonly internal: Readonly<Record<Family, number>>
  readonly external: Readonly<Record<Family, number>>
}

/** Updates the numbers from table to table. The cost follows the changes. */
export class LocalPolicyCounter {
  #services: PersistentMap<ServiceFrontends> = PersistentMap.empty()
  readonly #internal: Record<Family, number> = { IPv4: 0, IPv6: 0 }
  readonly #external: Record<Family, number> = { IPv4: 0, IPv6: 0 }

  update({ services }: FrontendTable): LocalPolicyCounts {
    for (const [, before, now] of PersistentMap.differences(this.#services, services)) {
      this.#add(before, -1)
      this.#add(now, 1)
    }
    this.#services = services
    return { internal: { ...this.#internal }, external: { ...this.#external } }
  }

  #add(service: ServiceFrontends | undefined, sign: 1 | -1): void {
    if (service === undefined) return
    for (const port of service.ports) {
      if (isDroppedInside(port)) this.#internal[port.family] += sign
      if (isDroppedOutside(port)) this.#external[port.family] += sign
    }
  }
}

function isDroppedInside({ frontends }: PortFrontends): boolean {
  return frontends.some(({ route }) => route.kind === 'drop')
}

function isDroppedOutside({ frontends, local }: PortFrontends): boolean {
  return local.length === 0 && frontends.some(({ route }) => route.kind === 'external-local')
}
