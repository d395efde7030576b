import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { eventually } from '../patience.ts'

const PROGRAMS = ['iptables', 'ip6tables'] as const
const RULES_AT_ONCE = 150

/**
 * Stands before iptables-restore: what has more rules than one message to the kernel holds goes there in several, all
 * chains first. Only root of the machine may send larger ones. With --noflush the outcome is the same.
 */
function script(program: string, busy: string): string {
  return `#!/bin/sh
case " $* " in *' --version '*) exec ${program}-nft-restore "$@" ;; esac
parts=${busy}/$$
rm -rf "$parts"
mkdir "$parts" || exit 1
trap 'rm -rf "$parts"' EXIT
awk -v parts="$parts" '
  function end() { if (out != "") { print "COMMIT" > out; close(out); out = "" } }
  function begin() { out = sprintf("%s/%06d", parts, ++count); print table > out; rules = 0 }
  /^\\*/ { table = $0; begin(); next }
  /^COMMIT/ { end(); next }
  !/^:/ && rules++ >= ${RULES_AT_ONCE} { end(); begin(); rules = 1 }
  { print > out }'
for part in "$parts"/*; do ${program}-nft-restore "$@" <"$part" && rm "$part" || exit 1; done
`
}

export class RestoreInParts {
  readonly #folder = mkdtempSync(join(tmpdir(), 'kprobe-restore-'))
  readonly #busy = join(this.#folder, 'busy')

  constructor() {
    mkdirSync(this.#busy)
    for (const program of PROGRAMS)
      writeFileSync(join(this.#folder, `${program}-restore`), script(program, this.#busy), { mode: 0o755 })
  }

  /** Of a program that should use it. */
  get environment(): Readonly<Record<string, string>> {
    return { PATH: `${this.#folder}:${process.env.PATH}` }
  }

  /** Resolves once nothing is half written. Fails when no part is written for long. */
  async done(): Promise<void> {
    const describe = () => `iptables-restore does not end: processes ${this.#running().join(', ')}`
    const progress = () => readdirSync(this.#busy, { recursive: true }).join()
    await eventually(() => this.#running().length === 0, { describe, progress })
  }

  /** The folder of one that was killed with the proxy that had started it, or by its closed pipe, stays behind. */
  #running(): readonly string[] {
    return readdirSync(this.#busy).filter(pid => commandOf(pid).includes(this.#folder))
  }

  remove(): void {
    rmSync(this.#folder, { recursive: true, force: true })
  }
}

/** Empty for a process that is gone. */
function commandOf(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8')
  } catch {
    return ''
  }
}
