export type YamlValue = string | number | boolean | null | readonly YamlValue[] | YamlMapping
export interface YamlMapping {
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
