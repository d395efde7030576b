import { execFileSync, spawnSync } from 'node:child_process'
import { connect } from 'node:net'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { printRule } from '../../src/kernel/xt/print.ts'
import type { FrontendTable } from '../../src/model/frontend.ts'
import { wantedChains } from '../../src/modes/iptables/mode.ts'
import { BusiestFirst, type BusiestFirstEvent } from '../../src/modes/iptables/optimize/busiest-first.ts'
import { IptablesPlane } from '../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS, type IptablesOptions } from '../../src/modes/iptables/settings.ts'
import type { IptablesState } from '../../src/modes/iptables/state.ts'
import { KUBE_CHAINS } from '../../src/modes/xt-common/layout.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { foreignLines, savedLines, writeForeignRules } from '../support/foreign-rules.ts'
import { table } from '../support/frontends.ts'
import { eventually } from '../support/patience.ts'
import { everyKind, plainService } from '../support/services.ts'

let client: NftClient
let plain: IptablesPlane
let optimized: IptablesPlane
let foreign: readonly string[]

beforeAll(() => {
  client = createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock: systemClock })
  const prefix = { kind: 'interface-prefix', prefix: 'veth' } as const
  const options: IptablesOptions = { ...DEFAULT_IPTABLES_OPTIONS, detector: { IPv4: prefix, IPv6: prefix } }
  plain = new IptablesPlane({ client, options })
  optimized = new IptablesPlane({ client, options: { ...options, optimize: true } })
})

beforeEach(() => {
  writeForeignRules()
  foreign = foreignLines()
})
afterEach(() => {
  execFileSync('nft', ['flush', 'ruleset'])
})
afterAll(() => client.close())

function loudly(program: string, args: readonly string[], input = ''): string {
  const { status, stdout, stderr } = spawnSync(program, args, { input, encoding: 'utf8', maxBuffer: 1 << 28 })
  expect({ status, stderr }, `${program} ${args.join(' ')}`).toEqual({ status: 0, stderr: '' })
  return stdout
}

const KINDS = [...everyKind(false), ...everyKind(true)]
const SMALL = table(KINDS)
/** More than 1,000 endpoints: the lists of table filter are divided as well. */
const LARGE = table([...KINDS, ...Array.from({ length: 260 }, (_, n) => plainService(n, 4))])

async function commit(plane: IptablesPlane, from: IptablesState, frontends: FrontendTable) {
  const wanted = finish(plane.render(frontends, { base: from, without: new Set() }))
  const plan = finish(plane.diff(from, wanted))
  const receipt = plan.empty ? undefined : await plane.commit(plan, {})
  expect(receipt?.refusals.map(({ error }) => error.message) ?? []).toEqual([])
  expect(receipt?.outcome ?? 'committed').toBe('committed')
  return { state: wanted, plan, receipt }
}

async function heal(plane: IptablesPlane, frontends: FrontendTable) {
  return await commit(plane, (await plane.observe()).state, frontends)
}

function isDispatch(line: string): boolean {
  return /KUBE-(?:SVC|SERVICES|EXTERNAL-SERVICES|PROXY-FIREWALL)-IP|KUBE-SVC-(?:TCP|UDP)-|KUBE-NODEPORTS-/.test(
    line,
  )
}

/** In a user namespace the tool cannot have a buffer that would take all of it. */
const LINES_PER_PIECE = 200

function restoreInPieces(program: string, saved: string): void {
  for (const [of = ''] of saved.matchAll(/^\*(?:.|\n)*?^COMMIT$/gm)) {
    const [name = '', ...lines] = of.split('\n').slice(0, -1)
    for (let at = 0; at < lines.length; at += LINES_PER_PIECE) {
      const piece = [name, ...lines.slice(at, at + LINES_PER_PIECE), 'COMMIT', '']
      loudly(program, ['--noflush'], piece.join('\n'))
    }
  }
}

