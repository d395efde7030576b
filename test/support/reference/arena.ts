import { Lab } from '../lab/lab.ts'
import type { PipelineConfig } from '../pipeline.ts'
import type { Scenario } from '../scenario.ts'
import { expectedLine, flowAnywhere, type Labels, seenLine } from '../scenario-outcome.ts'
import { ControlPlane } from './control-plane.ts'
import { Fence, type FenceLook } from './fence.ts'
import { LAB_NODE } from './lab-node.ts'
import { Forwarder } from './relay.ts'
import { ScenarioCluster } from './scenario-cluster.ts'

/** A proxy that has programmed this network namespace once. */
export interface Peer {
  stop(): Promise<void>
}

type StartPeer = (options: { readonly kubeconfig: string; readonly config: PipelineConfig }) => Promise<Peer>

interface Played {
  /** Rows of the packet tables that ended elsewhere. */
  readonly different: readonly Different[]
  /** What kept the rest from being played, in the words of the API server or the proxy. */
  readonly refusal: string | undefined
}

export interface Different {
  /** `outside TCP 192.168.1.2:80 -> PASS` */
  readonly expected: string
  readonly seen: string
}

/** Scenarios for a proxy that has its objects from a real API server, with real packets. */
export class Arena {
  readonly plane: ControlPlane
  readonly lab: Lab
  readonly #relay: Forwarder
  readonly #fence: Fence
  readonly #cluster: ScenarioCluster
  readonly #startPeer: StartPeer
  #running: { readonly key: string; readonly peer: Peer } | undefined

  private constructor(parts: {
    plane: ControlPlane
    lab: Lab
    relay: Forwarder
    fence: Fence
    startPeer: StartPeer
  }) {
    this.plane = parts.plane
    this.lab = parts.lab
    this.#relay = parts.relay
    this.#fence = parts.fence
    this.#startPeer = parts.startPeer
    this.#cluster = new ScenarioCluster(parts.plane.api)
  }

  /** Moves this process into a network namespace of its own, the node's. */
  static async open(startPeer: StartPeer, isIn?: FenceLook): Promise<Arena> {
    // Objects from before the validation of addresses became strict are still around.
    const plane = await ControlPlane.start({ flags: ['--feature-gates=StrictIPCIDRValidation=false'] })
    await plane.api.put(LAB_NODE)
    const fence = new Fence(plane.api, isIn)
    await fence.open()
    const lab = await Lab.start({ alsoLocal: ['192.168.99.22'] })
    const relay = await Forwarder.start({ listen: { port: plane.port }, dial: plane.way })
    return new Arena({ plane, lab, relay, fence, startPeer })
  }

  async close(): Promise<void> {
    await this.#running?.peer.stop()
    await this.#relay.close()
    await this.lab.close()
    await this.plane.stop()
  }

  async play(scenario: Scenario): Promise<Played> {
    const different: Different[] = []
    const labels: Labels = new Map()
    const refusal = await this.walk(scenario, async step => {
      different.push(...(await this.#shoot(step, labels)))
    })
    return { different, refusal }
  }

  /**
   * Shows every step once the proxy has programmed it. Gives what kept the rest from being shown, in the words of the API
   * server or the proxy.
   */
  async walk(
    { config, steps }: Scenario,
    show: (step: Scenario['steps'][number]) => Promise<void>,
  ): Promise<string | undefined> {
    try {
      await this.#ensurePeer(config)
    } catch (error) {
      return String(error)
    }
    try {
      for (const step of steps) {
        const refusal = await this.#cluster.apply(step)
        if (refusal !== undefined) return refusal
        await this.#fence.passed()
        await show(step)
      }
      return undefined
    } finally {
      await this.#cluster.clear()
    }
  }

  async #shoot({ rows }: Scenario['steps'][number], labels: Labels): Promise<readonly Different[]> {
    const outcomes = await this.lab.trace(rows.map(flowAnywhere))
    return rows.flatMap((row, index) => {
      const outcome = outcomes[index]
      const expected = expectedLine(row)
      const seen = outcome === undefined ? 'nothing' : seenLine(row, outcome, labels)
      return seen === expected ? [] : [{ expected, seen }]
    })
  }

  /** With the scenario's settings: the one that runs, if it has them. */
  async #ensurePeer(config: PipelineConfig): Promise<void> {
    const key = JSON.stringify(config)
    if (this.#running?.key === key) return
    await this.#running?.peer.stop()
    this.#running = undefined
    const kubeconfig = this.plane.kubeconfig('proxy')
    this.#running = { key, peer: await this.#startPeer({ kubeconfig, config }) }
  }
}

/** Those with equal settings next to each other. */
export function bySettings(scenarios: readonly Scenario[]): readonly Scenario[] {
  const key = ({ config }: Scenario): string => JSON.stringify(config)
  return [...scenarios].sort((a, b) => (key(a) < key(b) ? -1 : 1))
}
