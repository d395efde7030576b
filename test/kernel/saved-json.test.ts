import { spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { runInProcess } from '../support/command.ts'
import { Daemons, EXAMPLE_FLAGS } from '../support/daemon.ts'
import { freshNetns } from '../support/lab/netns.ts'

/* What docs/differences.md says of nft's JSON under "Saved rulesets": the same is true of rules that nft has written itself. */

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const PAGE = readFileSync(`${ROOT}docs/differences.md`, 'utf8').split('## Saved rulesets')[1] ?? ''

const NO_CONCATENATED_DATA = "Invalid map type 'ipv4_addr . inet_service'"
const NO_UPDATE_OF_MAPS = 'stmt ops map have no json callback'
const NO_TYPEOF = 'Try "typeof expression" instead of "type datatype"'
const NO_CHAIN_YET = 'No such file or directory'

interface Listed {
  readonly text: string
  readonly warnings: readonly string[]
}

function nft(args: readonly string[], input = ''): Listed {
  const { stdout, stderr } = spawnSync('nft', args, { encoding: 'utf8', input, maxBuffer: 64 << 20 })
  return { text: stdout, warnings: stderr.split('\n').filter(line => line !== '') }
}

/** By a file: nft opens the standard input by its name for JSON, which a socket has not. */
function load(json: string, ...flags: readonly string[]): string {
  const file = join(folders.folder(), 'saved.json')
  writeFileSync(file, json)
  return nft(['-j', ...flags, '-f', file]).warnings.join('\n')
}

/** Why nft does not load the JSON that it has listed; empty where it does, as a later version may. */
const refusalOf = (json: string): string => load(json, '-c')

const folders = new Daemons()

beforeEach(() => freshNetns())

afterEach(() => folders.end())

it('is quoted on the page', () => {
  for (const words of [NO_CONCATENATED_DATA, NO_UPDATE_OF_MAPS, NO_TYPEOF, NO_CHAIN_YET])
    expect(PAGE).toContain(words)
})

describe('the ruleset of nftables mode', () => {
  it('is listed as JSON with a warning for each rule of session affinity alone, and refused for its maps', async () => {
    expect((await runInProcess(['run', '--once', ...EXAMPLE_FLAGS])).code).toBe(0)
    const text = nft(['list', 'ruleset'])
    const json = nft(['-j', 'list', 'ruleset'])
    const affinity = text.text.match(/ (?:add|update|delete) @affinity \{/g) ?? []
    expect(affinity.length).toBeGreaterThan(0)
    if (json.warnings.length > 0)
      expect(json.warnings).toEqual(affinity.map(() => `warning: ${NO_UPDATE_OF_MAPS}`))
    const refusal = refusalOf(json.text)
    if (refusal !== '') expect(refusal).toContain(NO_CONCATENATED_DATA)
    expect(nft(['-f', '-'], `flush ruleset\n${text.text}`).warnings).toEqual([])
  })
})

describe('rules of nft itself', () => {
  it('with a map of addresses and ports are refused for the same reason', () => {
    nft(['-f', '-'], 'table ip t { map m { type inet_service : ipv4_addr . inet_service; }; }')
    const { text, warnings } = nft(['-j', 'list', 'ruleset'])
    expect(warnings).toEqual([])
    const refusal = refusalOf(text)
    if (refusal === '') return
    expect(refusal).toContain(NO_CONCATENATED_DATA)
    // Written as keys are, it is read as a set: the data are lost without a word.
    const asKeys = text.replace('"ipv4_addr . inet_service"', '["ipv4_addr", "inet_service"]')
    nft(['flush', 'ruleset'])
    expect(load(asKeys)).toBe('')
    expect(nft(['list', 'ruleset']).text).toMatch(/\tset m \{\n\t\ttype inet_service\n/)
  })

  it('that update a map stand in JSON as text, which is refused', () => {
    const map = 'map m { type ipv4_addr : mark; flags dynamic,timeout; timeout 5m; size 1000; }'
    nft(['-f', '-'], `table ip t { ${map}; chain c { update @m { ip saddr timeout 5m : 0x1 }; }; }`)
    const { text, warnings } = nft(['-j', 'list', 'ruleset'])
    if (warnings.length === 0) return
    expect(warnings).toEqual([`warning: ${NO_UPDATE_OF_MAPS}`])
    expect(text).toContain('"expr": ["update @m { ip saddr')
    expect(refusalOf(text)).toContain('Error: ')
  })

  it.each([
    ['a random number as key', 'map m { typeof numgen random mod 2 : ip daddr; }', '', NO_TYPEOF],
    ['a verdict', 'map m { typeof meta mark : verdict; }', 'add element ip t m { 1 : goto c }', NO_CHAIN_YET],
  ])('with a map with %s are refused', (_, map, element, reason) => {
    expect(nft(['-f', '-'], `table ip t { ${map}; chain c { }; }\n${element}`).warnings).toEqual([])
    const { text, warnings } = nft(['-j', 'list', 'ruleset'])
    expect(warnings).toEqual([])
    nft(['flush', 'ruleset'])
    const refusal = load(text)
    if (refusal !== '') expect(refusal).toContain(reason)
  })
})
