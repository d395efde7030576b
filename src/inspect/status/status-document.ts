/**
 * The answer to "is this node well?", for `kprobe status`, `kubectl kprobe status` and the page. It is plain data: a newer
 * command may read the answer of an older daemon.
 */
export interface StatusDocument {
  /**
   * `well`: all is served as configured. `unknown`: no problem was found, and a part was not read. `impaired`: some traffic
   * fails, or may soon. `down`: no daemon, or nothing is served.
   */
  readonly verdict: 'well' | 'unknown' | 'impaired' | 'down'
  /** One sentence that a reader needs first. */
  readonly sentence: string
  /** What is wrong, the worst first. */
  readonly problems: readonly Problem[]
  /** The facts of the screen, in its order: `source`, `kernel`, `services` and so on. */
  readonly facts: readonly Fact[]
}

export interface Problem {
  readonly level: 'error' | 'warning'
  /** A stable word for scripts, links and tests, such as `no-daemon`, `unanswered`, `services-refused`. */
  readonly kind: string
  readonly text: string
  /** The command that shows more. */
  readonly hint?: string
  /** `namespace/name` of the Service that it is about. */
  readonly service?: string
  /** `namespace/name` of the Pod that does not answer, where it is known. */
  readonly pod?: string
}

export interface Fact {
  readonly name: string
  readonly text: string
  /** The numbers behind the text, for scripts. */
  readonly values: Readonly<Record<string, string | number | boolean | null>>
}
