import { type ChildProcess, spawn } from 'node:child_process'
import { expect } from 'vitest'
import type { PacketStory } from '../../src/inspect/live/packet-story.ts'
import { tool } from './command.ts'
import { COMMAND } from './daemon.ts'
import { eventually } from './patience.ts'

/** The tables that traces have in the kernel. */
export function traceTables(): readonly string[] {
  return tool('nft', 'list', 'tables')
    .split('\n')
    .filter(line => line.includes('kprobe-trace'))
}

/** `kprobe trace` or `drops`, until it ends by itself or is killed. */
export class Tracing {
  out = ''
  err = ''
  code: number | null | undefined
  readonly child: ChildProcess

  /** `running` gets the process. */
  constructor(
    args: readonly string[],
    { command = 'trace', running }: { readonly command?: string; readonly running: ChildProcess[] },
  ) {
    this.child = spawn(process.execPath, [COMMAND, command, '-o', 'json', '--duration=30m', ...args], {
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    running.push(this.child)
    this.child.stdout?.on('data', chunk => {
      this.out += chunk
    })
    this.child.stderr?.on('data', chunk => {
      this.err += chunk
    })
    this.child.on('close', code => {
      this.code = code
    })
  }

  async started(): Promise<this> {
    await eventually(() => traceTables().length > 0 || this.code !== undefined, { describe: () => this.err })
    return this
  }

  async ended(): Promise<readonly PacketStory[]> {
    await eventually(() => this.code !== undefined, { describe: () => `${this.out}${this.err}` })
    expect(this.code, this.err).toBe(0)
    return this.out
      .split('\n')
      .filter(line => line !== '')
      .map(line => JSON.parse(line))
  }
}
