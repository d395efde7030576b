import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Config } from '../../../src/config/config.ts'
import { createNftClient, type NftClient } from '../../../src/kernel/nft/client.ts'
import { NF_DROP, NF_INET_PRE_ROUTING } from '../../../src/kernel/nft/constants.ts'
import type { Operation, Transaction } from '../../../src/kernel/nft/transaction.ts'
import { cappedSnapshot } from '../../../src/model/memory-caps.ts'
import type { Prover } from '../../../src/proof/prover.ts'
import { healthHandler } from '../../../src/telemetry/health.ts'
import { FakeKernel } from '../../support/fake-kernel/kernel.ts'
import { FaultyTransport } from '../../support/faulty-transport.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { meaningConfigOf } from '../../support/proof.ts'
import { Rig } from '../../support/rig.ts'
import { ProverWorld, service } from './prover-world.ts'

const NODE = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: 'test-node' },
  status: { addresses: [{ type: 'InternalIP', address: '192.168.0.2' }] },
}
const SYNC_PERIOD_MS = 60_000
const CONFIG: Config = {
  ...configFrom([]),
  ...meaningConfigOf({}),
  syncPeriodMs: SYNC_PERIOD_MS,
}

/** A chain of another program that drops what is sent to a port. */
const PLACE = { family: 'ip', table: 'other' } as const
const DROPPING: Transaction = [
  { ...PLACE, verb: 'add-table', flags: 0, comment: undefined },
  {
    ...PLACE,
    verb: 'add-chain',
    chain: {
      name: 'first',
      hook: { type: 'filter', hooknum: NF_INET_PRE_ROUTING, priority: -300 },
      rules: [],
    },
  },
  {
    ...PLACE,
    verb: 'add-rule',
    chain: 'first',
    rule: {
      expressions: [{ kind: 'verdict', verdict: { code: NF_DROP, chain: undefined } }],
      comment: '',
    },
  },
]
const REMOVED: readonly Operation[] = [{ ...PLACE, verb: 'delete-table' }]

/** The folder of network settings. */
const SYSCTLS = mkdtempSync(join(tmpdir(), 'kprobe-net-'))
afterAll(() => rmSync(SYSCTLS, { recursive: true }))

const notOpened = () => {
  throw new Error('IPVS is not read')
}

/** A reconciler over a kernel in memory, and a Prover beside it. */
class World extends ProverWorld {
  readonly kernel = new FakeKernel({ nowMs: () => this.clock.nowMs() })
  readonly rig = new Rig({ transport: this.kernel.open(), clock: this.clock, config: {} })
  readonly other: NftClient = createNftClient({ transport: this.kernel.open(), clock: this.clock })
  /** Sockets that the Prover opened. */
  reads = 0
  /** Why the kernel cannot be read; empty while it can. */
  unreadable = ''
  /** Another program commits between any two requests of a read. */
  isTorn = false
  /** That of the mode that programs the kernel. */
  config = CONFIG
  /** Our rules stand in tables of others: only a read tells what these hold. */
  isShared = false
  /** Happens when a read begins. */
  meanwhile: () => void = () => undefined
  readonly prover: Prover

