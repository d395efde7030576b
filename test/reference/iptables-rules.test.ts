import { execFileSync } from 'node:child_process'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { NftClient } from '../../src/kernel/nft/client.ts'
import { NODE_NAME } from '../support/pipeline.ts'
import { Arena, bySettings } from '../support/reference/arena.ts'
import { readRuleDifferences } from '../support/reference/differences.ts'
import { isInIptables } from '../support/reference/fence.ts'
import {
  countingOptionsOf,
  inIptables,
  iptablesConfigOf,
  objectsIn,
  ourChains,
  savedChains,
  tableOfObjects,
} from '../support/reference/iptables-rules.ts'
import { IptablesSite, openNft, planHere } from '../support/reference/iptables-site.ts'
import { comparableLines, differentLines, takeUnreached } from '../support/reference/iptables-text.ts'
import { KubeProxyPeer } from '../support/reference/kube-proxy-peer.ts'
import { largeService } from '../support/reference/large-service.ts'
import { RestoreInParts } from '../support/reference/restore-in-parts.ts'
import { loadScenarios } from '../support/scenario.ts'

/*
 * For the objects of every step of every scenario our rules are those that the real kube-proxy writes in its iptables
 * mode, line by line, apart from what iptables-differences.yaml lists: as values, and as iptables-nft-save prints what
 * our plane wrote. Where they are the same, there is nothing to write for whoever takes over from kube-proxy.
 */
const { differences, refused } = readRuleDifferences()

let arena: Arena
let site: IptablesSite
/** What the site was written with last. */
let settings = ''
let client: NftClient
const restore = new RestoreInParts()
const counts = { scenarios: 0, steps: 0, lines: 0, different: 0 }

beforeAll(async () => {
  arena = await Arena.open(async ({ kubeconfig, config }) => {
    // What the former one started may still write, and what it left of KUBE-FIREWALL would stay.
    await restore.done()
    execFileSync('nft', ['flush', 'ruleset'])
    const peer = new KubeProxyPeer({
      kubeconfig,
      nodeName: NODE_NAME,
      config: iptablesConfigOf(config),
      environment: restore.environment,
      restarts: true,
    })
    await peer.synced()
    return peer
  }, isInIptables)
  client = openNft()
  site = await IptablesSite.open()
})

afterAll(async () => {
  await site?.close()
  await client?.close()
  await arena?.close()
  restore.remove()
})

const scenarios = bySettings(
  loadScenarios()
    .filter(({ config }) => config.serviceProxyName === undefined)
    .map(scenario => ({ ...scenario, config: inIptables(scenario.config) })),
)

describe.each(scenarios.map(scenario => [scenario.file, scenario] as const))('%s', (file, scenario) => {
  test('the rules are those of kube-proxy', async () => {
    const listed = differences.filter(one => one.scenario === file)
    const met = new Set<string>()
    counts.scenarios++
    if (settings !== JSON.stringify(scenario.config)) site.clear()
    settings = JSON.stringify(scenario.config)
    const refusal = await arena.walk(scenario, async step => {
      const table = tableOfObjects(await objectsIn(arena.plane.api), scenario.config)
      const options = countingOptionsOf(scenario.config)
      const ours = comparableLines(ourChains(table, options))
      await restore.done()
      const theirs = comparableLines(await savedChains())
      const found = differentLines(theirs, ours)
      const unlisted = (lines: readonly string[], side: 'kubeProxy' | 'kprobe'): readonly string[] =>
        lines.filter(line => {
          const words = listed.flatMap(one => one[side]).find(part => line.includes(part))
          if (words !== undefined) met.add(`${side}: ${words}`)
          return words === undefined
        })
      expect(
        { kubeProxy: unlisted(found.kubeProxy, 'kubeProxy'), kprobe: unlisted(found.kprobe, 'kprobe') },
        step.title,
      ).toEqual({ kubeProxy: [], kprobe: [] })
      await site.write(table, options)
      expect(comparableLines(await site.saved()), step.title).toEqual(ours)
      const plan = await planHere(client, table, options)
      expect(plan.length > 0, plan.join('\n')).toBe(found.kubeProxy.length + found.kprobe.length > 0)
      counts.steps++
      counts.lines += theirs.length
      counts.different += found.kubeProxy.length + found.kprobe.length
    })
    const obstacle = refused.find(one => one.scenario === file)
    if (obstacle === undefined) expect(refusal).toBeUndefined()
    else expect(refusal).toContain(obstacle.words)
    const expected = listed.flatMap(one => [
      ...one.kubeProxy.map(words => `kubeProxy: ${words}`),
      ...one.kprobe.map(words => `kprobe: ${words}`),
    ])
    expect(expected.filter(words => !met.has(words))).toEqual([])
  })
})

test('of more than a thousand endpoints, single ones have no comments', async () => {
  const config = inIptables({ masqueradeBit: 13 })
  const steps = [{ title: 'large', objects: largeService(), remove: [], rows: [], refusals: [] }]
  const large = { file: '', name: 'large', description: '', config, steps }
  const refusal = await arena.walk(large, async () => {
    const table = tableOfObjects(await objectsIn(arena.plane.api), config)
    await restore.done()
    const saved = await savedChains()
    // In a large cluster kube-proxy looks for those every 30 seconds only.
    const unreached = takeUnreached(saved)
    const theirs = comparableLines(saved)
    expect(theirs.filter(line => line.includes('-> '))).toEqual([])
    expect(differentLines(theirs, comparableLines(ourChains(table, countingOptionsOf(config))))).toEqual({
      kubeProxy: [],
      kprobe: [],
    })
    const plan = await planHere(client, table, countingOptionsOf(config))
    expect(plan.toSorted()).toEqual(unreached.map(name => `remove chain ${name}`))
    counts.lines += theirs.length
  })
  expect(refusal).toBeUndefined()
})

test('something was compared', () => {
  const { steps, lines, different } = counts
  console.log(`${counts.scenarios} scenarios, ${steps} steps, ${lines} lines, ${different} differences`)
  expect(steps).toBeGreaterThan(80)
  expect(lines).toBeGreaterThan(5_000)
})
