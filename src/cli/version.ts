import { buildInfo, buildText } from '../base/build-info.ts'
import { flag } from '../config/flag.ts'
import { OUTPUTS, outputFlag, readOutput, writeDocument } from './document.ts'
import { EXIT_FINE, type Io } from './io.ts'
import { ownCommand } from './request.ts'

/** Also `kprobe --version[=raw]`. */
export const command = ownCommand({
  name: 'version',
  description:
    'Prints the version of this build; as JSON or YAML, also those of the runtime and the platform.',
  flags: [outputFlag(OUTPUTS), flag('--version = true', 'true, or raw for one field a line')],
  read: reader => ({
    output: readOutput(reader, OUTPUTS, 'text'),
    isRaw: reader.oneOf('version', ['true', 'raw'], 'true') === 'raw',
  }),
  async run({ output, isRaw }, io) {
    if (output === 'text') printVersion(io, isRaw)
    else await writeDocument(versionFacts(), output, io)
    return EXIT_FINE
  },
})

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
