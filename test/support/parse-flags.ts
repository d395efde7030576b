import type { Config } from '../../src/config/config.ts'
import type { FlagReader } from '../../src/config/flag.ts'
import {
  type Parsed,
  type ParseOptions,
  parseRequest,
  type RunRequest,
} from '../../src/config/load-config.ts'

/** How a configuration file of kube-proxy begins. */
const FILE_HEAD = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n'

/** What is asked for by flags, and by a configuration file when there is a body. */
export function requestFrom(argv: readonly string[], body?: string, hostName = 'node'): RunRequest {
  return parsedOf(parse(argv, body, hostName))
}

export function configFrom(argv: readonly string[], body?: string, hostName?: string): Config {
  return requestFrom(argv, body, hostName).config
}

/** `path: message` of every error in them. */
export function errorsFrom(argv: readonly string[], body?: string): readonly string[] {
  const parsed = parse(argv, body, 'node')
  return parsed.kind === 'errors' ? parsed.errors.map(({ path, message }) => `${path}: ${message}`) : []
}

/** What was parsed, when nothing is wrong with it. */
export function parsedOf<T>(parsed: Parsed<T>): T {
  if (parsed.kind === 'errors') throw new Error(JSON.stringify(parsed.errors))
  return parsed.value
}

function parse(argv: readonly string[], body: string | undefined, hostName: string): Parsed<RunRequest> {
  const file = body === undefined ? undefined : { path: 'c.yaml', text: FILE_HEAD + body }
  return parseRequest(argv, { hostName }, file)
}

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
