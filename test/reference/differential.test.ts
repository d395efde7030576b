import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Lab } from '../support/lab/lab.ts'
import { NODE_NAME } from '../support/pipeline.ts'
import { ControlPlane } from '../support/reference/control-plane.ts'
import { readFileOfDifferences } from '../support/reference/differences.ts'
import { Fence } from '../support/reference/fence.ts'
import { KubeProxyPeer } from '../support/reference/kube-proxy-peer.ts'
import { LAB_NODE } from '../support/reference/lab-node.ts'
import { Relay } from '../support/reference/relay.ts'
import { proxyConfigOf, ScenarioCluster } from '../support/reference/scenario-cluster.ts'
import { loadScenarios, type Scenario } from '../support/scenario.ts'
import { expectedLine, flowOf, type Labels, seenLine } from '../support/scenario-outcome.ts'

/*
 * The real kube-proxy, with the objects of every scenario from a real API server, and real packets: what the scenarios
 * say, which we do as well (test/scenarios), is what it does, apart from what differences.yaml lists.
 */
const { differences, refused, notComparable } = readFileOfDifferences()

let plane: ControlPlane
let lab: Lab
let relay: Relay
let fence: Fence
let cluster: ScenarioCluster
let peer: { readonly key: string; readonly proxy: KubeProxyPeer } | undefined

beforeAll(async () => {
  // Objects from before the validation of addresses became strict are still around.
  plane = await ControlPlane.start({ flags: ['--feature-gates=StrictIPCIDRValidation=false'] })
  await plane.api.put(LAB_NODE)
  fence = new Fence(plane.api)
  await fence.open()
  cluster = new ScenarioCluster(plane.api)
  lab = await Lab.start({ alsoLocal: ['192.168.99.22'] })
  relay = await Relay.start({ listen: { port: plane.port }, dial: plane.way })
})

afterAll(async () => {
  await peer?.proxy.stop()
  await relay?.close()
  await lab?.close()
  await plane?.stop()
})

/** A kube-proxy with the scenario's settings: the one that runs, if it has them. */
async function startProxy({ config }: Scenario): Promise<void> {
  const wanted = proxyConfigOf(config)
  const key = JSON.stringify(wanted)
  if (peer?.key === key) return
  await peer?.proxy.stop()
  peer = undefined
  const proxy = new KubeProxyPeer({
    kubeconfig: plane.kubeconfig('proxy'),
    nodeName: NODE_NAME,
    config: wanted,
  })
  await proxy.synced()
  peer = { key, proxy }
}

interface Played {
  /** `outside TCP 192.168.1.2:80 -> PASS`, what was to be and what was, where the two differ. */
  readonly different: readonly Different[]
  /** What kept the rest from being played. */
  readonly refusal: string | undefined
}

interface Different {
  readonly expected: string
  readonly seen: string
}

async function play(scenario: Scenario): Promise<Played> {
  const different: Different[] = []
  const labels: Labels = new Map()
  try {
    await startProxy(scenario)
  } catch (error) {
    return { different, refusal: String(error) }
  }
  try {
    for (const step of scenario.steps) {
      const refusal = await cluster.apply(step)
      if (refusal !== undefined) return { different, refusal }
      await fence.passed()
      const outcomes = await lab.trace(step.rows.map(flowOf))
      for (const [index, row] of step.rows.entries()) {
        const outcome = outcomes[index]
        const expected = expectedLine(row)
        const seen = outcome === undefined ? 'nothing' : seenLine(row, outcome, labels)
        if (seen !== expected) different.push({ expected, seen })
      }
    }
    return { different, refusal: undefined }
  } finally {
    await cluster.clear()
  }
}

/** Those with equal settings next to each other. */
const scenarios = loadScenarios()
  .filter(({ file }) => !notComparable.has(file))
  .map(scenario => [scenario.file, scenario] as const)
  .sort(([, a], [, b]) => (JSON.stringify(a.config) < JSON.stringify(b.config) ? -1 : 1))

describe.each(scenarios)('%s', (file, scenario) => {
  test('kube-proxy does what it says', async () => {
    const { different, refusal } = await play(scenario)
    const obstacle = refused.find(one => one.scenario === file)
    expect(refusal ?? '').toContain(obstacle?.words ?? '')
    if (obstacle === undefined) expect(refusal).toBeUndefined()
    const listed = differences.filter(one => one.scenario === file)
    expect(new Set(different.map(({ seen }) => seen))).toEqual(
      new Set(listed.map(({ packet, kubeProxy }) => `${packet} -> ${kubeProxy}`)),
    )
  })
})

test('what cannot be compared is told', () => {
  for (const [file, because] of notComparable) console.log(`${file} is not compared: ${because}`)
  const files = loadScenarios().map(({ file }) => file)
  expect([...notComparable.keys()].filter(file => !files.includes(file))).toEqual([])
})
