import { beforeEach, expect, it } from 'vitest'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { ask, Cluster } from './cluster.ts'
import { memoryOf } from './cluster-process.ts'
import { frontendNames, listRuleset } from './kernel.ts'
import { endpointsOf, nameOf, service } from './objects.ts'

const MIB = 1 << 20
/** So much is not done at once on a machine that is busy with other things. */
const PATIENCE_MS = 120_000

const cluster = Cluster.ofEachTest()

beforeEach(() => cluster.open())

it('F42: 10,000 Services with 5 endpoints each, one of them bad, are there within the time of a cold start', async () => {
  for (let number = 0; number < 10_000; number++)
    cluster.put(...service(number, { endpoints: endpointsOf(number, 5) }))
  cluster.put(
    serviceOf('bad', '172.30.300.1', { externalIPs: ['127.0.0.1', 'x'] }),
    sliceOf('bad', ['0.0.0.0']),
  )
  const daemon = cluster.daemon()
  await daemon.synced(PATIENCE_MS)
  expect(frontendNames().size).toBe(10_000)
  expect(memoryOf(daemon.pid)).toBeLessThan(350 * MIB)
  cluster.put(...service(10_000))
  await eventually(() => frontendNames().has(nameOf(10_000)), PATIENCE_MS)
  cluster.server.cut()
  cluster.remove(...service(3))
  await eventually(() => !frontendNames().has(nameOf(3)), PATIENCE_MS)
  await cluster.converged()
  expect(await ask('/healthz')).toMatchObject({ code: 200 })
})

it('F42: a Service with 100,000 endpoints in 1,000 slices is there, and so are those beside it', async () => {
  const addresses = (part: number) =>
    Array.from({ length: 100 }, (_, i) => `10.${32 + (part >> 8)}.${part & 255}.${i + 1}`)
  cluster.put(serviceOf('huge', '172.31.0.1'))
  for (let part = 0; part < 1_000; part++)
    cluster.put(sliceOf('huge', addresses(part), { name: `huge-${part}` }))
  cluster.put(...service(1))
  const daemon = cluster.daemon()
  await daemon.synced(PATIENCE_MS)
  await cluster.converged()
  expect(memoryOf(daemon.pid)).toBeLessThan(500 * MIB)
  cluster.put(...service(1, { endpoints: ['10.9.9.9:8080'] }))
  await eventually(() => listRuleset().includes('10.9.9.9'), PATIENCE_MS)
})
