import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { ControlPlane } from '../support/reference/control-plane.ts'
import { readFileOfDifferences } from '../support/reference/differences.ts'
import { KprobePeer } from '../support/reference/kprobe-peer.ts'
import { familyLine, parseMetrics } from '../support/reference/metrics-text.ts'
import { changeEndpoint, openSightsPlane, sightLines, sights } from '../support/reference/sights.ts'

/* What others see of kprobe in a cluster is what they see of kube-proxy (golden.long.test.ts), but for what is listed. */

const GOLDEN = fileURLToPath(new URL('golden/', import.meta.url))
const { sights: listed, metricsOtherwise } = readFileOfDifferences()

let plane: ControlPlane
let peer: KprobePeer

beforeAll(async () => {
  plane = await openSightsPlane()
  peer = new KprobePeer({
    kubeconfig: plane.kubeconfig('proxy'),
    nodeName: 'test-node',
    config: { clusterCIDR: '' },
  })
  await peer.synced()
  await changeEndpoint(plane)
  await peer.program.until(async () => PROGRAMMED.test(await peer.metrics()), 10_000)
})

afterAll(async () => {
  await peer?.stop()
  await plane?.stop()
})

test('answers, pages and the event read the same', async () => {
  for (const [name, text] of await sights(peer, plane)) {
    const golden = sightLines(name, readFileSync(GOLDEN + name, 'utf8'))
    const seen = sightLines(name, text)
    const own = listed.filter(({ file }) => file === name)
    expect(
      golden.filter(line => !seen.includes(line)),
      name,
    ).toEqual(own.flatMap(({ kubeProxy }) => kubeProxy ?? []))
    expect(
      seen.filter(line => !golden.includes(line)),
      name,
    ).toEqual(own.map(({ kprobe }) => kprobe))
  }
})

test('metrics that both have, have the same type, labels and buckets', async () => {
  for (const path of ['/healthz', '/livez']) await peer.health(path)
  const golden = new Map(readFileSync(`${GOLDEN}metrics.txt`, 'utf8').split('\n').map(byName))
  const seen = parseMetrics(await peer.metrics()).filter(({ samples }) => samples.size > 0)
  const others = seen.flatMap(family => {
    const theirs = golden.get(family.name)
    return theirs === undefined || theirs === familyLine(family) ? [] : [family.name]
  })
  expect(others).toEqual(metricsOtherwise)
  expect(seen.filter(({ name }) => golden.has(name)).length).toBeGreaterThan(15)
})

test('events are found by the uid of their object, as kubectl describe asks for them', async () => {
  const metadata = { name: 'evil', namespace: 'ns1' }
  await plane.api.create({
    apiVersion: 'v1',
    kind: 'Service',
    metadata,
    spec: { externalIPs: ['192.168.0.2'], ports: [{ port: 80 }] },
  })
  const { uid } = (await plane.api.get('v1', 'Service', metadata)).metadata
  await expect.poll(() => reasonsAt(`namespaces/ns1/events`, uid)).toContain('ServiceRefused')
  expect(await reasonsAt('events', 'test-node')).toContain('Starting')
})

async function reasonsAt(path: string, uid: unknown): Promise<readonly unknown[]> {
  const query = `fieldSelector=${encodeURIComponent(`involvedObject.uid=${String(uid)}`)}`
  const found = await plane.api.listAt(`/api/v1/${path}?${query}`, 'v1', 'Event')
  return found.map(({ reason }) => reason)
}

const PROGRAMMED = /^kubeproxy_network_programming_duration_seconds_count\S* [1-9]/m

function byName(line: string): readonly [string, string] {
  return [line.split(' ')[0] ?? '', line]
}
