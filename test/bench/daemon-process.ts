import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { type CpuMs, cpuOf } from './daemon-cost.ts'
import { proxyFlags } from './proxy-flags.ts'

/** Gives the command of a Node.js process that ends with this one, whatever ends it: no daemon stays behind. */
export function tiedNode(...args: readonly string[]): [file: string, args: string[]] {
  return ['setpriv', ['--pdeathsig', 'KILL', process.execPath, ...args]]
}

/** `kprobe run`, in iptables mode with KPROBE_MODE=iptables. */
export class Daemon {
  readonly startMs: number
  readonly syncedCpu: CpuMs
  readonly pid: number
  readonly #child: ChildProcess

  private constructor(child: ChildProcess, started: Pick<Daemon, 'startMs' | 'syncedCpu' | 'pid'>) {
    this.#child = child
    this.startMs = started.startMs
    this.syncedCpu = started.syncedCpu
    this.pid = started.pid
  }

  static async start(command: string, kubeconfig: string): Promise<Daemon> {
    const nodeArgs = (process.env.KPROBE_NODE_ARGS ?? '').split(' ').filter(Boolean)
    const began = performance.now()
    // Node.js decodes all certificates of its own at the start where this is set: 30 ms that are not of kprobe.
    const env = { ...process.env, NODE_EXTRA_CA_CERTS: undefined }
    const child = spawn(
      ...tiedNode(
        ...nodeArgs,
        command,
        'run',
        '--admin-socket=',
        ...proxyFlags({ kubeconfig, mode: process.env.KPROBE_MODE === 'iptables' ? 'iptables' : 'nftables' }),
      ),
      {
        stdio: ['ignore', 'ignore', 'pipe'],
        env,
      },
    )
    const { pid = 0 } = child
    const lines = createInterface(child.stderr)
    const last: string[] = []
    lines.on('line', line => last.splice(0, last.length - 4, line))
    for (;;) {
      const line = await Promise.race([once(lines, 'line'), once(child, 'exit').then(() => undefined)])
      if (line === undefined) throw new Error(`the daemon ended:\n${last.join('\n')}`)
      if (String(line[0]).includes('first sync complete')) break
    }
    return new Daemon(child, { startMs: performance.now() - began, syncedCpu: cpuOf(pid), pid })
  }

  async stop(): Promise<void> {
    const exited = once(this.#child, 'exit')
    this.#child.kill()
    await exited
  }
}
