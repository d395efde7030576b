import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { onTestFinished } from 'vitest'
import { eventually } from '../support/patience.ts'
import { nft } from './kernel.ts'

const MARK = '192.0.2.77'
const MARKED = `table ip removals { set marks { type ipv4_addr; elements = { ${MARK} }; }; }`

/** Elements that leave our maps and sets, as nft tells of them: nothing goes unseen, however soon it is back. */
export class Removals {
  readonly #child: ChildProcess
  #text = ''

  private constructor() {
    this.#child = spawn('nft', ['monitor', 'elements'], { stdio: ['ignore', 'pipe', 'inherit'] })
    this.#child.stdout?.on('data', chunk => {
      this.#text += chunk
    })
  }

  /**
   * Resolves once removals are seen; it ends with the test. The daemon has to have made its sets: nft lists them at its
   * start, subscribes after that, and is silent about elements of a set that came in between. The marked set may be such
   * a one, so each try makes it anew.
   */
  static async begin(): Promise<Removals> {
    const removals = new Removals()
    onTestFinished(() => removals.#end())
    await eventually(async () => {
      nft(MARKED)
      nft(`delete element ip removals marks { ${MARK} }`)
      nft('delete table ip removals')
      await new Promise(resolve => setTimeout(resolve, 50))
      return removals.#text.includes(MARK)
    })
    return removals
  }

  /** Of our tables, so far. What is only replaced in one commit does not leave. */
  get lines(): readonly string[] {
    return this.#text.split(/^# new generation.*$/m).flatMap(leavingIn)
  }

  async #end(): Promise<void> {
    const ended = once(this.#child, 'close')
    this.#child.kill('SIGKILL')
    await ended
  }
}

const ELEMENT = /^(add|delete) element (ip6? kube-proxy \S+ \{ [^":}]+)/

/** Elements that a commit deletes and does not add again with another value. */
function leavingIn(commit: string): readonly string[] {
  const [leaving, added] = [new Set<string>(), new Set<string>()]
  for (const line of commit.split('\n')) {
    const [, verb, key = ''] = ELEMENT.exec(line) ?? []
    // A comment stands between key and value, and one that expires between key and comment.
    const bare = key.replace(/ (comment|expires|timeout) .*/, '').trim()
    if (verb === 'delete') leaving.add(bare)
    if (verb === 'add') added.add(bare)
  }
  return [...leaving].filter(key => !added.has(key))
}