  constructor() {
    super(SYNC_PERIOD_MS)
    this.prover = this.makeProver({
      sysctls: SYSCTLS,
      sockets: { netfilter: () => this.#opened(), generic: notOpened, route: notOpened },
      activeMode: () => ({ held: () => this.#held(), isPassing: this.rig.reconciler.isPassing }),
    })
  }

  #opened() {
    this.reads++
    if (this.unreadable !== '') throw new Error(this.unreadable)
    this.meanwhile()
    const onSend = (datagram: Uint8Array) => {
      if (this.isTorn) this.kernel.generation++
      return datagram
    }
    return new FaultyTransport(this.kernel.open(), { onSend })
  }

  #held() {
    const held = this.rig.reconciler.held
    if (held === undefined) return undefined
    const { state, resolved, passes } = held
    const snapshot = cappedSnapshot(resolved.snapshot, resolved.memo.caps)
    const tables = this.isShared ? undefined : state.ruleset.tables
    return { config: this.config, snapshot, passes, tables }
  }

  said(text: string): readonly string[] {
    return this.lines.filter(line => line.includes(text))
  }

  async verbose(): Promise<string> {
    const handle = healthHandler(this.health, () => undefined)
    const answer = await handle({ method: 'GET', path: '/healthz', query: new URLSearchParams('verbose') })
    return String(answer.body)
  }

  override async close(): Promise<void> {
    await super.close()
    await this.other.close()
  }
}

const open: World[] = []
let first: readonly object[]

async function world(): Promise<World> {
  const its = new World()
  open.push(its)
  its.rig.offer(first)
  await its.wait(2_000)
  return its
}

beforeEach(() => {
  first = [NODE, ...service(1, '10.1.0.1', '10.1.0.2'), ...service(2, '10.1.0.3')]
})
afterEach(async () => {
  for (const its of open.splice(0)) await its.close()
})

describe('Prover', () => {
  it('follows every packet after the first sync, and says how old that proof is', async () => {
    const its = await world()
    expect(await its.proofs()).toBe(1)
    expect(await its.number('classes')).toBeGreaterThan(10)
    expect(await its.verbose()).toMatch(
      /^\[\+\]proof ok: everything was proved, \d+ classes of packets, \d+ s ago$/m,
    )
    const conf = join(SYSCTLS, 'ipv4/conf/all')
    mkdirSync(conf, { recursive: true })
    writeFileSync(join(conf, 'forwarding'), '0\n')
    expect(await its.verbose()).toMatch(
      /^\[-\]proof failed: net\.ipv4\.ip_forward is 0, so this node drops packets .*; everything was followed, /m,
    )
    rmSync(conf, { recursive: true })
    const reads = its.reads
    its.rig.offer([...first, ...service(3, '10.1.0.9')])
    await its.wait(20_000)
    // What changed is not proved before the next proof.
    expect(await its.proofs()).toBe(1)
    expect(its.reads).toBe(reads)
    expect(await its.number('age_seconds')).toBeGreaterThan(20)
    expect(await its.verbose()).toMatch(/^\[\+\]proof ok: .* 2\d s ago$/m)
    expect(its.facts).toEqual([])
  })

  it('follows every packet again once a sync period, and after a new configuration', async () => {
    const its = await world()
    await its.wait(2.5 * SYNC_PERIOD_MS)
    expect(await its.proofs()).toBe(3)
    its.config = { ...CONFIG }
    its.rig.offer([...first, ...service(3, '10.1.0.9')])
    await its.wait(5_000)
    expect(await its.proofs()).toBe(4)
  })

  it('rests ten times as long as it works', async () => {
    const its = new World()
    open.push(its)
    const { clock } = its
    const nowMs = clock.nowMs.bind(clock)
    let workMs = 0
    clock.nowMs = () => {
      workMs += 0.05
      return nowMs() + workMs
    }
    its.rig.offer(first)
    while ((await its.proofs()) === 0) await its.wait(50)
    const workS = await its.number('duration_seconds_sum')
    expect(workS).toBeGreaterThan(0)
    expect(nowMs() / 1_000).toBeGreaterThan(10 * workS)
  })

  it('names the first difference and the rule that decided, and says when it is over', async () => {
    const its = await world()
    await its.other.commit(DROPPING)
    await its.wait(5_000)
    expect(await its.number('differences')).toBe(0)
    await its.wait(SYNC_PERIOD_MS)
    expect(await its.number('differences')).toBeGreaterThan(0)
    const [said] = its.said('treats packets differently from what Kubernetes specifies')
    expect(said).toMatch(/ns\/s1.*prerouting: TCP from .* to 172\.30\.0\.1:80/)
    expect(said).toMatch(/one of 2 endpoints.*drop.*ip other first, rule 1/)
    expect(its.facts).toEqual([
      expect.objectContaining({
        reason: 'PacketsDiffer',
        type: 'Warning',
        regarding: { kind: 'Service', key: 'ns/s1' },
        note: expect.stringContaining('decided by ip other first, rule 1'),
      }),
    ])
    expect(await its.verbose()).toMatch(/^\[-\]proof failed: \d+ differ; .* \(does not decide\)$/m)
    await its.other.commit(REMOVED)
    await its.wait(SYNC_PERIOD_MS)
    expect(await its.number('differences')).toBe(0)
    expect(its.said('as Kubernetes specifies again')).toHaveLength(1)
    expect(its.facts.map(({ reason }) => reason)).toEqual(['PacketsDiffer', 'PacketsAsWanted'])
  })

  it('follows every packet again after a repair', async () => {
    const its = await world()
    await its.other.commit([{ family: 'ip', table: 'kube-proxy', verb: 'flush-chain', chain: 'services' }])
    await its.wait(5_000)
    expect(its.rig.kinds()).toContain('repaired')
    expect(await its.proofs()).toBe(2)
    expect(await its.number('differences')).toBe(0)
  })

  it('is idle while a mode programs the kernel that it does not prove', async () => {
    const its = await world()
    await its.other.commit(DROPPING)
    await its.wait(SYNC_PERIOD_MS)
    expect(await its.number('differences')).toBeGreaterThan(0)
    const reads = its.reads
    its.config = { ...CONFIG, proxyMode: 'userspace' }
    its.rig.offer([...first, ...service(3, '10.1.0.9')])
    await its.wait(60_000)
    expect(its.reads).toBe(reads)
    expect(await its.number('differences')).toBe(0)
    expect(await its.number('age_seconds')).toBe(0)
    expect(await its.verbose()).toMatch(
      /^\[\+\]proof ok: nothing is proved: userspace mode has no evaluator; nftables, IPVS and iptables mode have one$/m,
    )
    expect(its.said('stops proving rules')).toHaveLength(1)
    expect(its.said('as Kubernetes specifies again')).toEqual([])
    const proofs = await its.proofs()
    its.config = { ...CONFIG }
    its.unreadable = 'EIO'
    its.rig.offer([...first, ...service(4, '10.1.0.9')])
    await its.wait(2_000)
    // The time in which nothing was to be proved does not count.
    expect(await its.number('age_seconds')).toBeCloseTo(2, 0)
    its.unreadable = ''
    await its.wait(40_000)
    expect(await its.proofs()).toBeGreaterThan(proofs)
    expect(await its.number('differences')).toBeGreaterThan(0)
    expect(its.facts.map(({ reason }) => reason)).toEqual(['PacketsDiffer', 'PacketsDiffer'])
  })

  it('does not prove what other programs committed while their tables were read', async () => {
    const its = await world()
    its.isTorn = true
    await its.other.commit(DROPPING)
    await its.wait(SYNC_PERIOD_MS + 5_000)
    expect(await its.number('differences')).toBe(0)
    expect(await its.number('age_seconds')).toBeGreaterThan(SYNC_PERIOD_MS / 1_000)
    expect(await its.number('reads_discarded_total')).toBeGreaterThan(3)
    its.isTorn = false
    await its.wait(10_000)
    expect(await its.number('differences')).toBeGreaterThan(0)
  })

  it('follows every packet once more after a repair during the read', async () => {
    const its = new World()
    open.push(its)
    let left = 1
    its.rig.offer(first)
    its.meanwhile = () => {
      if (left-- > 0) its.prover.report({ kind: 'repaired', changes: 1, objects: [] })
    }
    await its.wait(10_000)
    expect(left).toBeLessThan(0)
    expect(await its.proofs()).toBe(2)
  })

  it.each([false, true])(
    'does not count a read during which a pass ran (shared tables: %j)',
    async isShared => {
      const its = new World()
      open.push(its)
      its.isShared = isShared
      let left = 5
      its.meanwhile = () => {
        if (left-- > 0) its.rig.offer([...first, ...service(10 + left, '10.1.0.9')])
      }
      its.rig.offer(first)
      await its.wait(10_000)
      expect(await its.number('reads_discarded_total')).toBeGreaterThan(0)
      expect(await its.proofs()).toBeGreaterThan(0)
      expect(await its.number('differences')).toBe(0)
      expect(its.facts).toEqual([])
    },
  )

  it('goes on once the kernel can be read again, and logs a failure once', async () => {
    const its = new World()
    open.push(its)
    its.unreadable = 'no buffer space'
    its.rig.offer(first)
    await its.wait(100_000)
    expect(its.said('cannot prove')).toHaveLength(1)
    expect(await its.number('failures_total')).toBeGreaterThan(1)
    expect(await its.number('age_seconds')).toBeGreaterThan(90)
    expect(await its.verbose()).toContain('[-]proof failed: cannot prove: no buffer space (does not decide)')
    its.unreadable = ''
    await its.wait(60_000)
    expect(await its.proofs()).toBeGreaterThan(0)
    expect(await its.verbose()).toContain('[+]proof ok')
  })
})
