import { readFileSync } from 'node:fs'
import { setFlagsFromString } from 'node:v8'
import type { Clock } from '../base/clock.ts'
import type { Log } from '../base/log.ts'
import type { Mode } from '../modes/mode.ts'
import { releasePages } from '../netlink/native.ts'

export interface Engine {
  /** Called once all code is loaded, before the first objects arrive, with the mode that loads them. */
  readonly loads: (mode: Pick<Mode, 'leavesGarbage'>) => void
  /** Called after the first sync: releases the memory of the start a second later. */
  readonly loaded: () => void
}

/**
 * Sets flags of V8. They change what it expects of code that Node.js keeps compiled for its own modules, and it compiles
 * such modules anew: that is why they are not set at the start.
 */
export function engine({ clock, log }: { readonly clock: Clock; readonly log: Log }): Engine {
  const flag = flagOf(Number.parseInt(process.versions.node, 10))
  return {
    loads({ leavesGarbage }) {
      // A load of 30,000 Services takes as long, and needs 176 MiB instead of 203.
      keepYoungGenerationSmall()
      if (flag !== undefined) setFlagsFromString(flag)
      if (leavesGarbage !== true) markAtOnce()
    },
    loaded() {
      // A second after the first sync, when the work of the start is over.
      clock.after(1_000, () => {
        try {
          releasePages(pagesOfFiles(readFileSync('/proc/self/smaps', 'latin1')))
        } catch (err) {
          log.debug({ err }, 'cannot release memory after the start')
        }
      })
    },
  }
}

/**
 * Keeps V8's space for new objects at its first size, 1 MiB. It would grow to 48 MiB, which a load or a crowd of clients fills
 * and later work leaves idle. Called once all code is loaded.
 */
export function keepYoungGenerationSmall(): void {
  // V8 reads --max-semi-space-size only before it runs code.
  setFlagsFromString('--semi-space-growth-factor=1')
  // A parallel collection of 1 MiB costs more than it saves.
  setFlagsFromString('--no-parallel-scavenge')
}

/**
 * Makes V8 mark all objects in one go. Marking in steps is followed, in a process that is nearly idle, by three more
 * collections that win nothing here: a change of one endpoint took 5.7 to 8.6 ms of processor time with them, and takes 3.6.
 * A collection then stops the process for 0.6 ms for each MiB of objects: 22 ms at 10,000 x 10.
 */
function markAtOnce(): void {
  setFlagsFromString('--no-incremental-marking')
}

/**
 * Finds what this process has only read of programs and libraries, in /proc/PID/smaps: pairs of address and length. The
 * start needs most of these pages, and later work one in four; the kernel reads them again from its cache.
 */
export function pagesOfFiles(smaps: string): BigUint64Array {
  const ranges: bigint[] = []
  for (const mapping of smaps.split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m)) {
    const [, start, end] = /^([0-9a-f]+)-([0-9a-f]+) r-[x-]p \S+ \S+ [1-9]\d* /.exec(mapping) ?? []
    // A page that was written once is in no file, and counts as anonymous only while it is not swapped out.
    const isWritten = !/^Anonymous: +0 kB$/m.test(mapping) || !/^Swap: +0 kB$/m.test(mapping)
    if (start === undefined || end === undefined || isWritten) continue
    ranges.push(BigInt(`0x${start}`), BigInt(`0x${end}`) - BigInt(`0x${start}`))
  }
  return BigUint64Array.from(ranges)
}

/**
 * Gives the flag for a load and the time after it. V8 writes a line about a flag that it does not know to standard error:
 * undefined for other versions of Node.js than the tests run.
 *
 * It sets how often a function runs until V8 optimizes it: eight times as often as usual. Most of the code that V8 optimizes
 * never pays for the time of its threads: a load is over before, and later this process seldom works.
 */
export function flagOf(nodeMajor: number): string | undefined {
  if (nodeMajor === 20) return `--interrupt-budget=${8 * (66 << 10)}`
  return nodeMajor >= 22 && nodeMajor <= 26 ? `--invocation-count-for-turbofan=${8 * 3_000}` : undefined
}
