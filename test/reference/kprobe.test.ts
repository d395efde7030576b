import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { NODE_NAME } from '../support/pipeline.ts'
import { Arena, bySettings } from '../support/reference/arena.ts'
import { readFileOfDifferences } from '../support/reference/differences.ts'
import { KprobePeer } from '../support/reference/kprobe-peer.ts'
import { tried } from '../support/runs.ts'
import { loadScenarios } from '../support/scenario.ts'

/*
 * The same scenarios as for kube-proxy (differential.long.test.ts), from the same API server and the same configuration file: each
 * sixth, or with KPROBE_RUNS=all each.
 */
const { refused, notComparable } = readFileOfDifferences()

let arena: Arena

beforeAll(async () => {
  arena = await Arena.open(async ({ kubeconfig, config }) => {
    const peer = new KprobePeer({ kubeconfig, nodeName: NODE_NAME, config })
    await peer.synced()
    return peer
  })
})

afterAll(async () => {
  await arena?.close()
})

const comparable = bySettings(loadScenarios()).filter(({ file }) => !notComparable.has(file))
const scenarios = tried(comparable.length)
  .flatMap(number => comparable[number - 1] ?? [])
  .map(scenario => [scenario.file, scenario] as const)

describe.each(scenarios)('%s', (file, scenario) => {
  test('kprobe does what it says', async () => {
    const { different, refusal } = await arena.play(scenario)
    expect(different).toEqual([])
    const obstacle = refused.find(one => one.scenario === file)
    if (refusal !== undefined) expect(refusal).toContain(obstacle?.words ?? 'no refusal')
  })
})
