import { afterEach, beforeEach } from 'vitest'
import { type Daemon, type DaemonOptions, Daemons } from '../support/daemon.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { writeObjects } from './objects.ts'

type Options = Omit<DaemonOptions, 'source'>

/**
 * Of several times the least, and a hundred times what an idle machine takes: far below the 30 s after which a daemon looks at
 * everything anyway. How fast it is, benchmarks say.
 */
export const SOON_MS = 10_000

/** A network namespace, and daemons that read their objects from a folder. */
export class FileSite {
  readonly daemons = new Daemons()
  #folder = ''

  /** One for all tests of a file: each test has a new namespace and a new folder, and its daemons end with it. */
  static ofEachTest(): FileSite {
    const site = new FileSite()
    beforeEach(() => {
      freshNetns()
      site.#folder = site.daemons.folder()
    })
    afterEach(() => site.daemons.end())
    return site
  }

  /** Of this test. */
  get folder(): string {
    return this.#folder
  }

  write(objects: readonly object[]): void {
    writeObjects(this.#folder, objects)
  }

  daemon(options: Options = {}): Daemon {
    return this.daemons.start({ source: this.#folder, ...options })
  }

  async running(objects: readonly object[], options: Options = {}): Promise<Daemon> {
    this.write(objects)
    return await this.daemons.running({ source: this.#folder, ...options })
  }
}
