import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, openSync, readFileSync, statSync } from 'node:fs'
import { eventually } from '../patience.ts'

const LAST_WORDS_CHARACTERS = 2_000
const STOP_MAX_MS = 10_000
const STEP_MS = 25

export interface ProgramOptions {
  readonly name: string
  readonly file: string
  readonly args: readonly string[]
  readonly environment?: Readonly<Record<string, string>>
  /** Gets both outputs. */
  readonly log: string
}

/** A child process in the network namespace this thread is in now, with its output in a file. */
export class Program {
  readonly name: string
  readonly pid: number
  readonly log: string
  readonly exited: Promise<void>
  readonly #child: ChildProcess
  #ending: string | undefined

  constructor({ name, file, args, environment = {}, log }: ProgramOptions) {
    this.name = name
    this.log = log
    const output = openSync(log, 'a')
    // Whatever becomes of this process, that one ends with it: a killed test run leaves nothing behind.
    this.#child = spawn('setpriv', ['--pdeathsig', 'KILL', file, ...args], {
      stdio: ['ignore', output, output],
      env: { ...process.env, ...environment },
    })
    closeSync(output)
    this.exited = new Promise(resolve => {
      this.#child.on('error', error => {
        this.#ending = error.message
        resolve()
      })
      this.#child.on('close', (code, signal) => {
        this.#ending = `code ${code}, signal ${signal}`
        resolve()
      })
    })
    this.pid = this.#child.pid ?? -1
  }

  get hasExited(): boolean {
    return this.#ending !== undefined
  }

  /**
   * Waits until it is so; fails when the program ends, or writes nothing for so long, with the last of its output and with
   * what is not so.
   */
  async until(
    isSo: () => Promise<boolean> | boolean,
    limitMs: number,
    lacking: () => string = () => '',
  ): Promise<void> {
    const holds = async () => {
      const isNow = await isSo()
      if (!isNow && this.#ending !== undefined)
        throw new Error(`${this.name} ended (${this.#ending}): ${this.lastWords()}`)
      return isNow
    }
    const progress = () => statSync(this.log).size
    const describe = () => `${this.name}: ${lacking()}\n${this.lastWords()}`
    await eventually(holds, { limitMs, stepMs: STEP_MS, progress, describe })
  }

  /** Ends it by its pid; by force when it takes too long. */
  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<void> {
    if (this.hasExited) return
    this.#child.kill(signal)
    const force = setTimeout(() => this.#child.kill('SIGKILL'), STOP_MAX_MS)
    await this.exited
    clearTimeout(force)
  }

  output(): string {
    return readFileSync(this.log, 'utf8')
  }

  lastWords(): string {
    return this.output().slice(-LAST_WORDS_CHARACTERS)
  }
}
