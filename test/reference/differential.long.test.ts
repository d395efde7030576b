import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { NODE_NAME } from '../support/pipeline.ts'
import { Arena, bySettings } from '../support/reference/arena.ts'
import { readFileOfDifferences } from '../support/reference/differences.ts'
import { KubeProxyPeer } from '../support/reference/kube-proxy-peer.ts'
import { proxyConfigOf } from '../support/reference/scenario-cluster.ts'
import { loadScenarios } from '../support/scenario.ts'

/*
 * What the scenarios say, which we do as well (test/scenarios, kprobe.test.ts), is what the real kube-proxy does, apart
 * from what differences.yaml lists.
 */
const { differences, refused, notComparable } = readFileOfDifferences()

let arena: Arena

beforeAll(async () => {
  arena = await Arena.open(async ({ kubeconfig, config }) => {
    const peer = new KubeProxyPeer({
      kubeconfig,
      nodeName: NODE_NAME,
      config: proxyConfigOf(config),
      restarts: true,
    })
    await peer.synced()
    return peer
  })
})

afterAll(async () => {
  await arena?.close()
})

const scenarios = bySettings(loadScenarios())
  .filter(({ file }) => !notComparable.has(file))
  .map(scenario => [scenario.file, scenario] as const)

describe.each(scenarios)('%s', (file, scenario) => {
  test('kube-proxy does what it says', async () => {
    const { different, refusal } = await arena.play(scenario)
    const obstacle = refused.find(one => one.scenario === file)
    expect(refusal ?? '').toContain(obstacle?.words ?? '')
    if (obstacle === undefined) expect(refusal).toBeUndefined()
    const listed = differences.filter(one => one.scenario === file)
    const lines = listed.map(({ packet, kubeProxy }) => `${packet} -> ${kubeProxy}`)
    const always = lines.filter((_, index) => listed[index]?.sometimes === false)
    const seen = different.map(one => one.seen)
    expect(seen.filter(line => !lines.includes(line))).toEqual([])
    expect(always.filter(line => !seen.includes(line))).toEqual([])
  })
})

test('what cannot be compared is told', () => {
  for (const [file, because] of notComparable) console.log(`${file} is not compared: ${because}`)
  for (const { scenario, words } of refused) console.log(`${scenario} is refused: ${words}`)
})
