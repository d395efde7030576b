import { afterEach, expect, it } from 'vitest'
import type { Config } from '../../../src/config/config.ts'
import type { HeldRules } from '../../../src/daemon/active-mode.ts'
import { cappedSnapshot } from '../../../src/model/memory-caps.ts'
import { applyEvents } from '../../../src/model/snapshot.ts'
import type { Prover } from '../../../src/proof/prover.ts'
import { IpvsNode, type Part } from '../../support/ipvs-node.ts'
import { IpvsRig, NODE_IP } from '../../support/ipvs-rig.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { ip, ipvsOptionsOf } from '../../support/pipeline.ts'
import { meaningConfigOf } from '../../support/proof.ts'
import { ProverWorld, service } from './prover-world.ts'

const PIPELINE = { nodePortAddresses: [] }
const SYNC_PERIOD_MS = 600_000
const CONFIG: Config = {
  ...configFrom([]),
  ...meaningConfigOf(PIPELINE),
  proxyMode: 'ipvs',
  syncPeriodMs: SYNC_PERIOD_MS,
}

/** A reconciler of IPVS mode over a kernel in memory, and a Prover beside it. */
class World extends ProverWorld {
  readonly node = new IpvsNode({ nowMs: () => this.clock.nowMs() })
  readonly rig: IpvsRig
  readonly prover: Prover
  #opened = 0

  constructor() {
    super(SYNC_PERIOD_MS)
    this.node.links.add('eth0', undefined)
    this.node.links.addAddress('eth0', { family: 2, ip: ip(NODE_IP), prefixLength: 24, flags: 0 })
    const { detector } = ipvsOptionsOf(PIPELINE)
    this.rig = new IpvsRig({ node: this.node, clock: this.clock, options: { detector } })
    const parts: readonly Part[] = ['nft', 'ipset']
    this.prover = this.makeProver({
      sysctls: '/nonexistent',
      sockets: {
        netfilter: () => this.node.open(parts[this.#opened++ % 2] ?? 'nft'),
        generic: () => this.node.open('ipvs'),
        route: () => this.node.open('link'),
      },
      activeMode: () => ({ held: () => this.#held(), isPassing: this.rig.reconciler.isPassing }),
    })
  }

  #held(): HeldRules | undefined {
    const held = this.rig.reconciler.held
    if (held === undefined) return undefined
    const { resolved, passes } = held
    const snapshot = cappedSnapshot(resolved.snapshot, resolved.memo.caps)
    return { config: CONFIG, snapshot, tables: undefined, passes }
  }
}

const open: World[] = []
afterEach(async () => {
  for (const its of open.splice(0)) await its.close()
})

it('follows every packet in IPVS mode, and finds after a repair an address that nobody else removes', async () => {
  const its = new World()
  open.push(its)
  its.rig.offer([...service(1, '10.1.0.1', '10.1.0.2'), ...service(2, '10.1.0.3')])
  await its.wait(5_000)
  expect(await its.proofs(), its.lines.join('')).toBe(1)
  expect(await its.number('differences'), its.lines.join('')).toBe(0)

  // An address that IPVS mode does not look after.
  its.node.links.addAddress('kube-ipvs0', { family: 2, ip: ip('203.0.113.9'), prefixLength: 32, flags: 0 })
  its.prover.report({ kind: 'repaired', changes: 1, objects: [] })
  its.rig.offer([...service(1, '10.1.0.1'), ...service(2, '10.1.0.3', '10.1.0.4')])
  await its.wait(10_000)
  expect(await its.proofs()).toBeGreaterThan(1)
  expect(await its.number('differences')).toBeGreaterThan(0)
  expect(its.lines.join('')).toContain('this node itself: a device has the address, and no virtual server')
})

it('reports nothing while this machine has other addresses than the daemon knows', async () => {
  const its = new World()
  open.push(its)
  its.node.links.addAddress('eth0', { family: 2, ip: ip('192.0.2.77'), prefixLength: 24, flags: 0 })
  its.rig.offer(service(1, '10.1.0.1'))
  await its.wait(2_000)
  expect(await its.number('reads_discarded_total'), its.lines.join('')).toBeGreaterThan(0)
  expect(await its.proofs()).toBe(0)

  const value = [NODE_IP, '192.0.2.77'].map(ip)
  its.rig.reconciler.offer(applyEvents(its.rig.snapshot, [{ kind: 'LocalIps', value }]))
  await its.wait(2_000)
  expect(await its.proofs(), its.lines.join('')).toBe(1)
  expect(await its.number('differences')).toBe(0)
})
