import { expect, test } from 'vitest'
import { printRule } from '../../../src/kernel/xt/print.ts'
import type { XtRule } from '../../../src/kernel/xt/rule.ts'
import { classesOf } from '../../../src/proof/atoms.ts'
import { meaningOf } from '../../../src/proof/meanings.ts'
import { nameOf } from '../../../src/proof/packet-class.ts'
import { IPTABLES, ip } from '../../support/pipeline.ts'
import { meaningConfigOf, proofOf } from '../../support/proof.ts'
import { type HeldChain, heldChains, PROVING, tablesOfChains } from '../../support/proof-iptables.ts'
import { outcomesOf, packetOf } from '../../support/proof-packets.ts'
import { mutateChains } from '../../support/proof-xt-mutations.ts'
import { runs } from '../../support/runs.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'
import { createXtTracer } from '../../support/tracers.ts'
import { allStops, generator } from '../../support/walk.ts'

/** `PROOF_SEED=N` takes the same mutations again, `PROOF_MUTATIONS=N` more of them. */
const SEED = Number(process.env.PROOF_SEED ?? 17)
const MUTATIONS = Number(process.env.PROOF_MUTATIONS ?? runs(300, 1 / 6))

const localIps = new Set(LOCAL_IPS.map(ip))

const tracerOf = (chains: readonly HeldChain[]) =>
  createXtTracer(() => ({
    chains: chains.map(chain => ({ ...chain, last: [] as readonly XtRule[] })),
    jumps: [],
    print: printRule,
  }))

test(`each of ${MUTATIONS} changes of the rules of iptables mode is found, or changes no packet (PROOF_SEED=${SEED})`, () => {
  const random = generator(SEED)
  const stops = allStops(IPTABLES)
  const survivors: string[] = []
  let caught = 0
  while (caught + survivors.length < MUTATIONS) {
    const stop = stops[random(stops.length)]
    if (stop === undefined) continue
    const { config, resolved, state } = stop.computed
    const chains = heldChains(state)
    const mutation = mutateChains(chains, random)
    if (mutation === undefined) continue
    const { wrong } = proofOf(config, resolved.snapshot, tablesOfChains(mutation.chains), PROVING)
    if (wrong > 0) {
      caught++
      continue
    }
    survivors.push(`${stop.name}, ${mutation.what}`)
    const [before, after] = [tracerOf(chains), tracerOf(mutation.chains)]
    const meaning = { ...meaningConfigOf(config), promises: PROVING.promises }
    for (const family of meaningOf(resolved.snapshot, meaning))
      for (const its of classesOf(family)) {
        const packet = packetOf(its, { localIps, random })
        if (packet === undefined) continue
        expect(
          outcomesOf(after.ways(packet, { localIps })),
          `${stop.name}, ${mutation.what}: ${nameOf(its)}`,
        ).toEqual(outcomesOf(before.ways(packet, { localIps })))
      }
  }
  // Rules for packets that are not the first of their connection, comments, and the order of rules that nothing meets twice.
  expect(caught, survivors.join('\n')).toBeGreaterThan(MUTATIONS / 4)
  if (process.env.PROOF_SURVIVORS === '1') process.stderr.write(`${survivors.join('\n')}\n${caught} caught\n`)
})
