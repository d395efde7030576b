import type { FlagSpec } from './flag.ts'

interface HelpText {
  readonly usage: string
  /** Paragraphs are separated by an empty line; single line breaks have no meaning. */
  readonly description: string
  readonly flags: readonly FlagSpec[]
  /** Lines such as the positional arguments or examples, printed between description and flags. */
  readonly details?: readonly string[]
}

interface HelpForm {
  readonly columns?: number | undefined
  readonly all?: boolean
}

/** Prints help in this form, and lists the completions of a shell. */
export interface HelpPage {
  (form?: HelpForm): string
  readonly text: Pick<HelpText, 'usage' | 'description' | 'details'>
  readonly flags: readonly FlagSpec[]
  /** The valid arguments: those between brackets in the usage line. */
  readonly words: readonly string[]
}

const WIDTH = { min: 60, narrow: 80, unknown: 100, max: 120 } as const
/** Column of the help text of a flag; on a narrow terminal that text begins below most flags. */
const COLUMN = { narrow: 12, wide: 34 } as const

const HELP_ALL: FlagSpec = { name: 'help-all', kind: 'bool', help: 'print all flags' }

/** Formats help as Go's commands do: description, usage, and the flags in groups with their defaults. */
export function helpText(help: HelpText): HelpPage {
  const visible = help.flags.filter(({ hidden }) => hidden !== true)
  const rare = visible.filter(flag => flag.rare === true).length
  const page = ({ columns = WIDTH.unknown, all = false }: HelpForm = {}) => {
    const width = widthOf(columns)
    const shown = all ? visible : visible.filter(flag => flag.rare !== true)
    const flags = rare === 0 ? shown : [...shown, HELP_ALL]
    const command = /^kprobe \S+/.exec(help.usage)?.[0] ?? 'kprobe'
    const more = `${rare} more flags: ${command} --help-all`
    return [
      ...help.description.split('\n\n').flatMap(text => [...wrap(text.replaceAll('\n', ' '), width), '']),
      'Usage:',
      `  ${help.usage}`,
      ...(help.details === undefined ? [] : ['', ...wrapLines(help.details, columns)]),
      ...groupsOf(flags).flatMap(({ title, flags }) => [
        '',
        `${title}:`,
        ...flags.flatMap(flag => flagLines(flag, width)),
      ]),
      ...(all || rare === 0 ? [] : ['', more]),
      '',
    ].join('\n')
  }
  const [, words = ''] = /^kprobe \S+ (?:\[(?=[^\]]*\|))?([a-z]+(?:\|[a-z]+)*)/.exec(help.usage) ?? []
  return Object.assign(page, {
    text: help,
    flags: visible,
    words: words.split('|').filter(word => word !== ''),
  })
}

/** Wraps lines that are too long for the terminal, as helpText() wraps details. */
export function wrapLines(lines: readonly string[], columns: number = WIDTH.unknown): readonly string[] {
  return lines.flatMap(line => wrapIndented(line, widthOf(columns)))
}

function widthOf(columns: number): number {
  return Math.min(Math.max(columns, WIDTH.min), WIDTH.max)
}

interface FlagGroup {
  readonly title: string
  readonly flags: readonly FlagSpec[]
}

/** Groups flags in the order of the groups' first flags; the flags of the command alone, without a group, come first. */
function groupsOf(flags: readonly FlagSpec[]): readonly FlagGroup[] {
  const titles = new Set(flags.flatMap(({ group }) => group ?? []))
  const groups = [...titles].map(title => ({ title, flags: flags.filter(({ group }) => group === title) }))
  const others = flags.filter(({ group }) => group === undefined)
  if (others.every(({ name }) => name === HELP_ALL.name || name === 'help'))
    return [...groups, ...(others.length === 0 ? [] : [{ title: 'Help', flags: others }])].map(sorted)
  const title = groups.length === 0 ? 'Flags' : 'Flags of this command'
  return [{ title, flags: others }, ...groups].map(sorted)
}

function sorted({ title, flags }: FlagGroup): FlagGroup {
  return { title, flags: flags.toSorted((a, b) => (a.name < b.name ? -1 : 1)) }
}

