import type { Clock } from '../base/clock.ts'
import { FollowedText, type ReadResult } from '../base/followed-text.ts'
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

export type ConfigWatch = Pick<FollowedText<readonly ConfigError[]>, 'hurry' | 'stop'>

/** Interval of the reads. The file is small: reading it costs less than watching all links that lead to it. */
const POLL_MS = 500

/** Follows a configuration file. A missing or invalid file is reported once and changes nothing. */
export function watchConfig<T>({ file, clock, parse, handlers }: ConfigWatchOptions<T>): ConfigWatch {
  const { path, text } = file
  return new FollowedText<readonly ConfigError[]>({
    clock,
    pollMs: POLL_MS,
    text,
    read: () => read(path),
    use: async now => {
      const parsed = parse({ path, text: now })
      if (parsed.kind === 'errors') return parsed.errors
      await handlers.changed(parsed.value)
      return undefined
    },
    failed: handlers.failed,
    recovered: handlers.recovered,
    unchanged: handlers.unchanged,
  })
}

async function read(path: string): Promise<ReadResult<readonly ConfigError[]>> {
  try {
    return { text: await readConfigFileAgain(path) }
  } catch (error) {
    if (error instanceof ConfigFileError) return { error: [{ path, message: error.message }] }
    throw error
  }
}
