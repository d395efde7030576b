import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, copyFileSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { KubeObject } from '../support/reference/api.ts'
import type { ControlPlane } from '../support/reference/control-plane.ts'
import { Program } from '../support/reference/process.ts'

export interface PodHostOptions {
  readonly plane: ControlPlane
  /** A process in the network and mount namespaces of the node. */
  readonly nodePid: number
  readonly nodeName: string
  /** Commands that make the network namespace `pod` on the node, as a network plugin does. */
  readonly connect: string
  /** What these commands give it. */
  readonly podIps: readonly string[]
}

/** What this host needs of a pod's specification. */
interface Container {
  readonly command: readonly string[]
  readonly port: number
}

const STEP_MS = 50
const READY_MAX_MS = 60_000
const PODS = '/api/v1/namespaces/default/pods'

/**
 * What kubelet, a container runtime and a network plugin do to one pod of a node: it gets a network namespace, its command
 * runs there over an image that holds busybox alone, and its status says so once its probe is answered.
 */
export class PodHost {
  readonly #options: PodHostOptions
  #isClosed = false

  constructor(options: PodHostOptions) {
    this.#options = options
  }

  /** From the pod's creation to the end of its deletion. */
  async host(): Promise<void> {
    const pod = await this.#podThat(() => true)
    execFileSync('nsenter', [...this.#onNode(), 'sh', '-eu'], { input: this.#options.connect })
    const container = containerOf(pod)
    const program = this.#start(container)
    try {
      await program.until(() => this.#answers(container), READY_MAX_MS)
      await this.#report(pod)
      await this.#podThat(({ metadata }) => metadata.deletionTimestamp !== undefined)
    } finally {
      await program.stop('SIGKILL')
    }
    await this.#options.plane.api.remove('v1', 'Pod', pod.metadata)
  }

  /** Nothing is waited for any longer. */
  close(): void {
    this.#isClosed = true
  }

  async #podThat(isIt: (pod: KubeObject) => boolean): Promise<KubeObject> {
    const { plane, nodeName } = this.#options
    while (!this.#isClosed) {
      const pods = await plane.api.listAt(`${PODS}?fieldSelector=spec.nodeName%3D${nodeName}`, 'v1', 'Pod')
      const [found] = pods.filter(isIt)
      if (found !== undefined) return found
      await sleep(STEP_MS)
    }
    throw new Error('the host of the pod was closed')
  }

  #onNode(): readonly string[] {
    return ['-t', String(this.#options.nodePid), '-n', '-m']
  }

  #inPod(): readonly string[] {
    return [...this.#onNode(), 'nsenter', '--net=/run/netns/pod']
  }

  #start({ command }: Container): Program {
    const { folder } = this.#options.plane
    const image = makeImage(join(folder, 'image'))
    return new Program({
      name: 'container',
      file: 'nsenter',
      args: [...this.#inPod(), 'chroot', image, ...command],
      environment: { PATH: `/bin:${process.env.PATH}` },
      log: join(folder, 'container.log'),
    })
  }

  #answers({ port }: Container): boolean {
    const url = `http://127.0.0.1:${port}/index.html`
    const run = spawnSync('nsenter', [...this.#inPod(), 'busybox', 'wget', '-q', '-O-', url])
    return run.status === 0
  }

  async #report({ metadata: { name } }: KubeObject): Promise<void> {
    const { plane, podIps } = this.#options
    const status = {
      phase: 'Running',
      podIP: podIps[0],
      podIPs: podIps.map(ip => ({ ip })),
      conditions: [{ type: 'Ready', status: 'True' }],
    }
    const type = 'application/merge-patch+json'
    const reply = await plane.api.send('PATCH', `${PODS}/${name}/status`, { status }, type)
    if (reply.status !== 200) throw new Error(`the pod's status: ${JSON.stringify(reply.body)}`)
  }
}

/** The root of a container: busybox, under the names of its commands. */
function makeImage(folder: string): string {
  const bin = join(folder, 'bin')
  mkdirSync(bin, { recursive: true })
  copyFileSync('/bin/busybox', join(bin, 'busybox'))
  chmodSync(join(bin, 'busybox'), 0o755)
  execFileSync('chroot', [folder, '/bin/busybox', '--install', '-s', '/bin'])
  return folder
}

function containerOf({ spec }: KubeObject): Container {
  const first = at(at(spec, 'containers'), '0')
  const command = at(first, 'command')
  const port = at(at(at(first, 'readinessProbe'), 'httpGet'), 'port')
  if (!Array.isArray(command) || typeof port !== 'number') throw new Error('a pod without command or probe')
  return { command: command.map(String), port }
}

function at(value: unknown, key: string): unknown {
  return typeof value === 'object' && value !== null ? Reflect.get(value, key) : undefined
}
