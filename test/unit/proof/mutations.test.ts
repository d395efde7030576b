import { expect, test } from 'vitest'
import { readU16be, u32host } from '../../../src/base/octets.ts'
import { onlyValue, type Region, sizeOf } from '../../../src/base/region.ts'
import { RTN_LOCAL } from '../../../src/kernel/nft/constants.ts'
import { createTracer, type Way } from '../../../src/kernel/nft/trace.ts'
import type { TracePacket } from '../../../src/kernel/nft/trace-packet.ts'
import { classesOf } from '../../../src/proof/atoms.ts'
import { meaningOf } from '../../../src/proof/meanings.ts'
import { nameOf, type PacketClass } from '../../../src/proof/packet-class.ts'
import { ip, NFTABLES } from '../../support/pipeline.ts'
import { meaningConfigOf, proofOf } from '../../support/proof.ts'
import { mutate } from '../../support/proof-mutations.ts'
import { runs } from '../../support/runs.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'
import { allStops, generator } from '../../support/walk.ts'

/** `PROOF_SEED=N` takes the same mutations again, `PROOF_MUTATIONS=N` more of them. */
const SEED = Number(process.env.PROOF_SEED ?? 17)
const MUTATIONS = Number(process.env.PROOF_MUTATIONS ?? runs(90, 1 / 9))

const localIps = new Set(LOCAL_IPS.map(ip))
type Random = (bound: number) => number

function anyOf(region: Region, random: Random): string {
  const interval = region[random(region.length)]
  if (interval === undefined) return ''
  return random(2) === 0 ? interval.from : interval.to
}

/** A packet of a class; undefined where the class wants an address of the node and its region has none. */
function packetOf({ hook, box }: PacketClass, random: Random): TracePacket | undefined {
  const wantsLocal = onlyValue(box.sourceType) === u32host(RTN_LOCAL)
  const candidates = [...localIps].filter(each =>
    box.source.some(({ from, to }) => from <= each && each <= to && each.length === from.length),
  )
  const source = wantsLocal ? candidates[random(Math.max(1, candidates.length))] : anyOf(box.source, random)
  if (source === undefined) return undefined
  const name = anyOf(box.interface, random).replace(/\0.*/s, '')
  return {
    origin: hook === 'output' ? 'process' : 'interface',
    protocol: anyOf(box.protocol, random).charCodeAt(0),
    source,
    sourcePort: 40_000,
    destination: anyOf(box.destination, random),
    destinationPort: readU16be(anyOf(box.destinationPort, random)),
    interfaceName: name,
  }
}

function outcomes(ways: readonly Way[]): readonly string[] {
  return ways
    .map(({ trace: { verdict, destination, masquerade }, probability }) =>
      JSON.stringify([verdict, destination, verdict === 'dnat' && masquerade, probability.toFixed(6)]),
    )
    .sort()
}

test(`each of ${MUTATIONS} changes of the kernel's state is found, or changes no packet (PROOF_SEED=${SEED})`, () => {
  const random = generator(SEED)
  const stops = allStops(NFTABLES)
  const survivors: string[] = []
  let caught = 0
  while (caught + survivors.length < MUTATIONS) {
    const stop = stops[random(stops.length)]
    if (stop === undefined) continue
    const { config, resolved, state } = stop.computed
    const { tables } = state.ruleset
    const mutation = mutate(tables, random)
    if (mutation === undefined) continue
    const { wrong } = proofOf(config, resolved.snapshot, mutation.tables)
    if (wrong > 0) {
      caught++
      continue
    }
    survivors.push(mutation.what)
    const [before, after] = [createTracer({ tables }), createTracer({ tables: mutation.tables })]
    for (const meaning of meaningOf(resolved.snapshot, meaningConfigOf(config)))
      for (const its of classesOf(meaning)) {
        const packet = packetOf(its, random)
        if (packet === undefined || sizeOf(its.box.source) === 0) continue
        const seen = outcomes(after.ways(packet, { localIps }))
        expect(seen, `${stop.name}, ${mutation.what}: ${nameOf(its)}`).toEqual(
          outcomes(before.ways(packet, { localIps })),
        )
      }
  }
  // Spare chains for the next endpoint, fallbacks of a commit in flight, and rules without packets: see docs/proof.md.
  expect(caught, survivors.join('\n')).toBeGreaterThan(MUTATIONS / 4)
  if (process.env.PROOF_SURVIVORS === '1') process.stderr.write(`${survivors.join('\n')}\n${caught} caught\n`)
})