function flagLines(flag: FlagSpec, width: number): string[] {
  const label = `  ${usageOf(flag)}`
  const column = width < WIDTH.narrow ? COLUMN.narrow : COLUMN.wide
  const lines = wrap(meaningOf(flag), width - column).map(line => ' '.repeat(column) + line)
  if (label.length > column - 2) return [label, ...lines]
  const [first = '', ...rest] = lines
  return [label + first.slice(label.length), ...rest]
}

function usageOf({ name, short, placeholder }: FlagSpec): string {
  const long = `${name.length === 1 ? '-' : '--'}${name}`
  const names = short === undefined || short === name ? long : `-${short}, ${long}`
  return placeholder === undefined ? names : `${names} ${placeholder}`
}

function meaningOf({ help, default: fallback }: FlagSpec): string {
  return fallback === undefined ? help : `${help} (default ${fallback})`
}

/** Wraps a line that is too long. Below `  words   meaning`, continuation lines align with the meaning. */
function wrapIndented(line: string, width: number): string[] {
  if (line.length <= width) return [line]
  const [label = ''] = /^ *(?:\S+(?: \S+)* {2,})?/.exec(line) ?? []
  const [first = '', ...rest] = wrap(line.slice(label.length), width - label.length)
  return [label + first, ...rest.map(each => ' '.repeat(label.length) + each)]
}

function wrap(text: string, width: number): string[] {
  const lines: string[] = []
  let line = ''
  for (const word of text.split(' ')) {
    if (line !== '' && line.length + 1 + word.length > width) {
      lines.push(line)
      line = word
    } else line = line === '' ? word : `${line} ${word}`
  }
  lines.push(line)
  return lines
}

interface Manual {
  readonly name: string
  readonly summary: string
  readonly help: HelpPage
}

interface PageOf {
  readonly version: string
  /** RFC 3339; empty if unknown. */
  readonly date: string
  readonly names: readonly string[]
}

/** Formats the manual page of a command (man(7), section 1), with its help and all of its flags. */
export function manualPage({ name, summary, help }: Manual, { version, date, names }: PageOf): string {
  const { usage, description, details = [] } = help.text
  const title = name === '' ? 'kprobe' : `kprobe-${name.replace(' ', '-')}`
  return [
    `.TH ${title.toUpperCase()} 1 "${date.slice(0, 10)}" "kprobe ${escaped(version)}" "kprobe"`,
    '.SH NAME',
    `${escaped(title)} \\- ${escaped(summary)}`,
    '.SH SYNOPSIS',
    `.B ${escaped(usage)}`,
    '.SH DESCRIPTION',
    ...description.split('\n\n').flatMap(text => ['.PP', line(text.replaceAll('\n', ' '))]),
    ...details.flatMap(detailLines),
    ...(help.flags.length === 0 ? [] : ['.SH OPTIONS', ...help.flags.flatMap(optionLines)]),
    '.SH SEE ALSO',
    names
      .filter(each => each !== title)
      .map(each => `.BR ${escaped(each)} (1)`)
      .join(',\n'),
    '',
  ].join('\n')
}

/** `  words   meaning` becomes an entry of a list, a line with a margin an example, and any other a paragraph. */
function detailLines(text: string): readonly string[] {
  const [, term, meaning] = /^ +(\S+(?: \S+)*) {2,}(.+)$/.exec(text) ?? []
  if (term !== undefined && meaning !== undefined) return ['.TP', `.B ${escaped(term)}`, line(meaning)]
  if (text === '') return []
  return text.startsWith(' ') ? ['.IP', line(text.trim())] : ['.PP', line(text)]
}

function optionLines(flag: FlagSpec): readonly string[] {
  return ['.TP', `.B ${escaped(usageOf(flag))}`, line(meaningOf(flag))]
}

/** A line of text: a period or a quote at its begin would be a request. */
function line(text: string): string {
  return escaped(text).replace(/^([.'])/, '\\&$1')
}

/** Escapes what roff reads: backslashes, and hyphens that stand for the ASCII character. */
function escaped(text: string): string {
  return text.replaceAll('\\', '\\e').replaceAll('-', '\\-')
}
