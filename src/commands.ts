import { buildFacts, buildInfo, bundledPackages, versionText } from './base/build-info.ts'
import { nearest } from './base/text.ts'
import { OUTPUTS, outputFlag, writeDocument } from './cli/document.ts'
import { type Command, EXIT_FINE, EXIT_USAGE, type Io } from './cli/io.ts'
import { ownCommand } from './cli/request.ts'
import { flag } from './config/flag.ts'
import { helpText, manualPage, wrapLines } from './config/help.ts'
import type { Completed } from './inspect/completion.ts'

interface Entry {
  readonly name: string
  readonly summary: string
  /** Loads the module of one command, so that a command does not load the imports of the others. */
  readonly load: () => Promise<{ readonly command: Command }>
}

const TABLE: Readonly<Record<string, readonly [summary: string, load: Entry['load']]>> = {
  run: ['the daemon: program Services into the kernel and keep them there', () => import('./cli/run.ts')],
  api: [
    'publish the Services of this node: over gRPC, as JSON lines, or to programs that it runs',
    () => import('./api/command.ts'),
  ],
  relay: [
    'watch the API server once for many nodes, which read with run --source=relay:ADDRESS',
    () => import('./relay/command.ts'),
  ],
  'relay status': [
    'list the nodes that hold the current state in their kernels, as relays know them, and wait for it',
    () => import('./relay/status-command.ts'),
  ],
  status: [
    'say on one screen whether this node is well: daemon, source, Services, kernel, connections',
    async () => ({ command: renamed((await import('./inspect/status/status-command.ts')).command) }),
  ],
  dump: ['print what the kernel holds, and for which Service', () => import('./inspect/check/dump.ts')],
  plan: ['print what run would change; change nothing', () => import('./inspect/check/plan.ts')],
  verify: [
    'compare source, daemon and kernel; name every Service that differs',
    () => import('./inspect/check/verify.ts'),
  ],
  why: [
    'print in one sentence what happens to a connection, then its path and every endpoint',
    () => import('./inspect/why/why.ts'),
  ],
  explain: [
    'trace one packet through the rules; print where it goes and why',
    async () => ({ command: (await import('./inspect/why/why.ts')).explainCommand }),
  ],
  trace: [
    'trace real packets through the rules, live: the rule that decided, and what happened to them',
    () => import('./inspect/live/trace.ts'),
  ],
  drops: [
    "print packets that kprobe's rules reject or drop, live, with the reason (--log-rejects)",
    () => import('./inspect/live/drops.ts'),
  ],
  flows: [
    'print tracked connections with their Service, client and endpoint',
    () => import('./inspect/live/flows.ts'),
  ],
  top: [
    'show Services and endpoints by new connections a second, live',
    () => import('./inspect/live/top.ts'),
  ],
  doctor: [
    'check kernel features and settings; list other programs that change the same packets',
    () => import('./inspect/check/doctor.ts'),
  ],
  debug: [
    'write a bundle for a bug report: objects, kernel state, metrics, findings of doctor',
    () => import('./inspect/bundle/debug.ts'),
  ],
  nodes: [
    'run status, verify, why, top or bundle on every node, through the API server (kubectl kprobe)',
    () => import('./inspect/nodes/nodes.ts'),
  ],
  init: ['set sysctls and probe the kernel, then exit; for an init container', () => import('./cli/init.ts')],
  cleanup: ["remove kprobe's objects from the kernel", () => import('./cli/cleanup.ts')],
  version: ['print the version', async () => ({ command: versionCommand })],
  completion: [
    'print a script with which bash, zsh or fish completes commands, flags and values',
    async () => ({ command: (await import('./inspect/completion.ts')).completionCommand(completed) }),
  ],
}

const COMMANDS: readonly Entry[] = Object.entries(TABLE).map(([name, [summary, load]]) => ({
  name,
  summary,
  load,
}))

/** `kprobe status` with a flag of the relay's status, its name in the last release, runs `kprobe relay status`. */
function renamed(command: Command): Command {
  return {
    help: command.help,
    async run(argv, io) {
      const isOfRelay = (argument: string) =>
        /^--(relay|wait|service|revision|at-least|timeout)(=|$)|^(-o|--output)=?wide$/.test(argument)
      if (!argv.some(isOfRelay)) return await command.run(argv, io)
      io.err('kprobe status: these flags are now those of `kprobe relay status`, which runs; use that name\n')
      return await (await import('./relay/status-command.ts')).command.run(argv, io)
    },
  }
}

/** Implements `kprobe --version[=raw]`, too. */
const versionCommand = ownCommand({
  name: 'version',
  description:
    'Prints the version of this build; as JSON or YAML, also those of the runtime, the platform and the bundled packages.',
  flags: [outputFlag(OUTPUTS), flag('--version = true', 'true, or raw for one field a line')],
  read: reader => ({
    output: reader.oneOf('output', OUTPUTS, 'text'),
    isRaw: reader.oneOf('version', ['true', 'raw'], 'true') === 'raw',
  }),
  async run({ output, isRaw }, io) {
    if (output === 'text') io.out(versionText(isRaw))
    else await writeDocument({ ...buildFacts(), packages: bundledPackages() }, output, io)
    return EXIT_FINE
  },
})

