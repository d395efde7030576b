import { buildInfo, buildText } from '../base/build-info.ts'
import { FlagReader, flag, quote, readArguments } from '../config/flag.ts'
import { HELP_FLAG } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { OUTPUTS, outputFlag, readOutput, writeDocument } from './document.ts'
import { type Command, EXIT_FINE, type Io } from './io.ts'
import { usageErrors } from './request.ts'

const FLAGS = [outputFlag(OUTPUTS), flag('--version = true', 'true, or raw for one field a line')] as const

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe version [flags]',
      description:
        'Prints the version of this build; as JSON or YAML, also those of the runtime and the platform.',
      flags: [...FLAGS, HELP_FLAG],
    }),
  run: versionCommand,
}

/** Runs `kprobe version [-o json]` and `kprobe --version[=raw]`. Gives the exit code. */
export async function versionCommand(argv: readonly string[], io: Io): Promise<number> {
  const reader = new FlagReader(readArguments(argv, FLAGS, () => undefined))
  const output = readOutput(reader, OUTPUTS, 'text')
  const kind = reader.oneOf('version', ['true', 'raw'], 'true')
  for (const argument of reader.positionals) reader.fail(quote(argument), 'no such argument')
  if (reader.errors.length > 0) return usageErrors(io, 'version', reader.errors)
  if (output === 'text') printVersion(io, kind === 'raw')
  else await writeDocument(versionFacts(), output, io)
  return EXIT_FINE
}

/** Prints the version. `raw` is for programs: the build and the runtime, a line each. */
export function printVersion(io: Io, raw = false): void {
  if (!raw) io.out(`kprobe ${buildText(buildInfo())}\n`)
  else for (const [name, value] of Object.entries(versionFacts())) io.out(`${name}: ${value}\n`)
}

/** Collects the known facts of the build. */
function versionFacts(): Readonly<Record<string, string>> {
  const { version, commit, date } = buildInfo()
  const platform = `${process.platform}/${process.arch}`
  const facts = { version, commit, date, node: process.version, platform }
  return Object.fromEntries(Object.entries(facts).filter(([, value]) => value !== ''))
}
