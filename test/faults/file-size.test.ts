import { renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, expect, it } from 'vitest'
import type { Daemon } from '../support/daemon.ts'
import { ip } from '../support/lab/topology.ts'
import { eventually } from '../support/patience.ts'
import { ask, metric } from './cluster.ts'
import { peakOf } from './cluster-process.ts'
import { FileSite } from './file-site.ts'
import { frontendNames } from './kernel.ts'
import { nameOf, services } from './objects.ts'

const MIB = 1 << 20
/** Limit of deploy/kubernetes/base/daemonset.yaml, and the heap that Node.js has in a control group of that limit. */
const LIMIT_BYTES = 512 * MIB
const NODE_ARGS = ['--max-old-space-size=256']
const OBJECTS = 50_000

const site = FileSite.ofEachTest()
let daemon: Daemon

beforeEach(async () => {
  ip(['link set lo up'])
  daemon = await site.running(services(20), { nodeArgs: NODE_ARGS })
})

/** A file beside those that are there, in one go. */
function write(name: string, text: string): void {
  const unfinished = join(site.folder, `.${name}.unfinished`)
  writeFileSync(unfinished, text)
  renameSync(unfinished, join(site.folder, name))
}

/** Of 62 characters. */
const small = (number: number) =>
  `{apiVersion: v1, kind: Service, metadata: {name: x${number}, namespace: ns}}\n`

async function servesTheRest(what: string): Promise<void> {
  site.write(services(21))
  await eventually(() => frontendNames().has(nameOf(20)))
  expect(daemon.hasExited).toBe(false)
  const peak = peakOf(daemon.pid)
  console.log(`${what}: peak ${Math.round(peak / MIB)} MiB`)
  expect(peak).toBeLessThan(LIMIT_BYTES)
  expect(await ask('/livez')).toMatchObject({ code: 200 })
}

it('F141: 50,000 small YAML documents are read one by one', async () => {
  const documents = Array.from({ length: OBJECTS }, (_, number) => `---\n${small(number)}`)
  const last =
    '---\n{apiVersion: v1, kind: Service, metadata: {name: last, namespace: ns}, spec: {clusterIP: 172.30.99.1, ports: [{port: 80}]}}\n'
  write('small.yaml', `${documents.join('')}${last}`)
  await daemon.until(() => daemon.hasExited || frontendNames().has('ns/last'))
  await servesTheRest('50,000 documents')
})

it('F141: what cannot be read in parts is refused with file and figure, and its last valid state stays', async () => {
  write('small.yaml', small(1))
  const nodes = Array.from({ length: 200_000 }, (_, number) => `{a: ${number}}`)
  write('small.yaml', `apiVersion: v1\nkind: List\nitems: [${nodes.join(', ')}]\n`)
  await daemon.logged('characters, and at most 1048576 are read')
  const [said] = daemon.said('and at most 1048576 are read')
  expect(said).toMatchObject({ location: expect.stringContaining('small.yaml:1:1') })
  expect(await metric('kprobe_source_problems_total')).toBeGreaterThan(0)
  await servesTheRest('200,000 nodes in one document')
})

it('F141: more objects than the memory is enough for are refused, and those of other files are served', async () => {
  const one = { addresses: ['10.1.1.1'] }
  const labels = { 'kubernetes.io/service-name': 's1' }
  const slice = (number: number) => ({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { name: `x${number}`, namespace: 'ns', labels },
    addressType: 'IPv4',
    endpoints: Array.from({ length: 10_000 }, () => one),
  })
  const items = Array.from({ length: 160 }, (_, number) => JSON.stringify(slice(number)))
  write('many.json', `{"apiVersion": "v1", "kind": "List", "items": [${items.join(',')}]}`)
  await daemon.logged('too large for the memory limit')
  await servesTheRest('1,600,000 endpoints')
})

it('F141: a document that is nested without end is refused', async () => {
  write('deep.yaml', `a: ${'['.repeat(200_000)}`)
  await daemon.until(() => daemon.records.some(({ location }) => String(location).includes('deep.yaml')))
  await servesTheRest('200,000 brackets')
})
