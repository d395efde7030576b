import { systemClock } from '../../src/base/clock.ts'
import type { Config } from '../../src/config/config.ts'
import { runDaemon } from '../../src/daemon/daemon.ts'
import type { DaemonIo, Sync } from '../../src/daemon/io.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import type { ServiceRow } from '../../src/modes/common/show.ts'
import { kernelRows } from '../../src/modes/nftables/show.ts'
import { daemonIo } from './daemon-io.ts'
import { FakeKernel } from './fake-kernel/kernel.ts'
import { FakeLinks } from './fake-link/kernel.ts'
import { eventually } from './patience.ts'

/** A daemon of this process over a kernel in memory: what it logs, syncs and plans. */
export class DaemonRun {
  readonly kernel = new FakeKernel()
  readonly stop = new AbortController()
  readonly logged: string[] = []
  readonly syncs: Sync[] = []
  planned = 0
  reconfigure: ((config: Config) => Promise<void>) | undefined
  running: Promise<number> | undefined

  start(config: Config, io: Partial<DaemonIo> = {}): Promise<number> {
    this.running = runDaemon(config, {
      ...daemonIo({ write: line => void this.logged.push(line), verbosity: 4 }),
      signal: this.stop.signal,
      openTransport: () => this.kernel.open(),
      openRoute: () => new FakeLinks().open(),
      followConfig: handlers => {
        this.reconfigure = after => handlers.changed(after, [])
        return () => Promise.resolve()
      },
      synced: sync => this.syncs.push(sync),
      planned: () => this.planned++,
      ...io,
    })
    return this.running
  }

  async end(): Promise<void> {
    this.stop.abort()
    await this.running
  }

  get log(): string {
    return this.logged.join('')
  }

  async until(condition: () => boolean | Promise<boolean>, what: string): Promise<void> {
    await eventually(condition, { stepMs: 5, describe: () => `${what}\n${this.log}` })
  }

  /** The rows of the tables of both families with this name, as the kernel has them. */
  async rows(name = 'kube-proxy'): Promise<readonly ServiceRow[]> {
    const client = createNftClient({ transport: this.kernel.open(), clock: systemClock })
    const { ruleset } = await client.list([
      { family: 'ip', name },
      { family: 'ip6', name },
    ])
    await client.close()
    return kernelRows(ruleset.tables)
  }
}
