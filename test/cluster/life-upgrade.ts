import { join } from 'node:path'
import { eventually } from '../support/patience.ts'
import { killProgram, lastNode, startProgram } from './cluster.ts'
import { addressesOf, isServedOn } from './life-newcomers.ts'
import {
  byLastNode,
  followed,
  isKprobe,
  isPod,
  type Life,
  type LifeEvent,
  podsOf,
  proxyOf,
} from './life-steps.ts'
import { installVersion, rollBackChart, stopPods } from './pods.ts'
import { buildPrevious, commitOf } from './previous.ts'
import { cleanUp, configzOf, healthy, metricsOf, startOne, stopOne } from './proxies.ts'
import type { NodePlan } from './site.ts'

/*
 * From the version before to the one of the checkout, back, and again: pods with the objects of each version, and a process that
 * starts from what the other version has saved.
 */

const SAVED_MAX_MS = 60_000
const CONFIGURED_MAX_MS = 60_000

export const UPGRADES: readonly LifeEvent[] = [
  {
    name: 'upgrade',
    what: 'the version before takes over, then this one, the one before again, and this one',
    suits: (proxy, { previous }) =>
      isKprobe(proxy) && isPod(proxy) && proxy.form !== 'chart' && previous !== undefined,
    run: async life => {
      const [before, now] = versionsOf(life)
      for (const version of [before, now, before, now]) await replaceVersion(life, version)
    },
  },
  {
    name: 'upgrade-chart',
    what: 'helm removes the release, installs the version before, upgrades to this one, rolls back, and upgrades again',
    suits: (proxy, { previous }) => isKprobe(proxy) && proxy.form === 'chart' && previous !== undefined,
    run: upgradeChart,
  },
  {
    name: 'saved-state',
    what: 'each version starts on the last node from what the other one saved: no rules, no API server',
    suits: (proxy, { previous }) => isKprobe(proxy) && !isPod(proxy) && previous !== undefined,
    run: startFromStates,
    mayFail: byLastNode,
  },
]

interface Version {
  /** The folder of a checkout. */
  readonly root: string
  /** The tag of its image; undefined for the one of this checkout. */
  readonly tag: string | undefined
  /** In nftables mode, of the chart's configuration alone: shows which revision a daemon has read. */
  readonly syncPeriod: string
}

/** Gives N-1 and N. */
function versionsOf({ tools, previous = '' }: Life): readonly [Version, Version] {
  return [
    { root: buildPrevious(tools.root, previous), tag: 'previous', syncPeriod: '40s' },
    { root: tools.root, tag: undefined, syncPeriod: '50s' },
  ]
}

async function replaceVersion(life: Life, version: Version): Promise<void> {
  const { root, tag, syncPeriod } = version
  life.signal.throwIfAborted()
  const config = { nftables: { syncPeriod } }
  await installVersion({ ...podsOf(life), tools: { ...life.tools, root }, tag, config })
  await requireVersion(life, version)
}

async function upgradeChart(life: Life): Promise<void> {
  const [before, now] = versionsOf(life)
  // Its rules stay until the version before takes over.
  await stopPods(podsOf(life))
  await replaceVersion(life, before)
  await replaceVersion(life, now)
  life.signal.throwIfAborted()
  rollBackChart(podsOf(life))
  await requireVersion(life, before)
  await replaceVersion(life, now)
}

/** Throws unless each node has this version, which follows what changes. */
async function requireVersion(life: Life, { root, syncPeriod }: Version): Promise<void> {
  const { site } = life
  for (const node of site.nodes) requireCommit(life, node, root)
  if (proxyOf(life).form === 'chart') for (const node of site.nodes) await configured(life, node, syncPeriod)
  await followed(life)
}

/** A daemon follows its ConfigMap by itself, and kubelet may update it late. */
async function configured({ tools }: Life, node: NodePlan, syncPeriod: string): Promise<void> {
  const pattern = new RegExp(`"syncPeriod":\\s*"${syncPeriod}"`)
  await eventually(() => pattern.test(configzOf(node, tools)), {
    limitMs: CONFIGURED_MAX_MS,
    stepMs: 500,
    describe: () => `${node.name} has no syncPeriod of ${syncPeriod}: ${configzOf(node, tools)}`,
  })
}

function requireCommit({ tools }: Life, node: NodePlan, root: string): void {
  const build = /^kprobe_build_info\{.*\} 1$/m.exec(metricsOf(node, tools))?.[0] ?? ''
  if (!build.includes(`commit="${commitOf(root)}"`))
    throw new Error(`${node.name} runs another version than ${commitOf(root)}: ${build}`)
}

async function startFromStates(life: Life): Promise<void> {
  const { site, tools, signal } = life
  const running = proxyOf(life)
  const node = lastNode(site)
  const stateDir = join(node.folder, 'saved-state')
  // Nothing answers while the API server is away.
  const [host] = addressesOf(life)
  const start = async (root: string, more: object) => {
    const child = startOne(site, running, { tools: { ...tools, root }, node, more })
    await healthy(node, running, tools, () => child.exitCode !== null)
    requireCommit(life, node, root)
  }
  const withoutServer = async (root: string) => {
    killProgram(life, 'kube-apiserver')
    try {
      await start(root, { stateDir })
      await metricIs(life, 'kprobe_saved_state_served', served => served === 1)
      if (!isServedOn(life, node, host))
        throw new Error(`${node.name} does not serve what ${running.proxy} saved`)
    } finally {
      await life.kubectl.ready(startProgram(life, 'kube-apiserver'))
    }
  }
  await stopOne(node, running, tools)
  try {
    await start(tools.root, { stateDir })
    const [before, now] = versionsOf(life)
    for (const { root } of [before, now, before, now]) {
      signal.throwIfAborted()
      await metricIs(life, 'kprobe_saved_state_saves_total{outcome="saved"}', saves => saves > 0)
      await stopOne(node, running, tools)
      cleanUp(node, running, tools)
      await withoutServer(root)
      await metricIs(life, 'kprobe_saved_state_served', served => served === 0)
      await followed(life)
    }
  } finally {
    await stopOne(node, running, tools)
    await start(tools.root, {})
  }
}

/** Waits for a metric of the last node. */
async function metricIs(
  { site, tools }: Life,
  name: string,
  isRight: (value: number) => boolean,
): Promise<void> {
  const node = lastNode(site)
  const value = () => {
    const line = metricsOf(node, tools)
      .split('\n')
      .find(each => each.startsWith(`${name} `))
    return Number(line?.slice(name.length))
  }
  await eventually(() => isRight(value()), {
    limitMs: SAVED_MAX_MS,
    stepMs: 200,
    describe: () => `${name} on ${node.name} is ${value()}`,
  })
}
