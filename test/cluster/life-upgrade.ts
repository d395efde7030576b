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
import { installVersion } from './pods.ts'
import { buildPrevious, commitOf } from './previous.ts'
import { cleanUp, healthy, metricsOf, startOne, stopOne } from './proxies.ts'
import type { NodePlan } from './site.ts'

/*
 * From the version before to the one of the checkout, back, and again: pods with the objects of each version, and a process that
 * starts from what the other version has saved.
 */

const SAVED_MAX_MS = 60_000

export const UPGRADES: readonly LifeEvent[] = [
  {
    name: 'upgrade',
    what: 'the version before takes over, then this one, the one before again, and this one',
    suits: (proxy, { previous }) => isKprobe(proxy) && isPod(proxy) && previous !== undefined,
    run: async life => {
      for (const version of await versionsOf(life)) await replaceVersion(life, version)
    },
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
}

/** Gives N-1, N, N-1, N. */
async function versionsOf({ tools, previous = '' }: Life): Promise<readonly Version[]> {
  const before = { root: buildPrevious(tools.root, previous), tag: 'previous' }
  const now = { root: tools.root, tag: undefined }
  return [before, now, before, now]
}

async function replaceVersion(life: Life, { root, tag }: Version): Promise<void> {
  const { site, tools, signal } = life
  signal.throwIfAborted()
  await installVersion({ ...podsOf(life), tools: { ...tools, root }, tag })
  for (const node of site.nodes) requireCommit(life, node, root)
  await followed(life)
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
    for (const { root } of await versionsOf(life)) {
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
