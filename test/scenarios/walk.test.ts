import { execFileSync } from 'node:child_process'
import { beforeAll, expect, test } from 'vitest'
import { finish } from '../../src/base/clock.ts'
import { printRuleset } from '../../src/kernel/nft/print.ts'
import type { Table } from '../../src/kernel/nft/state.ts'
import type { NftablesState } from '../../src/modes/nftables/state.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { commitAll, NFTABLES, type NftablesPlane, openClient, planeOn } from '../support/pipeline.ts'
import { runs } from '../support/runs.ts'
import { allStops, generator, type Stop, walkSettings } from '../support/walk.ts'

const { seed: SEED, steps: STEPS } = walkSettings(process.env, runs(150, 3 / 8))
/** nft takes longer for a listing than everything else for a step. */
const LIST_EVERY = 20

beforeAll(() => freshNetns())

/** Which state the next one is derived from, and compared with. */
type Gait =
  /** A running daemon: what it committed last. */
  | { readonly kind: 'remembered'; readonly state: NftablesState }
  /** A start, or a healing: what the kernel holds. */
  | { readonly kind: 'observed' }

async function go(
  plane: NftablesPlane,
  gait: Gait,
  { computed }: Stop<NftablesState>,
): Promise<NftablesState> {
  const from = gait.kind === 'observed' ? (await plane.observe()).state : gait.state
  const wanted = finish(plane.render(computed.resolved.table, { base: from, without: new Set() }))
  await commitAll(plane, from, wanted)
  const { state: held } = await plane.observe()
  expect(blocks(held)).toEqual(blocks(wanted))
  const again = finish(plane.diff(held, wanted))
  expect([...again.describe()]).toEqual([])
  expect(again).toMatchObject({ empty: true, changes: 0, complete: true })
  return wanted
}

/** Chains and sets as nft prints them, in an order of their own; that of their rules and elements counts. */
function blocks({ ruleset }: NftablesState): readonly string[] {
  return ruleset.tables.flatMap(blocksOf).sort()
}

function blocksOf(table: Table): readonly string[] {
  const inside = [...printRuleset({ tables: [table] })].slice(1, -1)
  return inside
    .join('\n')
    .split('\n\n')
    .map(block => `${table.family} ${table.name} ${block}`)
}

/** The tool that people look with must be able to print all of it. */
function expectListable(): void {
  const text = execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })
  expect(text).not.toContain('invalid type')
  JSON.parse(
    execFileSync('nft', ['-j', 'list', 'ruleset'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }),
  )
}

test(`a random walk between all scenario states leaves exactly the wanted state at each stop (WALK_SEED=${SEED})`, async () => {
  const random = generator(SEED)
  const stops = allStops(NFTABLES)
  const client = openClient()
  let last: { readonly config: string; readonly state: NftablesState } | undefined
  for (let step = 0; step < STEPS; step++) {
    const stop = stops[random(stops.length)]
    if (stop === undefined) continue
    // A daemon's configuration does not change while it runs.
    const config = JSON.stringify(stop.computed.config)
    const remembered = last !== undefined && last.config === config && random(3) > 0
    const gait: Gait =
      remembered && last !== undefined ? { kind: 'remembered', state: last.state } : { kind: 'observed' }
    try {
      last = { config, state: await go(planeOn(client, stop.computed.config), gait, stop) }
      if (step % LIST_EVERY === 0) expectListable()
    } catch (cause) {
      throw new Error(`WALK_SEED=${SEED}, step ${step}, ${gait.kind}, to ${stop.name}: ${cause}`, { cause })
    }
  }
  await planeOn(client, {}).cleanup()
  expect(execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })).toBe('')
  await client.close()
})
