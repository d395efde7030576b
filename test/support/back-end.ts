import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { eventually } from './patience.ts'

export const ALL_IP = fileURLToPath(new URL('../../deploy/examples/all-ip/', import.meta.url))

interface BackEndOptions {
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
  async says(text: string): Promise<void> {
    const describe = () => `the back end does not say "${text}":\n${this.said}`
    const isSaid = () => {
      const hasEnded = this.#child.exitCode !== null || this.#child.signalCode !== null
      if (hasEnded && !this.said.includes(text)) throw new Error(`it has ended; ${describe()}`)
      return this.said.includes(text)
    }
    await eventually(isSaid, { progress: () => this.said.length, describe })
  }

  /** Ends it; gives its exit code. */
  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<number | null> {
    if (this.#child.exitCode === null && this.#child.signalCode === null) this.#child.kill(signal)
    await this.#exited
    return this.#child.exitCode
  }
}
