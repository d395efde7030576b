import { expect, it } from 'vitest'
import { Balancer, endpointText } from '../../../../../src/modes/common/forwarder/forwarder.ts'
import { backends } from '../../../../support/frontends.ts'

const anyone = () => true
const cluster = backends(3)
const local = cluster.slice(2)

function pick(balancer: Balancer, address: string, nowMs = 0, list: 'cluster' | 'local' = 'cluster') {
  const chosen = balancer.pick(list, { address, nowMs }, anyone)
  return chosen === undefined ? undefined : endpointText(chosen)
}

it('remembers a client for its timeout, from its last connection on', () => {
  const balancer = new Balancer({ affinityTimeoutS: 10, cluster, local }, 100)
  const first = pick(balancer, 'c', 0)
  expect(pick(balancer, 'c', 9_000)).toBe(first)
  expect(pick(balancer, 'c', 18_000)).toBe(first)
  expect(pick(balancer, 'c', 28_000)).not.toBe(first)
})

it('keeps a client at its endpoint by whichever list it comes, if the list has it', () => {
  const balancer = new Balancer({ affinityTimeoutS: 10, cluster, local }, 100)
  const here = pick(balancer, 'c', 0, 'local')
  expect(pick(balancer, 'c', 1, 'cluster')).toBe(here)
  const elsewhere = pick(balancer, 'd', 1, 'cluster')
  expect(elsewhere).not.toBe(here)
  expect(pick(balancer, 'd', 2, 'local')).toBe(here)
})

it('forgets the longest silent clients first, and has never more than it may', () => {
  const balancer = new Balancer({ affinityTimeoutS: 1_000, cluster, local: [] }, 50)
  for (let count = 0; count < 10_000; count++) pick(balancer, `client ${count}`, count)
  expect(balancer.clients).toBe(50)
  const last = pick(balancer, 'client 9999', 10_000)
  expect(pick(balancer, 'client 9999', 10_001)).toBe(last)
  // Those who are due go as others come.
  pick(balancer, 'late', 10_000_000)
  expect(balancer.clients).toBeLessThanOrEqual(49)
})

it('forgets everyone when affinity is switched off, and endpoints that are gone', () => {
  const balancer = new Balancer({ affinityTimeoutS: 10, cluster, local: [] }, 50)
  const first = pick(balancer, 'c')
  balancer.update({
    affinityTimeoutS: 10,
    cluster: cluster.filter(one => endpointText(one) !== first),
    local: [],
  })
  expect(pick(balancer, 'c')).not.toBe(first)
  balancer.update({ affinityTimeoutS: 0, cluster, local: [] })
  expect(balancer.clients).toBe(0)
  balancer.update({ affinityTimeoutS: 0, cluster: [], local: [] })
  expect(pick(balancer, 'c')).toBeUndefined()
})
