import { expect, test } from 'vitest'
import { classesOf } from '../../../src/proof/atoms.ts'
import { meaningOf } from '../../../src/proof/meanings.ts'
import { nameOf } from '../../../src/proof/packet-class.ts'
import { IPVS, ip } from '../../support/pipeline.ts'
import { meaningConfigOf } from '../../support/proof.ts'
import { heldOf, mutateOutside, PROVING_IPVS, proofOfIpvs } from '../../support/proof-ipvs.ts'
import { outcomesOf, packetOf } from '../../support/proof-packets.ts'
import { IS_QUICK, runs } from '../../support/runs.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'
import { createIpvsTracer } from '../../support/tracers.ts'
import { allStops, generator } from '../../support/walk.ts'

/** `PROOF_SEED=N` takes the same mutations again, `PROOF_MUTATIONS=N` more of them. */
const SEED = Number(process.env.PROOF_SEED ?? 17)
const MUTATIONS = Number(process.env.PROOF_MUTATIONS ?? runs(120, 1 / 4))

const localIps = new Set(LOCAL_IPS.map(ip))

test(`each of ${MUTATIONS} changes of the state of IPVS mode is found, or changes no packet (PROOF_SEED=${SEED})`, () => {
  const random = generator(SEED)
  const stops = allStops(IPVS).filter(({ computed }) => computed.config.serviceProxyName === undefined)
  const survivors: string[] = []
  let caught = 0
  while (caught + survivors.length < MUTATIONS) {
    const stop = stops[random(stops.length)]
    if (stop === undefined) continue
    const { config, resolved, state } = stop.computed
    const mutation = mutateOutside(state, random)
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
  // Otherwise no single packet was followed.
  if (!IS_QUICK) expect(survivors).not.toEqual([])
  if (process.env.PROOF_SURVIVORS === '1') process.stderr.write(`${survivors.join('\n')}\n${caught} caught\n`)
})
