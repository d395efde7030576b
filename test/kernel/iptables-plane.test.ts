import { execFileSync, spawnSync } from 'node:child_process'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import type { FrontendTable } from '../../src/model/frontend.ts'
import { IptablesPlane } from '../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../src/modes/iptables/settings.ts'
import type { IptablesState } from '../../src/modes/iptables/state.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Generation, Receipt } from '../../src/reconcile/dataplane.ts'
import { foreignLines, savedLines, writeForeignRules } from '../support/foreign-rules.ts'
import { table } from '../support/frontends.ts'
import { everyKind } from '../support/services.ts'

let client: NftClient
let plane: IptablesPlane
let foreign: readonly string[]

beforeAll(() => {
  client = createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock: systemClock })
  const detector = { kind: 'interface-prefix', prefix: 'veth' } as const
  plane = new IptablesPlane({
    client,
    options: { ...DEFAULT_IPTABLES_OPTIONS, detector: { IPv4: detector, IPv6: detector } },
  })
})

beforeEach(() => {
  writeForeignRules()
  foreign = foreignLines()
})
afterEach(() => run('nft', 'flush', 'ruleset'))
afterAll(() => client.close())

function run(program: string, ...args: string[]): string {
  return execFileSync(program, args, {
    encoding: 'utf8',
    maxBuffer: 64 << 20,
    stdio: ['ignore', 'pipe', 'ignore'],
  })
}

/** With what it said on the way, which is nothing where all is well. */
function loudly(
  program: string,
  args: readonly string[],
  input = '',
): { status: number | null; said: string } {
  const { status, stderr } = spawnSync(program, args, { input, encoding: 'utf8' })
  return { status, said: stderr }
}

const CLUSTER = table([...everyKind(false), ...everyKind(true)])

async function commit(from: IptablesState, frontends: FrontendTable, generation?: Generation) {
  const wanted = finish(plane.render(frontends, { base: from, without: new Set() }))
  const plan = finish(plane.diff(from, wanted))
  const receipt: Receipt | undefined = plan.empty
    ? undefined
    : await plane.commit(plan, generation === undefined ? {} : { generation })
  expect(receipt?.refusals.map(({ error }) => error.message) ?? []).toEqual([])
  if (receipt !== undefined) expect(receipt.outcome).toBe('committed')
  return { state: wanted, plan, receipt }
}

/** What the reconciler does after damage. */
async function heal(frontends: FrontendTable = CLUSTER) {
  const { state, generation } = await plane.observe()
  return await commit(state, frontends, generation)
}

/** Chains that hold rules of many Services, in any order, before the last of them. */
const LISTS =
  /^ip6? (?:filter|nat) -A KUBE-(?:SERVICES|EXTERNAL-SERVICES|NODEPORTS|PROXY-FIREWALL) (?!.*must be the last)/

/** Chain after chain by name, each in its order. */
function held(): readonly string[] {
  const byChain = new Map<string, string[]>()
  for (const line of savedLines()) {
    const chain = line
      .split(' ')
      .slice(0, line.includes(' :') ? 3 : 4)
      .join(' ')
      .replace(/-A |:/, '')
    byChain.set(chain, [...(byChain.get(chain) ?? []), line])
  }
  return [...byChain]
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([, lines]) => [
      ...lines.filter(line => LISTS.test(line)).toSorted(),
      ...lines.filter(line => !LISTS.test(line)),
    ])
}

describe('the iptables plane on the kernel', () => {
  it('writes every kind of Service in one commit, and leaves what others wrote', async () => {
    const { receipt } = await heal()
    expect(receipt?.messages).toBeGreaterThan(100)
    expect(foreignLines().toSorted()).toEqual(foreign.toSorted())
    const saved = run('iptables-nft-save')
    expect(saved).toMatch(
      /-A KUBE-SERVICES -d 10\.96\.0\.1\/32 -p tcp -m comment --comment "ns\/plain:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-/,
    )
    expect(saved).not.toMatch(/unknown|0x[0-9a-f]{16}/)
    expect(
      savedLines()
        .filter(line => line.includes('nat -A KUBE-SERVICES'))
        .at(-1),
    ).toContain('KUBE-NODEPORTS')
  })

  it('makes tables and base chains as iptables-nft does, where there are none', async () => {
    run('nft', 'flush', 'ruleset')
    await heal()
    const hooks = run('nft', 'list', 'ruleset')
      .split('\n')
      .filter(line => line.includes(' hook '))
    run('nft', 'flush', 'ruleset')
    for (const program of ['iptables-nft', 'ip6tables-nft']) {
      for (const chain of ['INPUT', 'FORWARD', 'OUTPUT']) run(program, '-A', chain)
      for (const chain of ['PREROUTING', 'OUTPUT', 'POSTROUTING']) run(program, '-t', 'nat', '-A', chain)
    }
    const usual = run('nft', 'list', 'ruleset')
      .split('\n')
      .filter(line => line.includes(' hook '))
    expect(hooks.toSorted()).toEqual(usual.toSorted())
  })
})

