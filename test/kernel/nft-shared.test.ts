import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import type { CompiledRule, ObservedRule } from '../../src/kernel/nft/state.ts'
import type { Operation } from '../../src/kernel/nft/transaction.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'

const NAT = { family: 'ip', table: 'nat' } as const

let client: NftClient

beforeEach(() => {
  execFileSync('nft', ['flush', 'ruleset'])
  client = createNftClient({
    transport: openNetlink({ protocol: NETLINK_NETFILTER }),
    clock: systemClock,
  })
})
afterEach(() => client.close())

function iptables(...args: readonly string[]): string {
  return execFileSync('iptables-nft', ['-t', 'nat', ...args], { encoding: 'utf8' })
}

/** What iptables-nft-save prints of the table, without its comments and counters. */
function saved(): readonly string[] {
  const text = execFileSync('iptables-nft-save', ['-t', 'nat'], { encoding: 'utf8' })
  return text.split('\n').filter(line => line.startsWith('-A'))
}

async function rulesOf(chain: string): Promise<readonly ObservedRule[]> {
  const { observed } = await client.listChains([NAT])
  return observed.get('ip nat')?.chains.get(chain)?.rules ?? []
}

/** A jump as iptables-nft writes it. */
async function jumpTo(chain: string): Promise<CompiledRule> {
  iptables('-N', 'LENDER')
  iptables('-A', 'LENDER', '-m', 'comment', '--comment', 'ours', '-j', chain)
  const [rule] = await rulesOf('LENDER')
  iptables('-F', 'LENDER')
  iptables('-X', 'LENDER')
  return { compiled: rule?.compiled ?? '', protocol: 0, protocolInverted: false }
}

const HAS_IPTABLES = existsSync('/usr/sbin/iptables-nft')
if (!HAS_IPTABLES) console.log('skipped: iptables-nft beside us, which is not installed here')

describe.skipIf(!HAS_IPTABLES)('with iptables-nft in the same tables', () => {
  it('rules go back as the bytes that they were read as, and iptables-nft reads every word of them', async () => {
    const words = [
      '-d 10.96.0.10/32 -p tcp -m comment --comment ns/a:http -m tcp --dport 80 -j RETURN',
      '-p tcp -m comment --comment ns/a:http -m tcp -j DNAT --to-destination 10.0.0.1:8080',
      '-m comment --comment ns/a -m statistic --mode random --probability 0.50000000000 -j RETURN',
      '-m recent --rcheck --seconds 10 --reap --name A --mask 255.255.255.255 --rsource -j RETURN',
      '-m addrtype --dst-type LOCAL -j MARK --set-xmark 0x4000/0x4000',
      '! -s 10.0.0.0/8 -m conntrack --ctstate INVALID -j ACCEPT',
      '-j MASQUERADE --random-fully',
    ]
    iptables('-N', 'KUBE-T')
    for (const each of words) iptables('-A', 'KUBE-T', ...each.split(' '))
    const before = saved()
    const rules = await rulesOf('KUBE-T')
    expect(rules).toHaveLength(words.length)
    iptables('-F', 'KUBE-T')
    const additions = rules.map(({ compiled }, i): Operation => {
      const protocol = words[i]?.includes('-p tcp') === true ? 6 : 0
      const rule = { compiled, protocol, protocolInverted: false }
      return { ...NAT, verb: 'add-rule', chain: 'KUBE-T', rule }
    })
    expect(await client.commit(additions)).toMatchObject({ outcome: 'committed', failures: [] })
    expect(saved()).toEqual(before)
    expect((await rulesOf('KUBE-T')).map(({ compiled }) => compiled)).toEqual(
      rules.map(({ compiled }) => compiled),
    )
  })

  it('a jump goes to the head, leaves by its handle, and everything else stays as it was', async () => {
    iptables('-N', 'KUBE-T')
    iptables('-A', 'PREROUTING', '-m', 'comment', '--comment', 'cni', '-j', 'ACCEPT')
    const before = saved()
    const rule = await jumpTo('KUBE-T')
    const insertion = { ...NAT, verb: 'insert-rule', chain: 'PREROUTING', rule, echo: true } as const
    const { outcome, handles } = await client.commit([insertion])
    expect(outcome).toBe('committed')
    expect(saved()).toEqual(['-A PREROUTING -m comment --comment ours -j KUBE-T', ...before])
    const handle = handles.get(insertion) ?? 0n
    expect(client.rule({ ...NAT, chain: 'PREROUTING', handle })).toBe(rule.compiled)
    const removal = { ...NAT, verb: 'delete-rule', chain: 'PREROUTING', handle } as const
    expect(await client.commit([removal])).toMatchObject({ outcome: 'committed' })
    expect(saved()).toEqual(before)
  })

  it('a flush is seen, whoever does it', async () => {
    iptables('-N', 'KUBE-T')
    iptables('-A', 'KUBE-T', '-j', 'RETURN')
    const [rule] = await rulesOf('KUBE-T')
    expect(rule).toBeDefined()
    iptables('-F', 'KUBE-T')
    expect(await rulesOf('KUBE-T')).toEqual([])
    const handle = rule?.handle ?? 0n
    expect(client.rule({ ...NAT, chain: 'KUBE-T', handle })).toBeUndefined()
    const removal = { ...NAT, verb: 'delete-rule', chain: 'KUBE-T', handle } as const
    expect(await client.commit([removal])).toMatchObject({
      outcome: 'refused',
      failures: [{ code: 'ENOENT' }],
    })
    execFileSync('nft', ['flush', 'ruleset'])
    expect((await client.listChains([NAT])).observed).toEqual(new Map())
  })
})
