import type { Cancel, Clock } from '../base/clock.ts'
import { ConfigFileError, readConfigFileAgain } from './config-file.ts'
import type { ConfigError } from './flag.ts'
import type { ConfigFile, Parsed } from './load-config.ts'

/** Handlers for changes of the configuration file in use. */
interface ConfigWatchHandlers<T> {
  /** The file has a new and valid configuration. The next read waits until this has resolved. */
  readonly changed: (value: T) => Promise<void> | void
  /** The configuration in use stays. Reported once for each error of the file. */
  readonly failed: (errors: readonly ConfigError[]) => void
  /** Called after failed: the file is valid again, and equals the configuration in use. */
  readonly recovered: () => void
  /** Called after hurry: the file is valid, and equals the configuration in use. */
  readonly unchanged: () => void
}

interface ConfigWatchOptions<T> {
  /** The file as read for the configuration in use. */
  readonly file: ConfigFile
  readonly clock: Clock
  /** Reads a new text, for example with parseRequest. */
  readonly parse: (file: ConfigFile) => Parsed<T>
  readonly handlers: ConfigWatchHandlers<T>
}

export interface ConfigWatch {
  /** Reads the file now, and reports what it finds even if nothing is new. */
  hurry(): void
  /** Nothing is reported once it has resolved. */
  stop(): Promise<void>
}

/** Interval of the reads. The file is small: reading it costs less than watching all links that lead to it. */
const POLL_MS = 500
/** A text counts once two reads this far apart have found it: a writer may be between two writes. */
const QUIET_MS = 100

/**
 * Follows a configuration file by its content, so that it does not matter how it changes: rewritten, replaced by a rename,
 * or behind the links that kubelet swaps for a ConfigMap. A missing or invalid file is reported once and changes nothing.
 */
export function watchConfig<T>(options: ConfigWatchOptions<T>): ConfigWatch {
  return new PollingWatch(options)
}

/** The result of a read: a text, or the reason why there is none. */
type Sight = { readonly text: string } | { readonly problem: string }

class PollingWatch<T> implements ConfigWatch {
  readonly #options: ConfigWatchOptions<T>
  /** The text of the configuration in use. */
  #current: string
  /** What the last read found. */
  #last: Sight
  /** The failure that was reported. */
  #reported: Sight | undefined
  /** The next result is reported even if nothing is new. */
  #isAsked = false
  #timer: Cancel | undefined
  #looking: Promise<void> = Promise.resolve()
  #stopped = false

  constructor(options: ConfigWatchOptions<T>) {
    this.#options = options
    this.#current = options.file.text
    this.#last = { text: options.file.text }
    this.#lookAfter(POLL_MS)
  }

  hurry(): void {
    this.#isAsked = true
    // The current read, or the wait for a writer, soon leads to a result.
    if (this.#timer === undefined) return
    this.#timer()
    this.#lookAfter(0)
  }

  async stop(): Promise<void> {
    this.#stopped = true
    this.#timer?.()
    await this.#looking
  }

  #lookAfter(delayMs: number): void {
    if (this.#stopped) return
    this.#timer = this.#options.clock.after(delayMs, () => {
      this.#timer = undefined
      this.#looking = this.#look().then(waitMs => this.#lookAfter(waitMs))
    })
  }

  /** Reads the file. Gives the milliseconds until the next read. */
  async #look(): Promise<number> {
    const sight = await see(this.#options.file.path)
    if (this.#stopped) return POLL_MS
    const rests = isSameSight(sight, this.#last)
    this.#last = sight
    if (!rests) return QUIET_MS
    const isAsked = this.#isAsked
    this.#isAsked = false
    if (!isAsked && this.#reported !== undefined && isSameSight(sight, this.#reported)) return POLL_MS
    if ('problem' in sight) this.#fail(sight, [{ path: this.#options.file.path, message: sight.problem }])
    else if (sight.text !== this.#current) await this.#read(sight.text)
    else if (this.#reported !== undefined) this.#recover()
    else if (isAsked) this.#options.handlers.unchanged()
    return POLL_MS
  }

  async #read(text: string): Promise<void> {
    const parsed = this.#options.parse({ path: this.#options.file.path, text })
    if (parsed.kind === 'errors') {
      this.#fail({ text }, parsed.errors)
      return
    }
    this.#current = text
    this.#reported = undefined
    await this.#options.handlers.changed(parsed.value)
  }

  #fail(sight: Sight, errors: readonly ConfigError[]): void {
    this.#reported = sight
    this.#options.handlers.failed(errors)
  }

  #recover(): void {
    this.#reported = undefined
    this.#options.handlers.recovered()
  }
}

async function see(path: string): Promise<Sight> {
  try {
    return { text: await readConfigFileAgain(path) }
  } catch (error) {
    if (error instanceof ConfigFileError) return { problem: error.message }
    throw error
  }
}

function isSameSight(a: Sight, b: Sight): boolean {
  return 'text' in a ? 'text' in b && a.text === b.text : 'problem' in b && a.problem === b.problem
}