/** The chain of a Service to which one rule leads. */
function chainOfPlain(): string {
  const line = savedLines().find(each => each.startsWith('ip nat -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp'))
  return / -j (\S+)$/.exec(line ?? '')?.[1] ?? ''
}

const nat = (...args: string[]) => run('iptables-nft', '-t', 'nat', ...args)

const isOurs = (line: string): boolean => !foreign.includes(line)
/** Written by kubelet, too; and base chains that a jump of ours needs. */
const isShared = (line: string): boolean => line.includes('KUBE-FIREWALL')
/** Chain and two jumps in both families, and in one what drops martians. */
const SHARED_LINES = 7

const JUMP = '-j KUBE-SERVICES'.split(' ')
const PORTALS = ['PREROUTING', '-m', 'comment', '--comment', 'kubernetes service portals', ...JUMP]

describe('what somebody else did', () => {
  const deeds: Readonly<Record<string, () => void>> = {
    'flushed table nat': () => nat('-F'),
    'flushed table filter': () => run('iptables-nft', '-F'),
    'deleted a jump': () => nat('-D', ...PORTALS),
    'doubled a jump': () => nat('-A', ...PORTALS),
    'put a rule into a chain of a Service': () =>
      nat('-I', chainOfPlain(), '-s', '198.51.100.7', '-j', 'RETURN'),
    'emptied a chain of a Service': () => nat('-F', chainOfPlain()),
    'put a rule into KUBE-SERVICES': () =>
      nat('-I', 'KUBE-SERVICES', '3', '-s', '198.51.100.7', '-j', 'RETURN'),
    'put one behind the last rule of KUBE-SERVICES': () => nat('-A', 'KUBE-SERVICES', '-j', 'RETURN'),
    'deleted an entry': () => nat('-D', 'KUBE-SERVICES', '2'),
    'doubled an entry': () => {
      const line =
        savedLines().find(each => each.startsWith('ip nat -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp')) ?? ''
      const text = `*nat\n${line.slice('ip nat '.length)}\nCOMMIT\n`
      expect(loudly('iptables-nft-restore', ['--noflush'], text)).toEqual({ status: 0, said: '' })
    },
    'deleted the last rule of KUBE-SERVICES': () => {
      const count = savedLines().filter(line => line.startsWith('ip nat -A KUBE-SERVICES')).length
      nat('-D', 'KUBE-SERVICES', String(count))
    },
    'moved the last rule of KUBE-SERVICES to its head': () => {
      const lines = savedLines().filter(line => line.startsWith('ip nat -A KUBE-SERVICES'))
      const last = lines.at(-1)?.replace('ip nat -A KUBE-SERVICES', '-I KUBE-SERVICES') ?? ''
      nat('-D', 'KUBE-SERVICES', String(lines.length))
      expect(loudly('iptables-nft-restore', ['--noflush'], `*nat\n${last}\nCOMMIT\n`)).toEqual({
        status: 0,
        said: '',
      })
    },
    'deleted the chain of a Service': () => {
      const chain = chainOfPlain()
      const rules = run('nft', '-a', 'list', 'chain', 'ip', 'nat', 'KUBE-SERVICES').split('\n')
      for (const line of rules.filter(each => each.includes(chain)))
        run(
          'nft',
          'delete',
          'rule',
          'ip',
          'nat',
          'KUBE-SERVICES',
          'handle',
          / handle (\d+)$/.exec(line)?.[1] ?? '',
        )
      nat('-F', chain)
      nat('-X', chain)
    },
    'emptied what postrouting does': () => nat('-F', 'KUBE-POSTROUTING'),
    'left a chain of a Service that is gone': () => {
      run(
        'nft',
        'add chain ip nat KUBE-SVC-AAAAAAAAAAAAAAAA; add rule ip nat KUBE-SVC-AAAAAAAAAAAAAAAA counter drop',
      )
    },
    'deleted all rules and chains of a table': () => {
      for (const option of ['-F', '-X']) run('iptables-nft', '-t', 'nat', option)
    },
    'flushed the whole ruleset': () => {
      run('nft', 'flush', 'ruleset')
      writeForeignRules()
    },
    'deleted a base chain': () => {
      run('nft', 'flush chain ip nat PREROUTING; delete chain ip nat PREROUTING')
      nat('-A', 'PREROUTING', '-m', 'addrtype', '--dst-type', 'LOCAL', '-j', 'DOCKER')
    },
    'deleted a base chain for good': () =>
      run('nft', 'flush chain ip nat POSTROUTING; delete chain ip nat POSTROUTING'),
    'hung a chain of ours at a hook': () =>
      run(
        'nft',
        'delete chain ip nat KUBE-PROXY-CANARY; add chain ip nat KUBE-PROXY-CANARY { type nat hook prerouting priority -90; }',
      ),
    'deleted a canary': () => run('iptables-nft', '-t', 'mangle', '-X', 'KUBE-PROXY-CANARY'),
  }

  it.each(Object.entries(deeds))('is put right: %s', async (_, deed) => {
    await heal()
    const before = held()
    deed()
    const others = foreignLines().toSorted()
    const { plan, receipt } = await heal()
    expect(plan.empty).toBe(false)
    expect(receipt?.outcome).toBe('committed')
    expect(held().filter(isOurs)).toEqual(before.filter(isOurs))
    // What kubelet writes as well came back, and nothing else of what is not ours has changed.
    const left = new Set(others)
    const healed = foreignLines()
    expect(healed.filter(line => !left.has(line) && !isShared(line))).toEqual([])
    expect(others.filter(line => !healed.includes(line))).toEqual([])
    expect(savedLines().filter(isShared)).toHaveLength(SHARED_LINES)
    expect((await heal()).plan.empty).toBe(true)
  })
})

