import type { Config, ProxyMode } from '../config/config.ts'
import { whyNotInstance } from '../config/own-flags.ts'
import { MODE_NAMES } from '../modes/registry.ts'

/** Lists the modes that the proxy may have used. In other modes, objects belong to another proxy. */
export function modesOf({ serviceProxyName: name }: Config): readonly ProxyMode[] {
  return name === undefined ? MODE_NAMES : MODE_NAMES.filter(mode => whyNotInstance(name, mode) === undefined)
}

/** Removes other modes from the kernel. It can be canceled: the next daemon, or the next change, goes on. */
export class Retirement {
  readonly done: Promise<void>
  #isUnderWay = true
  readonly #modes: readonly ProxyMode[]
  readonly #stop = new AbortController()

  constructor(modes: readonly ProxyMode[], retire: (mode: ProxyMode, signal: AbortSignal) => Promise<void>) {
    this.#modes = modes
    this.done = this.#run(retire)
  }

  get isUnderWay(): boolean {
    return this.#isUnderWay
  }

  /** Cancels the retirement of this mode; without a mode, any retirement. */
  async end(mode?: ProxyMode): Promise<void> {
    if (mode !== undefined && !this.#modes.includes(mode)) return
    this.#stop.abort()
    await this.done
  }

  async #run(retire: (mode: ProxyMode, signal: AbortSignal) => Promise<void>): Promise<void> {
    for (const mode of this.#modes) if (!this.#stop.signal.aborted) await retire(mode, this.#stop.signal)
    this.#isUnderWay = false
  }
}
