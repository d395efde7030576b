import { execFileSync } from 'node:child_process'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { type Ended, runInProcess } from '../support/command.ts'
import { EXAMPLE_FLAGS } from '../support/daemon.ts'
import { changeMode, expectAllAnswered, ModeSwitch, STEP_MS, writeMode } from '../support/mode-switch.ts'

/* --ipvs-rules=iptables as a whole: its commands, and what takes its place under traffic. */

const SOURCE = [...EXAMPLE_FLAGS, '--proxy-mode=ipvs']
const CHAINS = [...SOURCE, '--ipvs-rules=iptables']

const kprobe = (...args: readonly string[]): Promise<Ended> => runInProcess(args)

/** Rules of both tables and families. */
function saved(): readonly string[] {
  return ['iptables', 'ip6tables'].flatMap(tool =>
    ['filter', 'nat'].flatMap(table => {
      const text = execFileSync(`${tool}-nft-save`, ['-t', table], { encoding: 'utf8' })
      return text.split('\n').filter(line => /^(?:-A|:KUBE)/.test(line))
    }),
  )
}

function ours(): readonly string[] {
  return saved().filter(line => line.includes('KUBE-'))
}

const NOTHING_TO_DO = 'no difference: the kernel holds the wanted state\n'

describe('the commands with --ipvs-rules=iptables', () => {
  afterAll(async () => {
    await kprobe('cleanup', '--force')
  })

  it('write the chains, say so, and find nothing left to do', async () => {
    const plan = await kprobe('plan', ...CHAINS)
    expect(plan).toMatchObject({ code: 3 })
    expect(plan.out).toContain('--match-set KUBE-CLUSTER-IP dst,dst')
    expect(await kprobe('run', '--once', ...CHAINS)).toMatchObject({ code: 0 })
    expect(ours()).toContain('-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT')
    expect(await kprobe('plan', ...CHAINS)).toMatchObject({ code: 0, out: NOTHING_TO_DO })
    const dumped = (await kprobe('dump', '-o', 'iptables-save')).out.split('\n')
    expect(dumped.filter(line => /^(?:-A|:KUBE)/.test(line)).sort()).toEqual([...saved()].sort())
    expect((await kprobe('dump', 'iptables')).out).toMatch(
      /ip filter KUBE-IPVS-FILTER +-m set --match-set KUBE-LOAD-BALANCER dst,dst/,
    )
  })

  it('explain a packet by the rules of both', async () => {
    const explained = await kprobe(
      'explain',
      '--from=203.0.113.9',
      '--to=10.96.0.10:53',
      '--proto=udp',
      '--cluster-cidr=10.244.0.0/16',
      ...CHAINS,
    )
    expect(explained.out, explained.err).toContain('-A KUBE-SERVICES')
    expect(explained.out).toContain('KUBE-MARK-MASQ')
  })

  it('name what somebody changed, and heal it', async () => {
    const before = saved()
    execFileSync('nft', ['flush', 'table', 'ip', 'nat'])
    execFileSync('iptables-nft', ['-D', 'INPUT', '1'])
    expect(await kprobe('verify', ...CHAINS)).toMatchObject({ code: 3 })
    expect((await kprobe('run', '--once', ...CHAINS)).code).toBe(0)
    expect([...saved()].sort()).toEqual([...before].sort())
  })

  it('leave the other form of the rules when told, and nothing at all in the end', async () => {
    expect(await kprobe('run', '--once', ...SOURCE)).toMatchObject({ code: 0 })
    expect(ours()).toEqual([])
    expect(await kprobe('run', '--once', ...CHAINS)).toMatchObject({ code: 0 })
    const cleaned = await kprobe('cleanup')
    expect(cleaned.out).toMatch(/^removed 5 chains, and the rules that led to them, in table ip nat$/m)
    expect(ours()).toEqual([])
    expect(execFileSync('ipset', ['list', '-n'], { encoding: 'utf8' })).not.toContain('KUBE-')
  })
})

describe('a change of the rules', () => {
  let rig: ModeSwitch

  beforeAll(async () => {
    rig = await ModeSwitch.open()
  })

  afterEach(() => rig.endDaemons())

  afterAll(async () => {
    await rig?.close()
  })

  it('between two starts, and one of the mode, costs no connection', async () => {
    await rig.start('ipvs')
    const clients = rig.startClients()
    const talkers = rig.startTalkers()
    try {
      await Promise.all(talkers.map(talker => talker.answers(3)))
      await rig.endDaemons()
      const again = await rig.start('ipvs', '--ipvs-rules=iptables')
      expect(ours().length).toBeGreaterThan(80)
      await Promise.all(talkers.map(talker => talker.answers(3)))
      writeMode(again.config, 'iptables')
      await again.daemon.logged('cannot apply the whole new configuration', 1, STEP_MS)
      await changeMode(again, 'nftables')
      await Promise.all(talkers.map(talker => talker.answers(3)))
    } finally {
      await Promise.all(talkers.map(talker => talker.close()))
    }
    await expectAllAnswered(clients)
  })
})
