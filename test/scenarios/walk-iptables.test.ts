import { execFileSync } from 'node:child_process'
import { closeSync, openSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { finish } from '../../src/base/steps.ts'
import type { IptablesPlane } from '../../src/dataplane/iptables/plane.ts'
import type { IptablesState } from '../../src/dataplane/iptables/state.ts'
import { savedLines, writeForeignRules } from '../support/foreign-rules.ts'
import { openIptablesPlane } from '../support/iptables-plane.ts'
import { enterNetns, freshNetns } from '../support/lab/netns.ts'
import { commitAll, IPTABLES } from '../support/pipeline.ts'
import { allStops, generator, type Stop, walkSettings } from '../support/walk.ts'

/*
 * A walk between the states of all scenarios on one kernel, and beside it, in another network namespace, each stop from
 * nothing: iptables-save must print the same of both. Other agents have their rules in either.
 */

const { seed: SEED, steps: STEPS } = walkSettings(process.env)

/** A network namespace that this process can come back to. */
class Place {
  readonly #file = (() => {
    freshNetns()
    writeForeignRules()
    return openSync('/proc/thread-self/ns/net', 'r')
  })()
  readonly foreign = savedLines()

  /** What is opened and started there stays there. */
  inside<T>(act: () => T): T {
    enterNetns(`/proc/self/fd/${this.#file}`)
    return act()
  }

  close(): void {
    closeSync(this.#file)
  }
}

let walked: Place
let fresh: Place

beforeAll(() => {
  walked = new Place()
  fresh = new Place()
})

afterAll(() => {
  walked.close()
  fresh.close()
})

/** Chains to which every Service adds rules: these come in any order, and in front of the jump to KUBE-NODEPORTS. */
const SHARED =
  / -A (?:KUBE-SERVICES|KUBE-EXTERNAL-SERVICES|KUBE-NODEPORTS|KUBE-PROXY-FIREWALL) (?!.* -j KUBE-NODEPORTS$)/

/** As iptables-save prints them, with rules of Services sorted within the place they stand at. */
function inOrder(lines: readonly string[]): readonly string[] {
  const sorted: string[] = []
  let run: string[] = []
  let chain: string | undefined
  for (const line of lines) {
    const its = SHARED.test(line) ? line.split(' ', 4).join(' ') : undefined
    if (its !== chain) {
      sorted.push(...run.sort())
      run = []
      chain = its
    }
    if (its === undefined) sorted.push(line)
    else run.push(line)
  }
  return [...sorted, ...run.sort()]
}

/** Which state the next one is derived from, and compared with. */
type Gait =
  /** A running daemon: what it committed last. */
  | { readonly kind: 'remembered'; readonly plane: IptablesPlane; readonly state: IptablesState }
  /** A start, or a healing, perhaps after somebody emptied a chain of ours: what the kernel holds. */
  | { readonly kind: 'observed'; readonly plane: IptablesPlane; readonly emptied: number | undefined }

async function go(gait: Gait, { computed }: Stop<IptablesState>): Promise<IptablesState> {
  const { plane } = gait
  if (gait.kind === 'observed' && gait.emptied !== undefined) emptyOne(gait.emptied)
  const from = gait.kind === 'observed' ? (await plane.observe()).state : gait.state
  const wanted = finish(plane.render(computed.resolved.table, { base: from, without: new Set() }))
  await commitAll(plane, from, wanted)
  const { state: held } = await plane.observe()
  const again = finish(plane.diff(held, wanted))
  expect([...again.describe()]).toEqual([])
  expect(again).toMatchObject({ empty: true, changes: 0, complete: true })
  expect(inOrder(walked.inside(savedLines))).toEqual(inOrder(await anew(computed)))
  return wanted
}

/** The same from nothing, as a daemon's very first start. */
async function anew({ config, resolved }: Stop<IptablesState>['computed']): Promise<readonly string[]> {
  const { client, plane } = fresh.inside(() => openIptablesPlane(config))
  await plane.cleanup()
  const { state: before } = await plane.observe()
  await commitAll(plane, before, finish(plane.render(resolved.table, { base: before, without: new Set() })))
  await client.close()
  return fresh.inside(savedLines)
}

const OURS = /^(\S+) (\S+) -A (KUBE-\S+) /

/** Of our chains that have rules, the one of that number. */
function emptyOne(number: number): void {
  const chains = new Set(
    walked.inside(savedLines).flatMap(line => {
      const [, family = '', table = '', chain = ''] = OURS.exec(line) ?? []
      return chain === '' || chain === 'KUBE-FIREWALL' ? [] : [`${family} ${table} ${chain}`]
    }),
  )
  const chosen = [...chains][number % Math.max(1, chains.size)]
  if (chosen === undefined) return
  const [family, table = '', chain = ''] = chosen.split(' ')
  execFileSync(family === 'ip' ? 'iptables-nft' : 'ip6tables-nft', ['-t', table, '-F', chain])
}

test(`a random walk between all scenario states leaves what a fresh start would at each stop (WALK_SEED=${SEED})`, async () => {
  const random = generator(SEED)
  const stops = allStops(IPTABLES)
  let last: (ReturnType<typeof openIptablesPlane> & { config: string; state: IptablesState }) | undefined
  for (let step = 0; step < STEPS; step++) {
    const stop = stops[random(stops.length)]
    if (stop === undefined) continue
    const config = JSON.stringify(stop.computed.config)
    const remembered = last !== undefined && last.config === config && random(3) > 0
    // A daemon's configuration does not change while it runs.
    const opened =
      last?.config === config ? last : walked.inside(() => openIptablesPlane(stop.computed.config))
    if (last !== undefined && opened !== last) await last.client.close()
    const { client, plane } = opened
    const emptied = random(2) === 0 ? random(1_000) : undefined
    const gait: Gait =
      remembered && last !== undefined
        ? { kind: 'remembered', plane, state: last.state }
        : { kind: 'observed', plane, emptied }
    try {
      last = { client, plane, config, state: await go(gait, stop) }
    } catch (cause) {
      throw new Error(`WALK_SEED=${SEED}, step ${step}, ${gait.kind}, to ${stop.name}: ${cause}`, { cause })
    }
  }
  await last?.plane.cleanup()
  await last?.client.close()
  expect(walked.inside(savedLines)).toEqual(walked.foreign)
})
