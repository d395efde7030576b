import { privilegeHint } from '../base/errors.ts'

/** Decides when a run that is to sync once gives up: after three failed passes in a row, or at the first without a privilege. */
export class OnceFailures {
  #count = 0

  succeeded(): void {
    this.#count = 0
  }

  /** Takes the error of a failed pass. Gives whether to give up: after three, and at once for a lack of privilege. */
  failed(error: Error): boolean {
    this.#count++
    return this.#count >= 3 || privilegeHint(error) !== undefined
  }
}