describe('optimized rules on the kernel', () => {
  for (const [name, frontends] of [
    ['few', SMALL],
    ['many', LARGE],
  ] as const) {
    it(`are what iptables reads back, of ${name} Services`, async () => {
      const { state } = await heal(optimized, frontends)
      if (state.kind !== 'rendered') throw new Error('nothing was rendered')
      const wanted = [...wantedChains(state)].flatMap(({ family, table: of, name: chain, rules, last }) =>
        [...rules, ...last].map(rule => `${family} ${of} -A ${chain} ${printRule(rule, family)}`),
      )
      const saved = savedLines()
      const known = new Set(saved)
      expect(wanted.filter(line => !known.has(line))).toEqual([])
      expect(saved.filter(isDispatch).length).toBeGreaterThan(1_000)
      expect(saved.join('\n')).not.toMatch(/unknown|unsupported|0x[0-9a-f]{16}/i)
      expect(foreignLines().toSorted()).toEqual(foreign.toSorted())
      for (const program of ['iptables-nft', 'ip6tables-nft'])
        for (const of of ['nat', 'filter']) loudly(program, ['-t', of, '-L', '-n'])
      const { plan } = await heal(optimized, frontends)
      expect([...plan.describe()]).toEqual([])
    })
  }

  it('are rules that iptables goes on working with', async () => {
    await heal(optimized, SMALL)
    const rule = ['KUBE-SVC-IP-3F', '-d', '192.0.2.1/32', '-j', 'RETURN']
    loudly('iptables-nft', ['-t', 'nat', '-A', ...rule])
    loudly('iptables-nft', ['-t', 'nat', '-D', ...rule])
    loudly('iptables-nft-restore', ['--noflush'], '*nat\n:SOMEBODY - [0:0]\n-A SOMEBODY -j RETURN\nCOMMIT\n')
    const { plan } = await heal(optimized, SMALL)
    expect([...plan.describe()]).toEqual([])
    const four = loudly('iptables-nft-save', [])
    const six = loudly('ip6tables-nft-save', [])
    execFileSync('nft', ['flush', 'ruleset'])
    restoreInPieces('iptables-nft-restore', four)
    restoreInPieces('ip6tables-nft-restore', six)
    expect([...(await heal(optimized, SMALL)).plan.describe()]).toEqual([])
  })

  it('take the place of plain ones, and leave it again, with all that is others’ as it was', async () => {
    await heal(plain, LARGE)
    const before = savedLines().toSorted()
    await heal(optimized, LARGE)
    expect(foreignLines().toSorted()).toEqual(foreign.toSorted())
    await heal(plain, LARGE)
    expect(savedLines().toSorted()).toEqual(before)
    await heal(optimized, LARGE)
    await optimized.cleanup()
    expect(savedLines().filter(isDispatch)).toEqual([])
    expect(foreignLines().toSorted()).toEqual(foreign.toSorted())
  })

  it('go as kube-proxy lets chains of Services go that are not its own', async () => {
    await heal(optimized, SMALL)
    const chains =
      loudly('iptables-nft-save', ['-t', 'nat']).match(/^:KUBE-(?:SVC|SVL|EXT|FW|SEP)-\S+/gm) ?? []
    expect(chains.length).toBeGreaterThan(400)
    const fixed = [':KUBE-SERVICES', ':KUBE-NODEPORTS']
    const flushed = [...fixed, ...chains].map(chain => `${chain} - [0:0]`)
    const deleted = chains.map(chain => `-X ${chain.slice(1)}`)
    const input = ['*nat', ...flushed, ...deleted, 'COMMIT', ''].join('\n')
    loudly('iptables-nft-restore', ['--noflush'], input)
    expect(loudly('iptables-nft-save', ['-t', 'nat'])).not.toMatch(/KUBE-(?:SVC|SEP)-/)
  })
})

describe('the busiest entry on the kernel', () => {
  it('comes first by what the kernel counted, and the plane goes on', async () => {
    execFileSync('ip', ['link', 'set', 'lo', 'up'])
    execFileSync('ip', ['route', 'replace', 'default', 'dev', 'lo'])
    const services = Array.from({ length: 20 }, (_, n) => plainService(n * 256 + 7, 1))
    const { state } = await heal(optimized, table(services))
    const leaf = () => savedLines().filter(line => line.startsWith('ip nat -A KUBE-SVC-IP-07 '))
    const before = leaf()
    expect(before.length).toBe(20)
    const busy = before.at(-1) ?? ''
    const address = /-d (\S+)\/32/.exec(busy)?.[1] ?? ''
    const clock = new FakeClock()
    const events: BusiestFirstEvent[] = []
    const busiest = new BusiestFirst({
      clock,
      names: KUBE_CHAINS,
      report: event => events.push(event),
      client: {
        generation: () => client.generation(),
        commit: (...args) => client.commit(...args),
        // As if each connection were a million.
        ruleCounters: async chain =>
          (await client.ruleCounters(chain)).map(rule => ({ ...rule, packets: rule.packets * 1_000_000n })),
      },
    })
    const round = async (): Promise<void> => {
      for (let tick = 0; tick < 30; tick++) {
        await clock.advance(10_000)
        await ended(clock)
      }
    }
    busiest.start()
    await round()
    for (let n = 0; n < 5; n++) await attempt(address)
    await round()
    await busiest.close()
    expect(events.map(({ kind }) => kind)).toEqual(['moved'])
    expect(leaf()[0]).toBe(busy)
    expect(leaf().toSorted()).toEqual(before.toSorted())
    const without = table(services.slice(1, -1))
    await commit(optimized, state, without)
    expect(leaf().length).toBe(18)
    expect([...(await heal(optimized, without)).plan.describe()]).toEqual([])
  })
})

/** Until what the timer began has asked for the next. */
async function ended(clock: FakeClock): Promise<void> {
  await eventually(() => clock.pending > 0)
  expect(clock.pending).toBe(1)
}

/** A connection's first packet, which nobody answers or somebody refuses. */
function attempt(host: string): Promise<void> {
  return new Promise(resolve => {
    const socket = connect({ host, port: 80 })
    const end = (): void => {
      socket.destroy()
      resolve()
    }
    socket.once('error', end)
    socket.once('connect', end)
    setTimeout(end, 50)
  })
}
