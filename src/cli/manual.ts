import type { FlagSpec } from '../config/flag.ts'
import type { HelpPage } from '../config/help.ts'

/** What a manual page says of a command. */
interface Manual {
  /** Empty for the page of kprobe itself. */
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

/** Formats the manual page of a command (man(7), section 1), with what its help says and all of its flags. */
export function manualPage({ name, summary, help }: Manual, { version, date, names }: PageOf): string {
  const { usage, description, details = [] } = help.text
  const title = name === '' ? 'kprobe' : `kprobe-${name}`
  return [
    `.TH ${title.toUpperCase()} 1 "${date.slice(0, 10)}" "kprobe ${escaped(version)}" "kprobe"`,
    '.SH NAME',
    `${escaped(title)} \\- ${escaped(summary)}`,
    '.SH SYNOPSIS',
    `.B ${escaped(usage)}`,
    '.SH DESCRIPTION',
    ...description.split('\n\n').flatMap(text => ['.PP', line(text.replaceAll('\n', ' '))]),
    ...details.flatMap(detailLines),
    ...(help.flags.length === 0 ? [] : ['.SH OPTIONS', ...help.flags.flatMap(flagLines)]),
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

function flagLines({ name, short, placeholder, help, default: fallback }: FlagSpec): readonly string[] {
  const long = name.length === 1 ? `-${name}` : `--${name}`
  const names = short === undefined || short === name ? long : `-${short}, ${long}`
  const value = placeholder === undefined ? '' : ` ${placeholder}`
  const wanted = fallback === undefined ? '' : ` (default ${fallback})`
  return ['.TP', `.B ${escaped(names + value)}`, line(`${help}${wanted}`)]
}

/** A line of text: a period or a quote at its begin would be a request. */
function line(text: string): string {
  return escaped(text).replace(/^([.'])/, '\\&$1')
}

/** Escapes what roff reads: backslashes, and hyphens that stand for the ASCII character. */
function escaped(text: string): string {
  return text.replaceAll('\\', '\\e').replaceAll('-', '\\-')
}
