import type { Config } from '../../src/config/config.ts'
import type { FlagReader } from '../../src/config/flag.ts'
import { type Parsed, type ParseOptions, parseRequest } from '../../src/config/load-config.ts'

/** A Config and the values of the command's own flags. */
interface ParsedFlags {
  readonly config: Config
  readonly extra: FlagReader
}

/** Reads arguments into a frozen Config, or reports all errors in them. Reads no file: --config is an error. */
export function parseFlags(argv: readonly string[], options: ParseOptions): Parsed<ParsedFlags> {
  const parsed = parseRequest(argv, options, undefined)
  if (parsed.kind === 'errors' || !parsed.value.extra.text('config')) return parsed
  const { extra } = parsed.value
  return { kind: 'errors', errors: [{ path: '--config', message: 'is not read by this command' }], extra }
}
