/** A flag as the help of a Kubernetes component shows it. */
interface HelpFlag {
  /** Without the dashes. */
  readonly name: string
  readonly shorthand: string | undefined
  /** As written there: `duration`, `strings`; bool when nothing is. */
  readonly type: string
  /** As written there, quotes removed; empty when none is. */
  readonly default: string
}

const FLAG = /^ {2,}(?:-(\w), )? *--([\w-]+)(\[?\S*)(?: (\S+))?(?: {2,}|$)(.*)$/
const DEFAULT = / \(default (.*)\)$/

/** Reads what cobra prints for --help. */
export function parseHelp(help: string): readonly HelpFlag[] {
  return help.split('\n').flatMap(line => {
    const match = FLAG.exec(line)
    if (match === null) return []
    const [, shorthand, name = '', , type = 'bool', words = ''] = match
    return [{ name, shorthand, type: type.replace(/\[=.*$/, ''), default: defaultOf(words) }]
  })
}

function defaultOf(words: string): string {
  return (DEFAULT.exec(words)?.[1] ?? '').replace(/^"(.*)"$/, '$1')
}
