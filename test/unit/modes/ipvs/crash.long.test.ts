import { describe, expect, it } from 'vitest'
import type { IpvsOptions } from '../../../../src/modes/ipvs/settings.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { IpvsNode } from '../../../support/ipvs-node.ts'
import { IpvsRig } from '../../../support/ipvs-rig.ts'
import { serviceOf } from '../../../support/ipvs-services.ts'
import { runs } from '../../../support/runs.ts'

const NOTHING: readonly object[] = []
const BEFORE = [
  ...serviceOf('web', { ip: '172.30.0.1', endpoints: ['10.1.0.1', '10.1.0.2'], externalIPs: ['192.0.2.1'] }),
  ...serviceOf('dns', { ip: '172.30.0.2', port: 53, protocol: 'UDP', endpoints: ['10.1.0.3', '10.1.0.4'] }),
  ...serviceOf('gone', { ip: '172.30.0.3', endpoints: ['10.1.0.5'], externalIPs: ['192.0.2.3'] }),
]
/** A redirect of policy Local. */
const LITTLE = serviceOf('local', {
  ip: '172.30.0.6',
  endpoints: ['10.1.0.7'],
  externalIPs: ['192.0.2.6'],
  externalLocal: true,
})

/** Something comes, goes and changes of every kind: servers, real servers, affinity, node ports, shared addresses. */
const AFTER = [
  ...serviceOf('web', { ip: '172.30.0.1', endpoints: ['10.1.0.2', '10.1.0.6'], affinityS: 60 }),
  ...serviceOf('dns', {
    ip: '172.30.0.2',
    port: 53,
    protocol: 'UDP',
    endpoints: ['10.1.0.4'],
    nodePort: 30053,
  }),
  ...serviceOf('new', {
    ip: '172.30.0.4',
    endpoints: ['10.1.0.5'],
    externalIPs: ['192.0.2.1', '192.0.2.3'],
    port: 443,
  }),
  ...serviceOf('idle', { ip: '172.30.0.5' }),
  ...LITTLE,
]

interface Story {
  readonly before: readonly object[]
  readonly after: readonly object[]
  /** Whose rules the process from before wrote, and whose the one writes that dies; nftables unless told. */
  readonly rules?: readonly [before: IpvsOptions['rules'], after: IpvsOptions['rules']]
}

const STORIES: Readonly<Record<string, Story>> = {
  'a first load': { before: NOTHING, after: BEFORE },
  'changes of every kind': { before: BEFORE, after: AFTER },
  'an unload': { before: AFTER, after: NOTHING },
  "a first load with kube-proxy's chains": {
    before: NOTHING,
    after: LITTLE,
    rules: ['iptables', 'iptables'],
  },
  "a change to kube-proxy's chains": { before: LITTLE, after: LITTLE, rules: ['nftables', 'iptables'] },
  'a change to rules of our own': { before: LITTLE, after: LITTLE, rules: ['iptables', 'nftables'] },
}

const NFTABLES = ['nftables', 'nftables'] as const

/** Everything, with the chains of iptables that are not empty base chains. */
function dumpOf(node: IpvsNode): readonly string[] {
  const chains = [...node.nft.space.tables.values()].flatMap(({ family, name, chains: all }) =>
    [...all.values()].flatMap(chain =>
      name.startsWith('kube-proxy') || (chain.hook !== undefined && chain.rules.length === 0)
        ? []
        : [`chain ${family} ${name} ${chain.name} ${chain.rules.length}`],
    ),
  )
  return [...node.dump(), ...chains.sort()]
}

const TURNS_MAX = 2_000
const CHECKED_AGAIN = 8
/** The first and the last messages of a story differ most. Of those between them, so many crashes are tried, spread evenly. */
const CRASHES = runs(30)
const AT_ENDS = runs(10)

/** After how many messages a process dies, in the order of the story. */
function crashPoints(count: number): readonly number[] {
  const step = Math.max(1, Math.floor(count / CRASHES))
  return Array.from({ length: count }, (_, after) => after).filter(
    after => after < AT_ENDS || after >= count - AT_ENDS || after % step === 0,
  )
}

/** One process, which dies after so many messages; undefined lets it finish. Gives how many it sent. */
async function live(node: IpvsNode, clock: FakeClock, story: Story, diesAfter?: number): Promise<number> {
  const [before, after] = story.rules ?? NFTABLES
  let rig = new IpvsRig({ node, clock, driftPollMs: 0, options: { rules: before } })
  await rig.sync(story.before)
  if (after !== before) {
    await rig.close()
    rig = new IpvsRig({ node, clock, driftPollMs: 0, options: { rules: after } })
  }
  const start = node.messages
  if (diesAfter !== undefined) node.diesAt = start + diesAfter
  rig.offer(story.after)
  if (diesAfter === undefined) await rig.synced()
  else for (let turns = 0; node.messages < node.diesAt && turns < TURNS_MAX; turns++) await rig.wait(1)
  const sent = node.messages - start
  node.diesAt = node.messages
  await rig.close()
  node.diesAt = Number.POSITIVE_INFINITY
  return sent
}

/** The next process, which knows nothing but what the kernel tells. */
async function heal(node: IpvsNode, clock: FakeClock, { after, rules = NFTABLES }: Story): Promise<IpvsRig> {
  const rig = new IpvsRig({ node, clock, driftPollMs: 0, options: { rules: rules[1] } })
  await rig.sync(after)
  await rig.close()
  return rig
}

function watched(): { readonly node: IpvsNode; readonly clock: FakeClock; readonly complaints: string[] } {
  const clock = new FakeClock()
  const node = new IpvsNode({ nowMs: () => clock.nowMs() })
  const complaints: string[] = []
  node.afterMessage = () => {
    for (const complaint of node.complaints()) complaints.push(`message ${node.messages}: ${complaint}`)
  }
  return { node, clock, complaints }
}

describe('a crash between any two messages', () => {
  it.each(Object.entries(STORIES))(
    'during %s is healed by looking and comparing (F101)',
    async (_, story) => {
      const whole = watched()
      const count = await live(whole.node, whole.clock, story)
      await heal(whole.node, whole.clock, story)
      const goal = dumpOf(whole.node)
      expect(whole.complaints).toEqual([])
      expect(count).toBeGreaterThan(10)
      for (const [index, after] of crashPoints(count).entries()) {
        const { node, clock, complaints } = watched()
        const sent = await live(node, clock, story, after)
        expect(sent).toBe(after)
        await heal(node, clock, story)
        if (index % CHECKED_AGAIN === 0)
          expect((await heal(node, clock, story)).kinds(), 'nothing is left to do').toEqual(['synced'])
        expect(dumpOf(node), `dead after ${after} of ${count} messages`).toEqual(goal)
        expect(complaints, `dead after ${after} of ${count} messages`).toEqual([])
      }
    },
  )
})
