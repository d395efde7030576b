import { spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { runInProcess } from '../support/command.ts'
import { Daemons, EXAMPLE_FLAGS } from '../support/daemon.ts'
import { freshNetns } from '../support/lab/netns.ts'

/* What docs/differences.md says of nft's JSON under "Saved rulesets". */

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const PAGE = readFileSync(`${ROOT}docs/differences.md`, 'utf8').split('## Saved rulesets')[1] ?? ''

const NO_CONCATENATED_DATA = "Invalid map type 'ipv4_addr . inet_service'"
const NO_UPDATE_OF_MAPS = 'stmt ops map have no json callback'

interface Listed {
  readonly text: string
  readonly warnings: readonly string[]
}

function nft(args: readonly string[], input = ''): Listed {
  const { stdout, stderr } = spawnSync('nft', args, { encoding: 'utf8', input, maxBuffer: 64 << 20 })
  return { text: stdout, warnings: stderr.split('\n').filter(line => line !== '') }
}

/**
 * Why nft does not load the JSON that it has listed; empty where it does, as a later version may. By a file: nft opens the
 * standard input by its name for JSON, which a socket has not.
 */
function refusalOf(json: string): string {
  const file = join(folders.folder(), 'saved.json')
  writeFileSync(file, json)
  return nft(['-j', '-c', '-f', file]).warnings.join('\n')
}

const folders = new Daemons()

beforeEach(() => freshNetns())

afterEach(() => folders.end())

it('is quoted on the page', () => {
  for (const words of [NO_CONCATENATED_DATA, NO_UPDATE_OF_MAPS]) expect(PAGE).toContain(words)
})

it('the ruleset of nftables mode is listed as JSON with a warning for each rule of session affinity alone, and refused for its maps', async () => {
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
