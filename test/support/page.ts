import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Patience } from './patience.ts'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
/** Only a command that hangs takes so long. */
const LIMIT_MS = 120_000

export interface Block {
  /** What stands behind the opening fence: a codec, and for whom it is. */
  readonly kind: string
  readonly text: string
}

/** Commands, and what the page says that they print. */
export interface Step {
  readonly command: string
  readonly said: string
}

/** A page of documentation with blocks of commands, or several that are read one after the other. */
export class Page {
  readonly text: string
  readonly blocks: readonly Block[]

  /** Takes paths from the top folder. */
  constructor(...paths: readonly string[]) {
    this.text = paths.map(path => readFileSync(ROOT + path, 'utf8')).join('\n')
    this.blocks = [...this.text.matchAll(/^```([^\n]*)\n([\s\S]*?)^```$/gm)].map(
      ([, kind = '', text = '']) => ({ kind, text }),
    )
  }

  ofKind(kind: string): readonly Block[] {
    return this.blocks.filter(block => block.kind === kind)
  }

  /** Blocks of these kinds in the page's order. */
  steps(...kinds: readonly string[]): readonly Step[] {
    return this.blocks.flatMap(({ kind, text }, index) => {
      const next = this.blocks[index + 1]
      if (!kinds.includes(kind)) return []
      return [{ command: text, said: next?.kind === 'console' ? next.text : '' }]
    })
  }
}

interface ShellOptions {
  /** Starts a shell that reads commands. */
  readonly command: string
  readonly env?: Readonly<Record<string, string>>
}

/** One shell for all commands of a reader, in the top folder. */
export class PageShell {
  readonly #child: ChildProcess
  readonly #closed: Promise<unknown>
  #out = ''

  constructor({ command, env = {} }: ShellOptions) {
    this.#child = spawn('sh', ['-c', command], {
      cwd: ROOT,
      env: { ...process.env, ...env },
      stdio: ['pipe', 'pipe', 'pipe'],
      detached: true,
    })
    this.#closed = once(this.#child, 'close')
    for (const stream of [this.#child.stdout, this.#child.stderr])
      stream?.on('data', chunk => {
        this.#out += chunk
      })
  }

  get pid(): number {
    return this.#child.pid ?? -1
  }

  /** Until the command that started the shell has printed this. */
  async printed(text: string): Promise<void> {
    const patience = new Patience(LIMIT_MS, { progress: () => this.#out.length })
    for (; !this.#out.includes(text); await sleep(10))
      if (patience.isOver || this.#child.exitCode !== null) throw this.#failure(`no "${text}"`)
  }

  /** What each step printed, on both outputs as a reader sees it. All have to succeed. */
  async run(steps: readonly Step[]): Promise<readonly string[]> {
    const border = (index: number) => `printf '\\n@@@ %s\\n' ${index}\n`
    const script = steps.map(({ command }, index) => `${border(index)}${command}`).join('')
    this.#child.stdin?.end(`set -eu\nexec 2>&1\n${script}${border(steps.length)}`)
    let hangs = false
    const patience = new Patience(LIMIT_MS, { progress: () => this.#out.length })
    const timer = setInterval(() => {
      hangs ||= patience.isOver
      if (hangs) this.end()
    }, 1_000)
    // Not before the last process has closed its outputs: a page ends what it starts.
    await this.#closed
    clearInterval(timer)
    if (hangs) throw this.#failure('the commands do not end, or leave something running')
    if (this.#child.exitCode !== 0) throw this.#failure('the commands do not succeed')
    return this.#out.split(/\n@@@ \d+\n/).slice(1, -1)
  }

  /** The shell and whatever it has left running. */
  end(): void {
    try {
      if (this.#child.pid !== undefined) process.kill(-this.#child.pid, 'SIGKILL')
    } catch (error) {
      // Nothing is left.
      if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error
    }
  }

  #failure(what: string): Error {
    const { exitCode, signalCode } = this.#child
    return new Error(`${what} (${exitCode ?? signalCode}):\n${this.#out}`)
  }
}

/** Lines that the page says and that were not printed; `...` stands for anything. */
export function missingLines(said: string, printed: string): readonly string[] {
  const lines = printed.split('\n').map(line => line.trim())
  const wanted = said
    .split('\n')
    .map(line => line.trim())
    .filter(line => line !== '')
  return wanted.filter(line => {
    const parts = line.split('...').map(part => part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))
    const pattern = new RegExp(`^${parts.join('.*')}$`)
    return !lines.some(each => pattern.test(each))
  })
}
