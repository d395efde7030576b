import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'
import { parseGoDuration } from '../../../../src/base/duration.ts'
import { defaultOf } from '../../../../src/config/flag.ts'
import { RUN_FLAGS } from '../../../../src/config/flags.ts'
import { parseRequest } from '../../../../src/config/load-config.ts'
import { writtenConfig } from '../../../../src/config/written-config.ts'
import { createMetrics } from '../../../support/metrics.ts'
import { readFileOfDifferences } from '../../../support/reference/differences.ts'
import { parseMetrics } from '../../../support/reference/metrics-text.ts'
import { WRITTEN_FLAGS, WRITTEN_IPVS_FLAGS } from '../../../support/reference/written-flags.ts'

/*
 * What kube-proxy shows, as test/reference/golden.long.test.ts saw it, and what we show. Differences on purpose stand in
 * test/reference/differences.yaml.
 */
const GOLDEN = fileURLToPath(new URL('../../../reference/golden/', import.meta.url))
const { flagDefaults, writtenLines, metricsWithout } = readFileOfDifferences()

function lines(name: string): readonly string[] {
  return golden(name).trimEnd().split('\n')
}

function golden(name: string): string {
  return readFileSync(GOLDEN + name, 'utf8')
}

describe('flags', () => {
  const ours = new Map(RUN_FLAGS.map(flag => [flag.name, flag]))
  const theirs = lines('flags.txt')
    .map(line => /^--(\S+)(?: -(\w))? (\S+) ?(.*)$/.exec(line) ?? [])
    .map(([, name = '', short, type = '', value = '']) => ({ name, short, type, value }))
    .filter(({ name }) => name !== 'help')

  test.each(theirs)('--$name is taken, with its short form', ({ name, short }) => {
    expect(ours.get(name)).toMatchObject({ name, ...(short === undefined ? {} : { short }) })
  })

  test.each(lines('hidden-flags.txt'))('--%s, which is not shown, is taken', name => {
    expect(ours.has(name)).toBe(true)
  })

  test('have the same defaults, but for those that are listed', () => {
    const others = theirs.flatMap(({ name, type, value }) => {
      const flag = ours.get(name)
      const own = flag === undefined ? '' : defaultOf(flag)
      return meaning(type, own) === meaning(type, value) ? [] : [[name, own] as const]
    })
    expect(new Map(others)).toEqual(flagDefaults)
  })
})

/** Go's help leaves zeros out. */
function meaning(type: string, value: string): string {
  switch (type) {
    case 'bool':
      return value === '' ? 'false' : value
    case 'duration':
      return String(parseGoDuration(value === '' ? '0' : value))
    case 'quantity':
    case 'Level':
      return value === '' ? '0' : value
    default:
      return value
  }
}

describe('the written configuration', () => {
  const written = (argv: readonly string[]): string => {
    const parsed = parseRequest(argv, { hostName: 'a-host' }, undefined)
    if (parsed.kind !== 'ok') throw new Error(JSON.stringify(parsed))
    return writtenConfig(parsed.value.settings)
  }

  test('is the same to the byte when the mode and the periods are given', () => {
    expect(written(WRITTEN_FLAGS)).toBe(golden('write-config-flags.yaml'))
    expect(written(WRITTEN_IPVS_FLAGS)).toBe(golden('write-config-ipvs.yaml'))
  })

  test('differs in the defaults that are listed', () => {
    const [own, their] = [written([]).split('\n'), golden('write-config.yaml').split('\n')]
    expect(their.filter(line => !own.includes(line)).sort()).toEqual(
      writtenLines.map(one => one.kubeProxy).sort(),
    )
    expect(own.filter(line => !their.includes(line))).toEqual(
      expect.arrayContaining(writtenLines.map(one => one.kprobe)),
    )
  })
})

test('kube-proxy has no metric that is missing here and not listed', async () => {
  const known = (name: string): boolean => metricsWithout.some(prefix => name.startsWith(prefix))
  const ours = parseMetrics(await createMetrics().text()).map(({ name, type }) => `${name} ${type}`)
  const theirs = lines('metrics.txt').map(line => line.split(' ').slice(0, 2).join(' '))
  expect(theirs.filter(line => !known(line) && !ours.includes(line))).toEqual([])
  expect(metricsWithout.filter(prefix => !theirs.some(line => line.startsWith(prefix)))).toEqual([])
})
