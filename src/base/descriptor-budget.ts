/** Descriptors that each part of a process may have open. */
export interface DescriptorBudget {
  /** Connections to the health port. */
  readonly healthz: number
  /** Connections to the metrics port. */
  readonly metrics: number
  /** Connections to health check node ports. */
  readonly healthChecks: number
  /** Sockets of health check node ports that listen. */
  readonly healthCheckListeners: number
  /** Connections to the API for back ends. */
  readonly api: number
  /** Everything of the userspace relay. */
  readonly relay: number
}

export type DescriptorUse = keyof DescriptorBudget

/** Descriptors for connections to the API server, netlink, listening servers, files and pipes. */
const RESERVE = 128

interface Claim {
  readonly use: DescriptorUse
  readonly most: number
  readonly weight: number
}

/** What each part needs at most, and its part where there is not enough for all. */
const CLAIMS: Readonly<Record<DescriptorUse, { readonly most: number; readonly weight: number }>> = {
  healthz: { most: 512, weight: 1 },
  metrics: { most: 512, weight: 1 },
  healthChecks: { most: 1_024, weight: 2 },
  // Kubernetes supports no cluster with more Services of that kind.
  healthCheckListeners: { most: 8_192, weight: 6 },
  api: { most: 2_048, weight: 2 },
  relay: { most: 20_480, weight: 6 },
}

/** The same of a part that may be used later. */
const LATER = { most: 256, weight: 1 } as const

/**
 * Divides the descriptors of a process (undefined where the limit is unknown) between the parts that it uses, beyond a reserve of
 * 128, or of half where that is less. What a part does not need is for the others. Parts of `later` get 256 at most, and those
 * that are not used now get what all others leave as well.
 */
export function descriptorBudget(
  limit: number | undefined,
  uses: readonly DescriptorUse[],
  later: readonly DescriptorUse[] = [],
): DescriptorBudget {
  const room = (limit ?? Infinity) - Math.min(RESERVE, (limit ?? Infinity) / 2)
  const claims = uses.map(use => ({ use, ...CLAIMS[use] }))
  const used = divide(room, [...claims, ...later.map(use => ({ use, ...LATER }))])
  const rest = room - [...used.values()].reduce((sum, part) => sum + part, 0)
  const part = (use: DescriptorUse) => {
    const its = used.get(use) ?? 0
    return uses.includes(use) ? its : Math.floor(Math.min(CLAIMS[use].most, its + rest))
  }
  return {
    healthz: part('healthz'),
    metrics: part('metrics'),
    healthChecks: part('healthChecks'),
    healthCheckListeners: part('healthCheckListeners'),
    api: part('api'),
    relay: part('relay'),
  }
}

/** Serves the parts that need least for their weight first, and divides what they leave. */
function divide(room: number, claims: readonly Claim[]): ReadonlyMap<DescriptorUse, number> {
  let left = room
  let weights = claims.reduce((sum, { weight }) => sum + weight, 0)
  const parts = new Map<DescriptorUse, number>()
  for (const { use, most, weight } of claims.toSorted((a, b) => a.most / a.weight - b.most / b.weight)) {
    const part = Math.min(most, Math.floor((left * weight) / weights))
    parts.set(use, part)
    left -= part
    weights -= weight
  }
  return parts
}
