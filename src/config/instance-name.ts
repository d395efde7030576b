import { isDnsLabel } from '../model/names.ts'
import { findMode, MODES } from '../modes/registry.ts'
import type { ProxyMode } from './config.ts'
import type { FlagSpec } from './flag.ts'
import { type FlagReader, quote } from './flag-reader.ts'

const FLAG = 'service-proxy-name'

/** The flag of commands that read only the kernel. */
export const INSTANCE_FLAG: FlagSpec = {
  name: FLAG,
  kind: 'text',
  placeholder: 'NAME',
  help: 'only the objects of the proxy of this name; unset: those of the unnamed proxy',
}

/** Reads --service-proxy-name; undefined for the unnamed proxy. An invalid name is an error of the reader. */
export function readInstanceName(reader: FlagReader): string | undefined {
  const name = reader.text(FLAG) ?? ''
  if (name !== '' && !isDnsLabel(name))
    reader.fail(
      `--${FLAG}`,
      `${quote(name)} is not 1 to 63 lower-case letters, digits and hyphens that begin and end with no hyphen`,
    )
  return name === '' ? undefined : name
}

/** Gives the reason why a named proxy cannot use a mode; undefined if it can. */
export function whyNotInstance(name: string, mode: ProxyMode): string | undefined {
  if (isReserved(name)) return `${quote(name)} is reserved: a table of the unnamed proxy has this name`
  const { notNamed, title } = findMode(mode)
  if (notNamed === undefined) return undefined
  const others = MODES.filter(each => each.notNamed === undefined).map(each => each.title)
  const modes = `${others.slice(0, -1).join(', ')} or ${others.at(-1)}`
  return `cannot be used in ${title} mode: ${notNamed}; use ${modes} mode`
}

/** Tests whether a table of this proxy would have the name of a table of the unnamed proxy. */
function isReserved(name: string): boolean {
  const unnamed = new Set(MODES.map(({ tableName }) => tableName(undefined)))
  return MODES.some(({ tableName }) => unnamed.has(tableName(name) ?? ''))
}
