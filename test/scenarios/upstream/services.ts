import { AFFINITY } from './affinity.ts'
import { ENDPOINTS } from './endpoints.ts'
import { KINDS } from './kinds.ts'
import type { UpstreamTest } from './parts.ts'
import { POLICIES } from './policies.ts'

const REFUSED_BY_API = 'asks the API server alone, which refuses the Service'
const ABOUT_API = 'asks the API server alone'

const UNPLAYED: readonly UpstreamTest[] = [
  { title: 'should check NodePort out-of-range', steps: [], unplayed: REFUSED_BY_API },
  { title: 'should complete a service status lifecycle [Conformance]', steps: [], unplayed: ABOUT_API },
  { title: 'should delete a collection of services [Conformance]', steps: [], unplayed: ABOUT_API },
  {
    title: 'should find a service from listing all namespaces [Conformance]',
    steps: [],
    unplayed: ABOUT_API,
  },
  { title: 'should prevent NodePort collisions', steps: [], unplayed: REFUSED_BY_API },
]

/** The 49 tests of the set `services` of test/cluster. */
export const UPSTREAM_SERVICES: readonly UpstreamTest[] = [
  ...KINDS,
  ...ENDPOINTS,
  ...POLICIES,
  ...AFFINITY,
  ...UNPLAYED,
]