describe('what others do on top of ours', () => {
  it('works without a warning, and is left alone', async () => {
    await heal()
    for (const program of ['iptables-nft', 'ip6tables-nft']) {
      for (const name of ['filter', 'nat', 'mangle']) {
        const { status, said } = loudly(program, ['-t', name, '-L', '-n', '-v'])
        expect({ program, name, status, said }).toEqual({ program, name, status: 0, said: '' })
        const chain = name === 'nat' ? 'PREROUTING' : 'INPUT'
        const rule = [chain, '-p', 'tcp', '--dport', '7', '-j', 'ACCEPT']
        expect(loudly(program, ['-t', name, '-A', ...rule])).toEqual({ status: 0, said: '' })
        expect(loudly(program, ['-t', name, '-I', ...rule])).toEqual({ status: 0, said: '' })
        expect(loudly(program, ['-t', name, '-D', ...rule])).toEqual({ status: 0, said: '' })
      }
    }
    const text = '*nat\n:CNI-NEW - [0:0]\n-A CNI-NEW -j RETURN\n-I PREROUTING -j CNI-NEW\nCOMMIT\n'
    expect(loudly('iptables-nft-restore', ['--noflush'], text)).toEqual({ status: 0, said: '' })
    const before = held()
    expect((await heal()).plan.empty).toBe(true)
    expect(held()).toEqual(before)
    expect(savedLines()).toContain('ip nat -A CNI-NEW -j RETURN')
  })

  it('does not disturb a change of ours when it makes a table anew, in another order', async () => {
    const { state } = await heal()
    const saved = run('iptables-nft-save', '-t', 'nat')
    run('nft', 'delete', 'table', 'ip', 'nat')
    // The same rules in another order: every handle is another rule's.
    const lines = saved.split('\n')
    const entries = lines.filter(line => line.startsWith('-A KUBE-SERVICES'))
    const rest = lines.filter(line => !line.startsWith('-A KUBE-SERVICES') && line !== 'COMMIT')
    const turned = [
      ...rest.filter(line => !line.startsWith('#')),
      ...entries.slice(0, -1).reverse(),
      ...entries.slice(-1),
    ]
    expect(
      loudly(
        'iptables-nft-restore',
        ['--noflush'],
        `${turned.filter(line => line !== '').join('\n')}\nCOMMIT\n`,
      ),
    ).toEqual({ status: 0, said: '' })
    const fewer = table([...everyKind(false).slice(1), ...everyKind(true)])
    const { receipt } = await commit(state, fewer)
    expect(receipt?.foreign).toBe(true)
    expect([...(await heal(fewer)).plan.describe()]).toEqual([])
  })
})

describe('cleanup', () => {
  it('removes nothing that another program writes between the question and the commit', async () => {
    await heal()
    let asked = 0
    await plane.cleanup(async () => {
      if (++asked === 1) nat('-A', 'DOCKER', '-s', '192.0.2.9', '-j', 'KUBE-MARK-MASQ')
      return asked === 1
    })
    expect(asked).toBe(2)
    expect(savedLines()).toContain('ip nat :KUBE-SERVICES -')
  })

  it('leaves whole what rules of others lead to', async () => {
    await heal()
    nat('-A', 'DOCKER', '-s', '192.0.2.9', '-j', 'KUBE-MARK-MASQ')
    await plane.cleanup()
    const ours = savedLines().filter(line => /KUBE-(?:MARK|SVC|SEP|SERV)/.test(line))
    expect(ours).toEqual(
      [
        'ip nat :KUBE-MARK-MASQ -',
        'ip nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000',
        'ip nat -A DOCKER -s 192.0.2.9/32 -j KUBE-MARK-MASQ',
      ].toSorted((a, b) => ours.indexOf(a) - ours.indexOf(b)),
    )
  })
})
