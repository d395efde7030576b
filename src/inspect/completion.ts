import { systemClock } from '../base/clock.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, type Io } from '../cli/io.ts'
import { failWord, ownCommand } from '../cli/request.ts'
import { type FlagSpec, quote } from '../config/flag.ts'
import { MODEL_SOCKET_FLAG } from '../config/flags.ts'
import { defaultAdminSocket } from '../config/own-flags.ts'
import { askDaemon } from './admin-client.ts'

const SCRIPTS = { bash: bashScript, zsh: zshScript, fish: fishScript } as const
const FLAGS: readonly FlagSpec[] = [
  { ...MODEL_SOCKET_FLAG, help: 'unix socket of the daemon that knows the Services' },
]

/** Makes the command. It gets the other commands from the table that has it, too. */
export function completionCommand(commands: () => Promise<readonly Completed[]>): Command {
  return ownCommand({
    name: 'completion',
    usage: 'bash|zsh|fish|services [flags] [-- WORDS]',
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
    flags: FLAGS,
    takesArguments: true,
    read(reader) {
      const [what, ...more] = reader.positionals
      if (what === 'services') return { socket: reader.text('admin-socket') || socketIn(more) }
      for (const argument of more) reader.fail(quote(argument), 'no such argument')
      if (what !== undefined && isShell(what)) return { shell: what }
      failWord(reader, 'SHELL', what, `there are ${Object.keys(SCRIPTS).join(', ')}, services`)
      return undefined
    },
    async run({ shell, socket = '' }, io) {
      if (shell === undefined) return await printServices(socket, io)
      io.out(SCRIPTS[shell](await commands()))
      return EXIT_FINE
    },
  })
}

function isShell(word: string): word is keyof typeof SCRIPTS {
  return Object.hasOwn(SCRIPTS, word)
}

