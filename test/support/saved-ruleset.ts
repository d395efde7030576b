import { execFileSync } from 'node:child_process'
import { expect } from 'vitest'
import { finish } from '../../src/base/steps.ts'
import { printRuleset } from '../../src/kernel/nft/print.ts'
import type { Ruleset } from '../../src/kernel/nft/state.ts'
import type { Dataplane, Plan } from '../../src/reconcile/dataplane.ts'

/** Runs nft in the network namespace this process is in now; throws with what it writes to stderr. */
export function nft(args: readonly string[], input = ''): string {
  return execFileSync('nft', args, {
    input,
    encoding: 'utf8',
    maxBuffer: 2 ** 28,
    stdio: ['pipe', 'pipe', 'pipe'],
  })
}

interface InRuleset {
  readonly ruleset: Ruleset
}

/**
 * Saves what nft lists and what kprobe prints of `held`, and loads each into an empty kernel, as a machine does that
 * starts with the file. A daemon must find nothing to change then.
 */
export async function expectLoadable<
  State extends InRuleset,
  P extends Plan<State> & { readonly transaction: unknown },
>(plane: Dataplane<State, P>, held: State, title: string): Promise<void> {
  for (const [writer, text] of [
    ['nft', nft(['list', 'ruleset'])],
    ['kprobe', `${[...printRuleset(held.ruleset)].join('\n')}\n`],
  ] as const) {
    nft(['-c', '-f', '-'], text)
    nft(['flush', 'ruleset'])
    nft(['-f', '-'], text)
    const { state } = await plane.observe()
    const { transaction, complete } = finish(plane.diff(state, held))
    expect({ transaction, complete }, `${title}: saved by ${writer}`).toEqual({
      transaction: [],
      complete: true,
    })
  }
}
