import { systemClock } from '../base/clock.ts'
import { FlagReader, type FlagSpec, quote, readArguments } from '../config/flag.ts'
import { MODEL_SOCKET_FLAG } from '../config/flag-tables.ts'
import { HELP_FLAG } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { askDaemon, usualSocket } from './admin-client.ts'
import { orFailed } from './command.ts'
import { bashScript, type Completed, fishScript, zshScript } from './completion-scripts.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, EXIT_USAGE, type Io } from './io.ts'
import { usageErrors } from './request.ts'

const SCRIPTS = { bash: bashScript, zsh: zshScript, fish: fishScript } as const
const FLAGS: readonly FlagSpec[] = [
  { ...MODEL_SOCKET_FLAG, help: 'unix socket of the daemon that knows the Services' },
]

/** Makes the command. It gets the other commands from the table that has it, too. */
export function completionCommand(commands: () => Promise<readonly Completed[]>): Command {
  return {
    help: () =>
      helpText({
        usage: 'kprobe completion bash|zsh|fish|services [flags] [-- WORDS]',
        description:
          'Prints a script with which a shell completes the commands, flags and values of kprobe, and the names of Services.',
        details: [
          'To load it:',
          '  bash   source <(kprobe completion bash)',
          '  zsh    source <(kprobe completion zsh), after compinit',
          '  fish   kprobe completion fish | source',
          '',
          '  services   prints the names of the Services that the daemon knows, a line each: the scripts run it, with the words of the command line, which may name the daemon. After one second, and without a daemon, it prints nothing.',
        ],
        flags: [...FLAGS, HELP_FLAG],
      }),
    run: (argv, io) => run(argv, io, commands),
  }
}

async function run(
  argv: readonly string[],
  io: Io,
  commands: () => Promise<readonly Completed[]>,
): Promise<number> {
  const reader = new FlagReader(readArguments(argv, FLAGS, () => undefined))
  const [what = '', ...more] = reader.positionals
  if (what !== 'services') for (const argument of more) reader.fail(quote(argument), 'no such argument')
  if (what !== 'services' && !isShell(what))
    reader.fail(quote(what), `not one of ${Object.keys(SCRIPTS).join(', ')}, services`)
  if (reader.errors.length > 0) return usageErrors(io, 'completion', reader.errors)
  if (what === 'services') return await printServices(reader.text('admin-socket') || socketIn(more), io)
  if (!isShell(what)) return EXIT_USAGE
  return await orFailed(io, 'completion', async () => {
    io.out(SCRIPTS[what](await commands()))
    return EXIT_FINE
  })
}

function isShell(word: string): word is keyof typeof SCRIPTS {
  return Object.hasOwn(SCRIPTS, word)
}

/** Gives the socket of the daemon that the words of a command line mean. */
function socketIn(words: readonly string[]): string {
  return valueIn(words, '--admin-socket') || usualSocket(valueIn(words, '--service-proxy-name') || undefined)
}

/** Gives the last value of a flag. Bash splits words at =. */
function valueIn(words: readonly string[], flag: string): string {
  let value = ''
  for (const [at, word] of words.entries()) {
    if (word.startsWith(`${flag}=`)) value = word.slice(flag.length + 1)
    if (word === flag) value = (words[at + 1] === '=' ? words[at + 2] : words[at + 1]) ?? ''
  }
  return value
}

/** The shell is blocked until the names are printed. */
const NAMES_LIMIT_MS = 1_000
/** A shell shows no more in a useful way. */
const NAMES_MAX = 5_000

/** Prints the names that are safe to complete; the shell evaluates them. Errors would be in the way of the prompt. */
async function printServices(socket: string, io: Io): Promise<number> {
  const late = new AbortController()
  const cancel = systemClock.after(NAMES_LIMIT_MS, () => late.abort())
  try {
    const answer = await askDaemon(socket, '/services', late)
    const names: unknown = answer.kind === 'answer' ? answer.value : []
    const safe = (Array.isArray(names) ? names : []).filter(isSafeName).sort()
    io.out(
      safe
        .slice(0, NAMES_MAX)
        .map(name => `${name}\n`)
        .join(''),
    )
  } catch {
    return EXIT_FAILED
  } finally {
    cancel()
  }
  return EXIT_FINE
}

function isSafeName(name: unknown): name is string {
  return typeof name === 'string' && /^[a-z0-9.-]+\/[a-z0-9.-]+$/.test(name)
}
