import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { eventually } from './patience.ts'

const HELPER = fileURLToPath(new URL('pseudo-terminal.py', import.meta.url))
const ESCAPE = String.fromCharCode(27)
const HOME = `${ESCAPE}[H`

interface PseudoTerminalOptions {
  readonly columns: number
  readonly rows: number
  readonly env?: Readonly<Record<string, string>>
}

/** A command in a pseudo terminal. */
export class PseudoTerminal {
  /** All that the command wrote. */
  out = ''
  readonly #child: ChildProcess
  #said = ''

  constructor(command: readonly string[], { columns, rows, env }: PseudoTerminalOptions) {
    this.#child = spawn('python3', [HELPER, `${columns}`, `${rows}`, ...command], {
      env: { ...process.env, TERM: 'xterm', ...env },
    })
    this.#child.stdout?.setEncoding('utf8').on('data', text => {
      this.out += text
    })
    this.#child.stderr?.setEncoding('utf8').on('data', text => {
      this.#said += text
    })
  }

  press(keys: string): void {
    this.#order(`keys ${Buffer.from(keys).toString('hex')}`)
  }

  resize(columns: number, rows: number): void {
    this.#order(`size ${columns} ${rows}`)
  }

  signal(name: string): void {
    this.#order(`signal ${name}`)
  }

  /** The lines of the last whole picture, without escapes. */
  get picture(): readonly string[] {
    const pictures = this.out.split(HOME).filter(text => text.includes(`${ESCAPE}[J`))
    const last = pictures.at(-1)?.split(`${ESCAPE}[J`)[0] ?? ''
    return last.split(/\r*\n/).map(line => line.replaceAll(ESCAPE, '\0').replace(/\0\[[0-9;?]*[A-Za-z]/g, ''))
  }

  /** Waits until the last picture is such. */
  async shows(isSuch: (lines: readonly string[]) => boolean): Promise<readonly string[]> {
    await eventually(() => isSuch(this.picture), { describe: () => `${this.out.slice(-2_000)}${this.#said}` })
    return this.picture
  }

  /** How often the command was stopped by a signal. */
  get stops(): number {
    return this.#said.split('stopped\n').length - 1
  }

  /** Waits for its end: `0 restored`, the exit code and what became of the terminal. */
  async ended(): Promise<string> {
    const found = () => /^exit (.*)$/m.exec(this.#said)?.[1]
    if (found() === undefined) await once(this.#child, 'close')
    return found() ?? this.#said
  }

  kill(): void {
    this.#child.kill('SIGKILL')
  }

  #order(order: string): void {
    this.#child.stdin?.write(`${order}\n`)
  }
}
