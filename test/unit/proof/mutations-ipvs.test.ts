import { expect, test } from 'vitest'
import { PersistentMap } from '../../../src/base/collections.ts'
import type { IpvsState, PlacedServer } from '../../../src/modes/ipvs/state.ts'
import { createIpvsTracer } from '../../../src/modes/ipvs/trace.ts'
import { classesOf } from '../../../src/proof/atoms.ts'
import { meaningOf } from '../../../src/proof/meanings.ts'
import { nameOf } from '../../../src/proof/packet-class.ts'
import { IPVS, ip } from '../../support/pipeline.ts'
import { meaningConfigOf } from '../../support/proof.ts'
import { heldOf, PROVING_IPVS, proofOfIpvs } from '../../support/proof-ipvs.ts'
import { outcomesOf, packetOf } from '../../support/proof-packets.ts'
import { runs } from '../../support/runs.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'
import { allStops, generator } from '../../support/walk.ts'

/** `PROOF_SEED=N` takes the same mutations again, `PROOF_MUTATIONS=N` more of them. */
const SEED = Number(process.env.PROOF_SEED ?? 17)
const MUTATIONS = Number(process.env.PROOF_MUTATIONS ?? runs(120, 1 / 6))

type Random = (bound: number) => number
type Mutation = readonly [what: string, state: IpvsState]

const localIps = new Set(LOCAL_IPS.map(ip))

/** Changes one object outside of nf_tables; undefined where the state has none of the kind. */
function mutate(state: IpvsState, random: Random): Mutation | undefined {
  const pick = <T>(map: PersistentMap<T>): readonly [string, T] | undefined => {
    const all = [...map.entries()]
    return all[random(Math.max(1, all.length))]
  }
  const without = <T>(map: PersistentMap<T>, key: string) =>
    PersistentMap.from([...map.entries()].filter(([its]) => its !== key))
  const kind = random(4)
  if (kind === 0) {
    const found = pick(state.entries)
    return found && [`entry of ${found[1].set} gone`, { ...state, entries: without(state.entries, found[0]) }]
  }
  if (kind === 1) {
    const found = pick(state.addresses)
    return found && ['address gone', { ...state, addresses: without(state.addresses, found[0]) }]
  }
  const found = pick(state.servers)
  if (found === undefined) return undefined
  const [key, placed] = found
  if (kind === 2) return [`${key} gone`, { ...state, servers: without(state.servers, key) }]
  const changed = mutateServer(placed, random)
  if (changed === undefined) return undefined
  const [what, server] = changed
  const servers = PersistentMap.from([...without(state.servers, key).entries(), [key, server]])
  return [`${key}: ${what}`, { ...state, servers }]
}

function mutateServer(placed: PlacedServer, random: Random): readonly [string, PlacedServer] | undefined {
  const all = [...placed.destinations]
  const at = random(Math.max(1, all.length))
  const [key, destination] = all[at] ?? []
  if (key === undefined || destination === undefined) return undefined
  const others = all.filter((_, index) => index !== at)
  const put = (its: typeof all): PlacedServer => ({ ...placed, destinations: new Map(its) })
  switch (random(3)) {
    case 0:
      return ['weight 0', put([...others, [key, { ...destination, weight: 0 }]])]
    case 1:
      return ['a real server gone', put(others)]
    default:
      return ['another port', put([...others, [`${key}1`, { ...destination, port: destination.port ^ 1 }]])]
  }
}

test(`each of ${MUTATIONS} changes of the state of IPVS mode is found, or changes no packet (PROOF_SEED=${SEED})`, () => {
  const random = generator(SEED)
  const stops = allStops(IPVS).filter(({ computed }) => computed.config.serviceProxyName === undefined)
  const survivors: string[] = []
  let caught = 0
  while (caught + survivors.length < MUTATIONS) {
    const stop = stops[random(stops.length)]
    if (stop === undefined) continue
    const { config, resolved, state } = stop.computed
    const mutation = mutate(state, random)
    if (mutation === undefined) continue
    const [what, mutated] = mutation
    const kernel = { tables: mutated.ruleset.tables, held: heldOf(mutated) }
    if (proofOfIpvs(config, resolved.snapshot, kernel).wrong > 0) {
      caught++
      continue
    }
    survivors.push(`${stop.name}, ${what}`)
    const [before, after] = [createIpvsTracer(state), createIpvsTracer(mutated)]
    const meaning = { ...meaningConfigOf(config), promises: PROVING_IPVS.promises }
    for (const family of meaningOf(resolved.snapshot, meaning))
      for (const its of classesOf(family)) {
        const packet = packetOf(its, { localIps, random })
        if (packet === undefined) continue
        expect(outcomesOf(after.ways(packet, { localIps })), `${stop.name}, ${what}: ${nameOf(its)}`).toEqual(
          outcomesOf(before.ways(packet, { localIps })),
        )
      }
  }
  // Entries for programs that read the sets of kube-proxy, and those of LOOP-BACK that no Service leads to.
  expect(caught, survivors.join('\n')).toBeGreaterThan(MUTATIONS / 4)
  if (process.env.PROOF_SURVIVORS === '1') process.stderr.write(`${survivors.join('\n')}\n${caught} caught\n`)
})
