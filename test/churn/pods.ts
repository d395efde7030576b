import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import type { Topology } from '../support/lab/topology.ts'
import { eventually } from '../support/patience.ts'

const UDP_PEER = fileURLToPath(new URL('udp-peer.mjs', import.meta.url))

/**
 * Addresses of pods that live and die: a dead one answers nothing, so that whatever is still sent to it is lost. Servers
 * keep listening all the while.
 */
export class PodAddresses {
  readonly #ip: ChildProcess
  #trouble = ''

  constructor(topology: Topology, addresses: readonly string[]) {
    const command = ['-t', String(topology.pods.pid), '-n', 'ip', '-force', '-batch', '-']
    this.#ip = spawn('nsenter', command, { stdio: ['pipe', 'ignore', 'pipe'] })
    this.#ip.stderr?.on('data', words => {
      this.#trouble += words
    })
    // What the table `local` does not have is looked up in the next one.
    for (const address of addresses) this.#do(`route replace blackhole ${address}/32`)
  }

  revive(address: string): void {
    this.#do(`route replace local ${address} dev lo`)
  }

  kill(address: string): void {
    this.#do(`route del local ${address} dev lo table local`)
  }

  /** Throws with what did not work. */
  async close(): Promise<void> {
    const closed = once(this.#ip, 'close')
    this.#ip.stdin?.end()
    await closed
    if (this.#trouble !== '') throw new Error(this.#trouble)
  }

  #do(line: string): void {
    this.#ip.stdin?.write(`${line}\n`)
  }
}

export interface UdpReport {
  readonly ok: number
  /** Asked once more, because no answer came. */
  readonly again: number
  readonly failed: number
  readonly endpoints: Readonly<Record<string, number>>
}

/** See udp-peer.mjs. */
export class UdpPeer {
  readonly #child: ChildProcess
  #out = ''

  private constructor(pid: number, words: readonly string[]) {
    const command = ['-t', String(pid), '-n', process.execPath, UDP_PEER, ...words]
    this.#child = spawn('nsenter', command, { stdio: ['pipe', 'pipe', 'inherit'] })
    this.#child.stdout?.on('data', text => {
      this.#out += text
    })
  }

  /** Addresses must be there already. */
  static async serve(topology: Topology, endpoints: readonly string[]): Promise<UdpPeer> {
    const peer = new UdpPeer(topology.pods.pid, ['serve', ...endpoints])
    await peer.#says('ready')
    return peer
  }

  /** `rate` is in requests a second. */
  static ask(
    topology: Topology,
    options: {
      readonly kind: 'fresh' | 'sticky'
      readonly address: string
      readonly port: number
      readonly rate: number
    },
  ): UdpPeer {
    const { kind, address, port, rate } = options
    return new UdpPeer(topology.outside.pid, [kind, address, String(port), String(rate)])
  }

  /** Waits until a client has had an answer of this endpoint. */
  met(endpoint: string): Promise<void> {
    return this.#says(`met ${endpoint}`)
  }

  async #says(line: string): Promise<void> {
    await eventually(
      () => {
        if (this.#out.split('\n').includes(line)) return true
        if (this.#child.exitCode !== null) throw new Error('the UDP peer ended')
        return false
      },
      { describe: () => `${line}: ${this.#out}` },
    )
  }

  /** What a client saw; of servers, nothing. */
  async stop(): Promise<UdpReport> {
    const closed = once(this.#child, 'close')
    this.#child.stdin?.end()
    await closed
    const last = this.#out.trimEnd().split('\n').at(-1) ?? ''
    return last.startsWith('{') ? JSON.parse(last) : { ok: 0, again: 0, failed: 0, endpoints: {} }
  }
}
