import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { eventually } from '../support/patience.ts'

/** Where a group can be made, and the names of its files: cgroup v1 (memory), cgroup v2. Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst. */
const HIERARCHIES = [
  { mount: '/sys/fs/cgroup/memory', limit: 'memory.limit_in_bytes', events: 'memory.oom_control' },
  { mount: '/sys/fs/cgroup', limit: 'memory.max', events: 'memory.events' },
] as const

export class ControlGroup {
  readonly #folder: string
  readonly #files: (typeof HIERARCHIES)[number]

  private constructor(folder: string, files: (typeof HIERARCHIES)[number]) {
    this.#folder = folder
    this.#files = files
  }

  /** Makes a group; gives why this machine lets nobody make one otherwise. */
  static open(limitBytes: number): ControlGroup | string {
    const reasons: string[] = []
    for (const files of HIERARCHIES) {
      const folder = join(files.mount, `kprobe-test-${process.pid}`)
      try {
        mkdirSync(folder)
      } catch (error) {
        reasons.push(String(error))
        continue
      }
      if (existsSync(join(folder, files.limit))) {
        writeFileSync(join(folder, files.limit), String(limitBytes))
        return new ControlGroup(folder, files)
      }
      reasons.push(`${files.mount} has no memory controller`)
      rmdirSync(folder)
    }
    return reasons.join('; ')
  }

  /** A command that runs another one in the group. */
  get wrapper(): readonly string[] {
    return ['sh', '-c', 'echo $$ > "$0" && exec "$@"', join(this.#folder, 'cgroup.procs')]
  }

  /** How many of its processes the kernel has killed for want of memory. */
  get killed(): number {
    return Number(/^oom_kill (\d+)$/m.exec(this.#read(this.#files.events))?.[1])
  }

  /** Removes the group once its processes have ended. */
  async close(): Promise<void> {
    await eventually(() => this.#read('cgroup.procs') === '')
    rmdirSync(this.#folder)
  }

  #read(file: string): string {
    return readFileSync(join(this.#folder, file), 'utf8')
  }
}
