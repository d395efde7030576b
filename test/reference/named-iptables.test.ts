import { execFileSync } from 'node:child_process'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { chainNames } from '../../src/modes/xt-common/layout.ts'
import { HAS_IPTABLES, HandOver, IPTABLES_MODE, kprobe, nft } from './hand-over-rig.ts'
import { bothServed, packetsToBoth, RED, RED_FLAG } from './red-service.ts'

/* docs/decisions/0021: kprobe serves Services of a name in iptables mode, beside the real kube-proxy in either mode. */

const CHAINS = chainNames('red').prefix

let rig: HandOver

beforeAll(async () => {
  rig = await HandOver.open()
  if (!HAS_IPTABLES) return
  rig.useIptablesNft()
  for (const object of RED) await rig.plane.api.put(object)
})

afterAll(async () => {
  await rig?.close()
})

beforeEach(() => {
  nft('flush', 'ruleset')
})

afterEach(async () => {
  await rig?.rest()
})

/** kube-proxy of a test ends when its ports are taken. */
const startRed = () =>
  rig.startKprobe([
    RED_FLAG,
    '--proxy-mode=iptables',
    '--healthz-bind-address=127.0.0.1:20256',
    '--metrics-bind-address=127.0.0.1:20249',
  ])

function saved(): readonly string[] {
  return ['iptables', 'ip6tables'].flatMap(family =>
    execFileSync(`${family}-nft-save`, { encoding: 'utf8' })
      .split('\n')
      .filter(line => /^[:*-]/.test(line))
      .map(line => `${family} ${line.replace(/ \[\d+:\d+\]$/, '')}`),
  )
}

const isOfRed = (line: string): boolean => line.includes(`${CHAINS}-`)

describe.skipIf(!HAS_IPTABLES).each([
  ['iptables', IPTABLES_MODE],
  ['nftables', {}],
] as const)("beside kube-proxy's mode %s", (_, config) => {
  test('each serves its own Services, and neither touches what is of the other', async () => {
    const first = await rig.startKubeProxy(config)
    const theirs = () => [...saved().filter(line => !isOfRed(line))].sort()
    const before = theirs()
    const daemon = await startRed()
    expect(await packetsToBoth(rig)).toEqual(bothServed())
    const ours = saved().filter(isOfRed)
    expect(ours.length).toBeGreaterThan(40)
    expect(theirs().filter(line => line.includes('KUBE-'))).toEqual(
      before.filter(line => line.includes('KUBE-')),
    )
    await first.stop()
    // A kube-proxy that starts removes chains of its own names that it does not know.
    await rig.startKubeProxy(config)
    expect(await packetsToBoth(rig)).toEqual(bothServed())
    expect(saved().filter(isOfRed)).toEqual(ours)
    await daemon.caughtUp()
    expect(daemon.said('repaired foreign changes')).toEqual([])
    await daemon.stop()
    const held = theirs()
    expect(kprobe('cleanup', RED_FLAG).code).toBe(0)
    expect(saved().filter(isOfRed)).toEqual([])
    expect(theirs()).toEqual(held)
  })
})

if (!HAS_IPTABLES) console.log('skipped: a named proxy in iptables mode, as iptables is not installed here')
