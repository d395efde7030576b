import type { Family } from '../base/ip.ts'
import type { Octets } from '../base/octets.ts'
import type { FamilyMeaning, Place } from './meaning.ts'
import { addressOf } from './packet-class.ts'

/** Gives the families in which clients elsewhere reach endpoints only if this node forwards packets, which no rule shows. */
export function forwardedFamilies(meanings: readonly FamilyMeaning[]): readonly Family[] {
  const forwarded = meanings.filter(({ places, nodePorts, nodeIps, localIps }) => {
    const isElsewhere = (endpoint: Octets) => ![nodeIps, localIps].some(ips => ips.has(addressOf(endpoint)))
    const leadsAway = ({ pod, other }: Place) =>
      [pod, other].some(fate => fate.kind === 'endpoints' && fate.endpoints.some(isElsewhere))
    return [places, nodePorts].some(all => all.some(leadsAway))
  })
  return forwarded.map(({ family }) => family)
}
