import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

export const ALL_IP = fileURLToPath(new URL('../../deploy/examples/all-ip/', import.meta.url))

export interface BackEndOptions {
  readonly script: string
  readonly args?: readonly string[]
  readonly env?: Readonly<Record<string, string>>
}

/** A program over the library, as a process of its own. */
export class BackEnd {
  /** What it has written to both its outputs. */
  said = ''
  readonly #child: ChildProcess
  readonly #exited: Promise<readonly unknown[]>

  constructor({ script, args = [], env = {} }: BackEndOptions) {
    this.#child = spawn(process.execPath, [script, ...args], {
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    this.#exited = once(this.#child, 'close')
    for (const stream of [this.#child.stdout, this.#child.stderr])
      stream?.on('data', chunk => {
        this.said += chunk
      })
  }

  /** Resolves once it has written this. */
  async says(text: string, timeoutMs = 30_000): Promise<void> {
    const deadlineMs = performance.now() + timeoutMs
    while (!this.said.includes(text)) {
      const hasEnded = this.#child.exitCode !== null || this.#child.signalCode !== null
      if (hasEnded || performance.now() > deadlineMs)
        throw new Error(`the back end ${hasEnded ? 'has ended' : 'does not say'} "${text}":\n${this.said}`)
      await new Promise(resolve => setTimeout(resolve, 10))
    }
  }

  /** Ends it; gives its exit code. */
  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<number | null> {
    if (this.#child.exitCode === null && this.#child.signalCode === null) this.#child.kill(signal)
    await this.#exited
    return this.#child.exitCode
  }
}
