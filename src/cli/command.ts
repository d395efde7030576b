import { failureText } from '../base/errors.ts'
import { oneLine } from '../base/text.ts'
import { FlagReader, type FlagSpec, quote, readArguments } from '../config/flag.ts'
import { HELP_FLAG } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { type Command, EXIT_FAILED, type Io } from './io.ts'
import { usageErrors } from './request.ts'

/** A command that takes none of the flags of `kprobe run`. */
interface OwnCommand<Request> {
  readonly name: string
  /** Follow the name in the usage line. */
  readonly usage?: string
  readonly description: string
  readonly details?: readonly string[]
  readonly flags: readonly FlagSpec[]
  /** The command reads its arguments itself; else each one is an error. */
  readonly takesArguments?: true
  /** Reads what is asked. Reports errors to the reader, and may give undefined then. */
  readonly read: (reader: FlagReader, io: Io) => Request | undefined
  /** Gives the exit code. What it throws is printed as a failure of the command. */
  readonly run: (request: Request, io: Io) => Promise<number>
}

export function ownCommand<Request extends object>(own: OwnCommand<Request>): Command {
  const { name, usage = '[flags]', description, details, flags } = own
  return {
    help: () =>
      helpText({
        usage: `kprobe ${name} ${usage}`,
        description,
        ...(details === undefined ? {} : { details }),
        flags: [...flags, HELP_FLAG],
      }),
    async run(argv, io) {
      const reader = new FlagReader(readArguments(argv, flags, () => undefined))
      if (own.takesArguments !== true)
        for (const argument of reader.positionals) reader.fail(quote(argument), 'no such argument')
      const request = own.read(reader, io)
      if (reader.errors.length > 0 || request === undefined) return usageErrors(io, name, reader.errors)
      return await orFailed(io, name, () => own.run(request, io))
    },
  }
}

/** Gives the exit code of `run`. Prints what it throws as a failure of the command. */
export async function orFailed(io: Io, command: string, run: () => Promise<number>): Promise<number> {
  try {
    return await run()
  } catch (error) {
    io.err(`kprobe ${command}: ${oneLine(failureText(error))}\n`)
    return EXIT_FAILED
  }
}