/** Gives the socket of the daemon that the words of a command line mean. */
function socketIn(words: readonly string[]): string {
  return (
    valueIn(words, '--admin-socket') ||
    defaultAdminSocket(valueIn(words, '--service-proxy-name') || undefined)
  )
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

/** Prints the names that are safe to complete; the shell evaluates them. Errors would be in the way of the prompt. */
async function printServices(socket: string, io: Io): Promise<number> {
  const late = new AbortController()
  // The shell is blocked until the names are printed.
  const cancel = systemClock.after(1_000, () => late.abort())
  try {
    const names = await askDaemon(socket, '/services', late)
    const safe = (Array.isArray(names) ? names : []).filter(isSafeName).sort()
    io.out(
      safe
        // A shell shows no more in a useful way.
        .slice(0, 5_000)
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

export interface Completed {
  readonly name: string
  readonly summary: string
  readonly flags: readonly FlagSpec[]
  readonly words: readonly string[]
}

function namesOf({ name, short }: FlagSpec): readonly string[] {
  const long = name.length === 1 ? `-${name}` : `--${name}`
  return short === undefined || short === name ? [long] : [long, `-${short}`]
}

function takesValue({ kind }: FlagSpec): boolean {
  return kind !== 'bool'
}

/** Bash takes = for a word of its own, if COMP_WORDBREAKS has it. */
const BASH_HEAD = `# Completion of kprobe in bash: source <(kprobe completion bash)
_kprobe() {
  local cur=\${COMP_WORDS[COMP_CWORD]} prev=\${COMP_WORDS[COMP_CWORD-1]} command=\${COMP_WORDS[1]}
  local flag= prefix= words=
  if [[ $cur == --*=* ]]; then flag=\${cur%%=*} prefix=\${cur%%=*}= cur=\${cur#*=}
  elif [[ $cur == = ]]; then flag=$prev cur=
  elif [[ $prev == = ]]; then flag=\${COMP_WORDS[COMP_CWORD-2]}
  elif [[ $prev == -* ]]; then flag=$prev
  fi`

/** Makes a bash script. It needs nothing of the package bash-completion. */
function bashScript(commands: readonly Completed[]): string {
  const names = commands.map(({ name }) => name).join(' ')
  return [
    BASH_HEAD,
    '  COMPREPLY=()',
    '  if ((COMP_CWORD == 1)); then',
    `    COMPREPLY=($(compgen -W '${names} help' -- "$cur"))`,
    '    return',
    '  fi',
    '  case "$command $flag" in',
    ...commands.flatMap(bashValues),
    '    *)',
    '      [[ -n $prefix || $prev == = ]] && return',
    '      case $command in',
    ...commands.flatMap(({ name, flags, words }) => {
      const all = flags.flatMap(namesOf).join(' ')
      return [
        `        ${name}) if [[ $cur == -* ]]; then words='${all}'; else words='${words.join(' ')}'; fi ;;`,
      ]
    }),
    `        help) words='${names}' ;;`,
    '      esac ;;',
    '  esac',
    '  COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$cur"))',
    '}',
    // Nothing to complete: the name of a file.
    'complete -o default -F _kprobe kprobe',
    '',
  ].join('\n')
}

function bashValues({ name: command, flags }: Completed): readonly string[] {
  const pattern = (flag: FlagSpec) =>
    namesOf(flag)
      .map(name => `'${command} ${name}'`)
      .join(' | ')
  const valued = flags.filter(takesValue)
  const listed = valued.filter(({ choices, namesService }) => (choices ?? namesService) !== undefined)
  const others = valued.filter(flag => !listed.includes(flag))
  return [
    ...listed.map(flag => {
      const words =
        flag.choices === undefined
          ? `$(kprobe completion services -- "\${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)`
          : `'${flag.choices.join(' ')}'`
      return `    ${pattern(flag)}) words=${words} ;;`
    }),
    ...(others.length === 0 ? [] : [`    ${others.map(pattern).join(' | ')}) return ;;`]),
  ]
}

const ZSH_HEAD = `#compdef kprobe
# Completion of kprobe in zsh: source <(kprobe completion zsh)
_kprobe_services() {
  local -a names
  names=(\${(f)"$(kprobe completion services -- $words 2>/dev/null)"})
  compadd -a names
}`

/** Makes a zsh script, for a folder of $fpath as well. */
export function zshScript(commands: readonly Completed[]): string {
  const described = [...commands, { name: 'help', summary: 'print the help of a command' }]
  return [
    ZSH_HEAD,
    '_kprobe() {',
    '  local -a commands',
    '  commands=(',
    ...described.map(({ name, summary }) => `    ${quoted(`${name}:${summary}`)}`),
    '  )',
    '  if ((CURRENT == 2)); then',
    '    _describe command commands',
    '    return',
    '  fi',
    '  local command=$words[2]',
    '  shift words',
    '  ((CURRENT--))',
    '  case $command in',
    '    help) _describe command commands ;;',
    ...commands.flatMap(({ name, flags, words }) => [
      `    ${name})`,
      '      _arguments \\',
      ...flags.flatMap(zshFlag).map(spec => `        ${quoted(spec)} \\`),
      `        ${quoted(words.length === 0 ? '*: :_files' : `1: :(${words.join(' ')})`)} ;;`,
    ]),
    '  esac',
    '}',
    'if [[ $funcstack[1] == _kprobe ]]; then _kprobe "$@"; else compdef _kprobe kprobe; fi',
    '',
  ].join('\n')
}

function zshFlag(flag: FlagSpec): readonly string[] {
  const help = zshText(inShort(flag))
  const value = zshText(flag.placeholder ?? flag.name)
  const values =
    flag.choices !== undefined
      ? `(${flag.choices.join(' ')})`
      : flag.namesService === true
        ? '_kprobe_services'
        : '_files'
  return namesOf(flag).map(name => {
    const equals = takesValue(flag) && name.startsWith('--') ? '=' : ''
    return `${name}${equals}[${help}]${takesValue(flag) ? `:${value}:${values}` : ''}`
  })
}

function zshText(text: string): string {
  return text.replace(/[[\]\\:]/g, '\\$&')
}

function fishScript(commands: readonly Completed[]): string {
  const names = commands.map(({ name }) => name).join(' ')
  const isFirst = '-n __fish_use_subcommand'
  return [
    '# Completion of kprobe in fish: kprobe completion fish | source',
    'complete -c kprobe -f',
    ...commands.map(
      ({ name, summary }) => `complete -c kprobe ${isFirst} -a ${name} -d ${fishQuoted(summary)}`,
    ),
    `complete -c kprobe ${isFirst} -a help -d 'print the help of a command'`,
    `complete -c kprobe -n '__fish_seen_subcommand_from help' -a '${names}'`,
    ...commands.flatMap(({ name, flags, words }) => {
      const after = `complete -c kprobe -n '__fish_seen_subcommand_from ${name}'`
      const positional = words.length === 0 ? [] : [`${after} -a '${words.join(' ')}'`]
      return [...positional, ...flags.map(flag => `${after} ${fishFlag(flag)}`)]
    }),
    '',
  ].join('\n')
}

function fishFlag(flag: FlagSpec): string {
  const names = namesOf(flag).map(name =>
    name.startsWith('--') ? `-l ${name.slice(2)}` : `-s ${name.slice(1)}`,
  )
  const values =
    flag.choices !== undefined
      ? `-x -a '${flag.choices.join(' ')}'`
      : flag.namesService === true
        ? "-x -a '(kprobe completion services -- (commandline -opc) 2>/dev/null)'"
        : takesValue(flag)
          ? '-r -F'
          : ''
  return [...names, values, `-d ${fishQuoted(inShort(flag))}`].filter(part => part !== '').join(' ')
}

const SHORT_MAX = 80

function inShort({ help }: FlagSpec): string {
  const [first = ''] = help.split(/[;:] /)
  return first.length <= SHORT_MAX ? first : `${first.slice(0, SHORT_MAX - 1)}…`
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`
}

function fishQuoted(text: string): string {
  return `'${text.replace(/['\\]/g, '\\$&')}'`
}
