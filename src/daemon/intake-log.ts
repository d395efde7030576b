import type { Log } from '../base/log.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { type LocatedRefusal, problemText, type SourceProblem } from '../source/source.ts'
import { RefusalLog, SourceRefusalLog } from '../telemetry/refusal-log.ts'

export function logProblem(log: Log, problem: SourceProblem): void {
  const { kind, location } = problem
  log[kind === 'recovered' ? 'info' : 'warn']({ location }, problemText(problem))
}

/** Logs each refusal of a source and of its Services once. */
export class IntakeLog {
  readonly #log: Log
  readonly #ofSource = new SourceRefusalLog()
  readonly #ofServices = new RefusalLog()

  constructor(log: Log) {
    this.#log = log
  }

  source(list: readonly LocatedRefusal[]): void {
    const { fresh, unnamed } = this.#ofSource.update(list)
    for (const { location, refusal } of fresh) this.#log.warn({ location, ...refusal }, 'refused')
    this.#more(unnamed)
  }

  services(table: FrontendTable): void {
    const { fresh, unnamed } = this.#ofServices.update(table)
    for (const { refusals } of fresh) for (const refusal of refusals) this.#log.warn(refusal, 'refused')
    this.#more(unnamed)
  }

  #more(unnamed: number): void {
    if (unnamed > 0) this.#log.warn({ unnamed }, 'more fields or objects ignored')
  }
}
