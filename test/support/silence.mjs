import { readFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'

/** How long something has been silent, as time of an idle machine: where more wants to run than can, time counts for less. */
export class Silence {
  #ms = 0
  #lookedMs = performance.now()

  heard() {
    this.#ms = 0
    this.#lookedMs = performance.now()
  }

  /** To be asked every second or so: what counts is how busy the machine is at each look. */
  isLongerThan(limitMs) {
    const nowMs = performance.now()
    this.#ms += (nowMs - this.#lookedMs) / Math.max(1, runnablePerProcessor())
    this.#lookedMs = nowMs
    return this.#ms > limitMs
  }
}

/** Threads of the whole machine that want to run, for each processor. */
function runnablePerProcessor() {
  const [, runnable = '1'] = /(\d+)\/\d+/.exec(readFileSync('/proc/loadavg', 'utf8')) ?? []
  return Number(runnable) / availableParallelism()
}
