import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { FIELD_PATHS } from '../../../src/config/fields.ts'
import { whyNotConditionType } from '../../../src/config/read-config.ts'
import { MODES } from '../../../src/modes/registry.ts'

/* What is right about the chart without helm; test/reference/chart.long.test.ts renders it. */

const ROOT = fileURLToPath(new URL('../../../', import.meta.url))
const read = (path: string) => readFileSync(ROOT + path, 'utf8')
const chart = (path: string) => read(`deploy/helm/kprobe/${path}`)

type Json = Readonly<Record<string, unknown>>

function isJson(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function readJson(value: unknown): Json {
  if (!isJson(value)) throw new Error(`not an object: ${JSON.stringify(value)}`)
  return value
}

const values = readJson(parse(chart('values.yaml')))
const schema = readJson(JSON.parse(chart('values.schema.json')))
const propertiesOf = (of: unknown): Json => readJson(readJson(of).properties)

/** Paths of the values that a schema knows. */
function knownPaths(of: unknown, prefix = ''): readonly string[] {
  return Object.entries(propertiesOf(of)).flatMap(([name, inner]) =>
    isJson(inner) && isJson(inner.properties) ? knownPaths(inner, `${prefix}${name}.`) : [prefix + name],
  )
}

/** Schemas with properties that let others through. */
function openSchemas(of: unknown, path = ''): readonly string[] {
  if (!isJson(of)) return []
  const own = isJson(of.properties) && of.additionalProperties !== false ? [path] : []
  return [...own, ...Object.entries(of).flatMap(([name, inner]) => openSchemas(inner, `${path}/${name}`))]
}

describe('the chart', () => {
  it('has the version of the package', () => {
    const { version } = JSON.parse(read('package.json'))
    expect(parse(chart('Chart.yaml'))).toMatchObject({ name: 'kprobe', version, appVersion: version })
  })

  it('is in the package', () => {
    expect(JSON.parse(read('package.json')).files).toContain('deploy/helm')
  })

  it('has a schema of exactly its values', () => {
    const { global, ...known } = propertiesOf(schema)
    expect(global).toMatchObject({ type: 'object' })
    expect(Object.keys(known).sort()).toEqual(Object.keys(values).sort())
    for (const [name, value] of Object.entries(values)) {
      const inner = readJson(known[name])
      if (!isJson(value) || Object.keys(value).length === 0) continue
      expect(Object.keys(propertiesOf(inner)), name).toEqual(expect.arrayContaining(Object.keys(value)))
    }
  })

  it('refuses unknown values at every level', () => {
    expect(openSchemas(schema)).toEqual([])
  })

  it('takes every field of the configuration, and no other', () => {
    const fields = [...FIELD_PATHS, 'apiVersion', 'kind']
    expect([...knownPaths(propertiesOf(schema).config)].sort()).toEqual([...fields].sort())
  })

  it('values.schema.json takes every proxy mode', () => {
    const modes = MODES.map(({ name }) => name)
    expect(propertiesOf(schema).mode).toEqual({ enum: expect.arrayContaining(modes) })
    expect(readJson(propertiesOf(schema).mode).enum).toHaveLength(modes.length)
  })

  it.each([
    'ServiceProxyReady',
    'example.com/Ready-1',
    'a: b # c',
    'a/b/c',
    '-a',
    'a-',
    '',
    'a'.repeat(316),
    'a'.repeat(317),
  ])('takes the condition %s if kprobe does', type => {
    const { pattern, maxLength } = readJson(propertiesOf(propertiesOf(schema).nodeCondition).type)
    const isTaken = new RegExp(String(pattern)).test(type) && type.length <= Number(maxLength)
    expect(isTaken).toBe(whyNotConditionType(type) === undefined)
  })

  it('has a comment above every value', () => {
    const lines = chart('values.yaml').split('\n')
    const bare = Object.keys(values).filter(name => {
      const above = lines[lines.findIndex(line => line.startsWith(`${name}:`)) - 1]
      return above?.startsWith('#') !== true
    })
    expect(bare).toEqual([])
  })
})
