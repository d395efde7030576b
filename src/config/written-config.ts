import { formatGoDuration } from '../base/duration.ts'
import { API_VERSION, KIND } from './config-document.ts'
import type { FieldValue, VmoduleItem } from './field-values.ts'
import { FIELD_PATHS, type FieldPath, fieldAt, isOfMode, isShared } from './fields.ts'
import { isList, type Settings } from './settings.ts'
import { modeSettingsOf } from './settings-from-flags.ts'

/** Formats the effective configuration byte for byte as kube-proxy 1.36 writes it to the file of --write-config-to. */
export function writtenConfig(settings: Settings): string {
  return goYaml(publishedConfig(settings))
}

/** Gives the effective configuration as plain data, as kube-proxy serves it at /configz. */
export function publishedConfig(settings: Settings): YamlMapping {
  const mode = modeSettingsOf(settings)
  const leaves = FIELD_PATHS.flatMap(path => {
    // kube-proxy does not keep portRange at all.
    const isLeftOut = path === 'portRange' || (isShared(path) && !isOfMode(path, mode))
    const value = isLeftOut ? ZEROS[fieldAt(path).kind] : writtenValue(settings, path)
    return value === undefined ? [] : [{ names: path.split('.'), value }]
  })
  return nest([{ names: ['apiVersion'], value: API_VERSION }, { names: ['kind'], value: KIND }, ...leaves])
}

function writtenValue(settings: Settings, path: FieldPath): YamlValue | undefined {
  const { kind, omitEmpty } = fieldAt(path)
  const value = settings.value(path)
  if (
    omitEmpty === true &&
    (value === undefined || value === false || value === '' || value === 0 || value === 0n || isEmpty(value))
  )
    return undefined
  if (value === undefined) return ZEROS[kind]
  return typeof value === 'bigint' ? formatGoDuration(value) : plainValue(value)
}

/** Gives the value as a file would have it, or the default. */
export function printedValue(settings: Settings, path: FieldPath): YamlValue {
  return writtenValue(settings, path) ?? ZEROS[fieldAt(path).kind]
}

function isEmpty(value: FieldValue): boolean {
  return typeof value === 'object' && Object.keys(value).length === 0
}

function plainValue(value: Exclude<FieldValue, bigint>): YamlValue {
  if (typeof value !== 'object') return value
  if (!isList(value)) return { ...value }
  const items: readonly (string | VmoduleItem)[] = value
  return items.map(item => (typeof item === 'string' ? item : { ...item }))
}

const ZEROS = {
  text: '',
  switch: '',
  bool: false,
  int32: 0,
  uint32: 0,
  float: 0,
  duration: '0s',
  flush: '0s',
  quantity: '0',
  texts: null,
  gates: null,
  vmodule: null,
} as const

interface Leaf {
  readonly names: readonly string[]
  readonly value: YamlValue
}

function nest(leaves: readonly Leaf[]): YamlMapping {
  const groups = new Map<string, Leaf[]>()
  for (const { names, value } of leaves) {
    const [name = '', ...rest] = names
    const group = groups.get(name) ?? []
    groups.set(name, group)
    group.push({ names: rest, value })
  }
  const entries = [...groups].map(([name, group]): [string, YamlValue] => {
    const [first] = group
    return [name, first?.names.length === 0 ? first.value : nest(group)]
  })
  return Object.fromEntries(entries)
}

type YamlValue = string | number | boolean | null | readonly YamlValue[] | YamlMapping
interface YamlMapping {
  readonly [name: string]: YamlValue
}

/** Writes plain data as Go's YAML library does: names in order, lists not indented, quotes only where needed. */
export function goYaml(value: YamlMapping): string {
  return `${mappingLines(value).join('\n')}\n`
}

function mappingLines(mapping: YamlMapping): readonly string[] {
  return Object.entries(mapping)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([name, value]) => {
      if (isYamlList(value) && value.length > 0) return [`${scalar(name)}:`, ...value.flatMap(itemLines)]
      if (isMapping(value) && Object.keys(value).length > 0)
        return [`${scalar(name)}:`, ...indented(mappingLines(value))]
      return [`${scalar(name)}: ${inline(value)}`]
    })
}

function itemLines(item: YamlValue): readonly string[] {
  const lines = isMapping(item) && Object.keys(item).length > 0 ? mappingLines(item) : [inline(item)]
  return lines.map((line, index) => (index === 0 ? `- ${line}` : `  ${line}`))
}

function indented(lines: readonly string[]): readonly string[] {
  return lines.map(line => `  ${line}`)
}

function inline(value: YamlValue): string {
  if (isYamlList(value)) return '[]'
  if (isMapping(value)) return '{}'
  return typeof value === 'string' ? scalar(value) : String(value)
}

function isYamlList(value: YamlValue): value is readonly YamlValue[] {
  return Array.isArray(value)
}

function isMapping(value: YamlValue): value is YamlMapping {
  return typeof value === 'object' && value !== null && !isYamlList(value)
}

/** Plain texts with another meaning in YAML 1.1: null, booleans, numbers, dates, a merge. */
const AMBIGUOUS =
  /^(|~|null|Null|NULL|<<|[yYnN]|yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|[-+]?(\.\d+|\d[\d_]*(\.\d*)?)([eE][-+]?\d+)?|[-+]?0[xX][\da-fA-F_]+|[-+]?0b[01_]+|[-+]?0o[0-7_]+|\d{4}-\d\d?-\d\d?([Tt ].*)?|[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?)$/

/** Texts that are invalid as a plain scalar. */
const NOT_PLAIN = /^[#,[\]{}&*!|>'"%@`]|^(---|\.\.\.)|^[-?:]( |$)|: |:$| #|^ | $/

function scalar(text: string): string {
  if (AMBIGUOUS.test(text) || /[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]/.test(text)) return JSON.stringify(text)
  return NOT_PLAIN.test(text) ? `'${text.replaceAll("'", "''")}'` : text
}
