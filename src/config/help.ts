import type { FlagSpec } from './flag.ts'

export interface HelpText {
  /** `kprobe run [flags]`. */
  readonly usage: string
  readonly description: string
  readonly flags: readonly FlagSpec[]
  /** Lines such as the positional arguments or examples, printed between description and flags. */
  readonly details?: readonly string[]
}

const WIDTH = 100
const INDENT = 6

/** Help as Go's commands print it: a flag a paragraph, its default at the end, one list for each group. */
export function helpText(help: HelpText): string {
  return [
    help.description,
    '',
    'Usage:',
    `  ${help.usage}`,
    ...(help.details === undefined ? [] : ['', ...help.details]),
    ...groupsOf(help.flags).flatMap(({ title, flags }) => ['', `${title}:`, ...flags.flatMap(flagLines)]),
    '',
  ].join('\n')
}

interface FlagGroup {
  readonly title: string
  readonly flags: readonly FlagSpec[]
}

/** In the order in which groups first appear; flags without one come last. */
function groupsOf(flags: readonly FlagSpec[]): readonly FlagGroup[] {
  const shown = flags.filter(({ hidden }) => hidden !== true)
  const titles = new Set(shown.flatMap(({ group }) => group ?? []))
  const groups = [...titles].map(title => ({ title, flags: shown.filter(({ group }) => group === title) }))
  const others = shown.filter(({ group }) => group === undefined)
  const last = { title: groups.length === 0 ? 'Flags' : 'Other flags', flags: others }
  return [...groups, ...(others.length === 0 ? [] : [last])].map(sorted)
}

function sorted({ title, flags }: FlagGroup): FlagGroup {
  return { title, flags: flags.toSorted((a, b) => (a.name < b.name ? -1 : 1)) }
}

function flagLines(flag: FlagSpec): string[] {
  const short = flag.short === undefined || flag.short === flag.name ? '' : `-${flag.short}, `
  const dashes = flag.name.length === 1 ? '-' : '--'
  const placeholder = flag.placeholder === undefined ? '' : ` ${flag.placeholder}`
  const fallback = flag.default === '' || flag.default === 'false' ? '' : ` (default ${flag.default})`
  return [`  ${short}${dashes}${flag.name}${placeholder}`, ...wrap(`${flag.help}${fallback}`)]
}

function wrap(text: string): string[] {
  const lines: string[] = []
  let line = ''
  for (const word of text.split(' ')) {
    if (line !== '' && INDENT + line.length + 1 + word.length > WIDTH) {
      lines.push(line)
      line = word
    } else line = line === '' ? word : `${line} ${word}`
  }
  lines.push(line)
  return lines.map(each => ' '.repeat(INDENT) + each)
}
