import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { createNftClient } from '../../../../src/kernel/nft/client.ts'
import { missingPart } from '../../../../src/kernel/nft/failures.ts'
import type { Operation } from '../../../../src/kernel/nft/transaction.ts'
import { probe } from '../../../../src/kernel/xt/probe.ts'
import { nftablesFeatures } from '../../../../src/modes/nftables/doctor.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'

/** What the client says of a commit with these operations where these parts are missing. */
async function refusals(absent: readonly string[], operations: readonly Operation[]): Promise<string[]> {
  const kernel = new FakeKernel()
  for (const part of absent) kernel.space.absent.add(part)
  const client = createNftClient({ transport: kernel.open(), clock: systemClock })
  const { failures } = await client.commit(operations)
  await client.close()
  return failures.map(({ error }) => error.message)
}

const TABLE = { family: 'ip', table: 'kube-proxy-ipvs' } as const
const CHAIN: readonly Operation[] = [
  { ...TABLE, verb: 'add-table', flags: 0, comment: undefined },
  { ...TABLE, verb: 'add-chain', chain: { name: 'reject', hook: undefined, rules: [] } },
]
const REJECT: Operation = {
  ...TABLE,
  verb: 'add-rule',
  chain: 'reject',
  rule: {
    comment: '',
    expressions: [{ kind: 'numgen', modulus: 7, dreg: 0 }, { kind: 'counter' }, { kind: 'reject', code: 3 }],
  },
}

describe('F143: a commit on a kernel without a module', () => {
  it('names the module, the kernel option and the remedy', async () => {
    expect(await refusals(['2 reject'], [...CHAIN, REJECT])).toEqual([
      'add rule ip kube-proxy-ipvs reject: ENOENT (No such file or directory): this kernel has no expression reject for family ip: ' +
        'the module nft_reject_ipv4 is missing (CONFIG_NFT_REJECT_IPV4); install it, or load it with modprobe nft_reject_ipv4',
    ])
  })

  it('names the one that is missing of several that the rule needs', async () => {
    const [text] = await refusals(['numgen'], [...CHAIN, REJECT])
    expect(text).toContain('the module nft_numgen is missing (CONFIG_NFT_NUMGEN)')
  })

  it('names no module where an object of nf_tables is missing', async () => {
    const lookup: Operation = {
      ...TABLE,
      verb: 'add-rule',
      chain: 'reject',
      rule: {
        comment: '',
        expressions: [
          { kind: 'numgen', modulus: 7, dreg: 0 },
          { kind: 'lookup', set: 'nowhere', sreg: 0, dreg: undefined, inverted: false },
        ],
      },
    }
    expect(await refusals([], [...CHAIN, lookup])).toEqual([
      'add rule ip kube-proxy-ipvs reject: ENOENT (No such file or directory)',
    ])
    expect(await refusals([], [REJECT])).toEqual([
      'add rule ip kube-proxy-ipvs reject: ENOENT (No such file or directory)',
    ])
  })

  it('says nothing where the kernel does not say which expression it is', () => {
    expect(missingPart(REJECT, undefined)).toBeUndefined()
  })
})

describe('F143: kprobe doctor on a kernel without a module', () => {
  it.each([
    ['2 reject', 'nft_reject_ipv4', 'CONFIG_NFT_REJECT_IPV4'],
    ['10 reject', 'nft_reject_ipv6', 'CONFIG_NFT_REJECT_IPV6'],
    ['2 fib', 'nft_fib_ipv4', 'CONFIG_NFT_FIB_IPV4'],
    ['10 fib', 'nft_fib_ipv6', 'CONFIG_NFT_FIB_IPV6'],
    ['ct', 'nft_ct', 'CONFIG_NFT_CT'],
    ['masq', 'nft_masq', 'CONFIG_NFT_MASQ'],
    ['nat', 'nft_nat', 'CONFIG_NFT_NAT'],
    ['numgen', 'nft_numgen', 'CONFIG_NFT_NUMGEN'],
    ['nat chain', 'nft_chain_nat', 'CONFIG_NFT_NAT'],
  ])('%s: finds it before a commit does, and names %s', async (part, module, option) => {
    const kernel = new FakeKernel()
    kernel.space.absent.add(part)
    const client = createNftClient({ transport: kernel.open(), clock: systemClock })
    const reasons: string[] = []
    for (const { transaction } of nftablesFeatures({ logRejects: 7 })) {
      const { reason } = await probe(client, transaction)
      if (reason !== undefined) reasons.push(reason)
    }
    await client.close()
    expect(reasons).not.toEqual([])
    for (const reason of reasons) expect(reason).toContain(`the module ${module} is missing (${option})`)
  })
})