/** Loads all commands, and gives what a shell may complete: the second word of a name is a word of the first. */
async function completed(): Promise<readonly Completed[]> {
  const all = await Promise.all(
    COMMANDS.map(async ({ name, summary, load }) => {
      const { flags, words } = (await load()).command.help()
      return { name, summary, flags, words }
    }),
  )
  return all
    .filter(({ name }) => !name.includes(' '))
    .map(each => {
      const below = all.filter(({ name }) => name.startsWith(`${each.name} `))
      const words = [...each.words, ...below.map(({ name }) => name.slice(each.name.length + 1))]
      const more = below.flatMap(({ flags }) => flags)
      const known = new Set(each.flags.map(({ name }) => name))
      return { ...each, words, flags: [...each.flags, ...more.filter(({ name }) => !known.has(name))] }
    })
}

/** Finds the command that the first words name, and the arguments behind them. */
function entryOf([first = '', ...rest]: readonly string[]) {
  const longer = COMMANDS.find(({ name }) => name === `${first} ${rest[0]}`)
  if (longer !== undefined) return { entry: longer, rest: rest.slice(1) }
  return { entry: COMMANDS.find(({ name }) => name === first), rest }
}

/** Runs the command that `argv` (without node and script) names. Gives the exit code. */
export async function runCommand(argv: readonly string[], io: Io): Promise<number> {
  const [name] = argv
  if (name === undefined) {
    io.err(usage(io))
    return EXIT_USAGE
  }
  if (['--help', '-h', '--help-all', 'help'].includes(name)) return await help(argv.slice(1), io)
  if (name === '--version' || name.startsWith('--version=')) return versionCommand.run(argv, io)
  const { entry, rest } = entryOf(argv)
  if (entry === undefined) return unknownCommand(name, io)
  // A flag after -- may be an argument of a program.
  const flags = rest.includes('--') ? rest.slice(0, rest.indexOf('--')) : rest
  if (flags.includes('--version')) return versionCommand.run([], io)
  const { command } = await entry.load()
  const all = flags.includes('--help-all')
  if (all || flags.includes('--help') || flags.includes('-h')) {
    io.out(command.help()({ columns: io.columns, all }))
    return EXIT_FINE
  }
  return await command.run(rest, io)
}

async function help(words: readonly string[], io: Io): Promise<number> {
  const isManual = words.includes('--man')
  const topics = words.filter(word => word !== '--man')
  const [topic] = topics
  const { entry } = entryOf(topics)
  if (entry === undefined && topic !== undefined) return unknownCommand(topic, io)
  if (isManual) io.out(await manual(entry))
  else if (entry === undefined) io.out(usage(io))
  else io.out((await entry.load()).command.help()({ columns: io.columns }))
  return EXIT_FINE
}

/** Gives the manual page of a command, or that of kprobe. */
async function manual(entry: Entry | undefined): Promise<string> {
  const { version, date } = buildInfo()
  const names = ['kprobe', ...COMMANDS.map(({ name }) => `kprobe-${name.replace(' ', '-')}`)]
  const of = entry ?? { name: '', summary: SUMMARY }
  const help = entry === undefined ? OVERVIEW : (await entry.load()).command.help()
  return manualPage({ ...of, help }, { version, date, names })
}

const SUMMARY = 'programs Kubernetes Services into the kernel of this node'
const EXITS =
  'Exit codes: 0 fine, 1 failed, 2 usage or configuration error, 3 there is a difference, or trouble (plan, verify, why, explain, nodes, doctor, status, relay status)'
const OVERVIEW = helpText({
  usage: 'kprobe COMMAND [flags]',
  description: `kprobe ${SUMMARY}.`,
  details: ['Commands:', ...COMMANDS.map(({ name, summary }) => `  ${name}   ${summary}`), EXITS],
  flags: [],
})

function unknownCommand(name: string, io: Io): number {
  const near = nearest(
    name,
    COMMANDS.map(each => each.name),
  )
  const hint = near === undefined ? '' : `; did you mean ${near}?`
  const what = name.startsWith('-') ? 'flag without a command' : 'command'
  io.err(`kprobe: no such ${what}: ${JSON.stringify(name)}${hint}\nsee \`kprobe --help\`\n`)
  return EXIT_USAGE
}

function usage({ columns }: Io): string {
  const width = Math.max(...COMMANDS.map(({ name }) => name.length))
  const lines = [
    `kprobe ${SUMMARY}.`,
    '',
    'Usage:',
    '  kprobe COMMAND [flags]',
    '',
    'Commands:',
    ...COMMANDS.map(({ name, summary }) => `  ${name.padEnd(width)}   ${summary}`),
    '',
    'Flags:',
    '  -h, --help      print help; `kprobe COMMAND --help` for one command, --help-all with its rare flags',
    '      --man       with help: print the manual page, `kprobe help [COMMAND] --man | man -l -`',
    '      --version   print the version; --version=raw one field a line',
    '',
    EXITS,
    '',
  ]
  return wrapLines(lines, columns).join('\n')
}
