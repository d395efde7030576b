import { execFileSync, spawnSync } from 'node:child_process'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { hex } from '../../src/base/octets.ts'
import { NfacctClient } from '../../src/kernel/nfacct/client.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import type { NftFamily, Observed } from '../../src/kernel/nft/state.ts'
import type { Operation } from '../../src/kernel/nft/transaction.ts'
import { compileRule } from '../../src/kernel/xt/compile.ts'
import { printRule } from '../../src/kernel/xt/print.ts'
import { readRule } from '../../src/kernel/xt/read.ts'
import { builtinChains, builtinHook, type XtTableName } from '../../src/kernel/xt/scope.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { asRead, COUNTERS, JUMPED_TO, SETS, WRITTEN, type WrittenRule } from '../support/xt-rules.ts'
import { address } from '../support/xt-words.ts'
import { ipsetNames } from './ipsets.ts'
import { inOurOrder } from './our-order.ts'

const TOOLS = { ip: 'iptables-nft', ip6: 'ip6tables-nft' } as const
const TABLES = ['filter', 'nat', 'mangle'] as const

function run(command: string, args: readonly string[], input?: string): string {
  return execFileSync(command, args, { encoding: 'utf8', ...(input === undefined ? {} : { input }) })
}

const open = () => openNetlink({ protocol: NETLINK_NETFILTER })

for (const family of ['ip', 'ip6'] as const) {
  describe(`rules of ${TOOLS[family]}`, () => {
    let client: NftClient
    let names: ReturnType<typeof ipsetNames>
    const transports = [open()]

    beforeAll(async () => {
      freshNetns()
      const asking = open()
      transports.push(asking)
      names = ipsetNames(asking)
      for (const [at, set] of SETS[family].entries())
        run('ipset', [
          'create',
          set,
          'hash:ip,port',
          'family',
          family === 'ip' ? 'inet' : 'inet6',
          'maxelem',
          `${at + 9}`,
        ])
      const accounts = new NfacctClient({ transport: open(), clock: systemClock })
      for (const name of COUNTERS) accounts.ensure(name)
      await accounts.close()
      client = createNftClient({ transport: open(), clock: systemClock, ipsets: names })
    })
    afterAll(async () => {
      await client.close()
      await Promise.all(transports.map(transport => transport.close()))
    })

    const written = WRITTEN[family]
    const list = async (): Promise<Observed> =>
      (await client.listChains(TABLES.map(table => ({ family, table })))).observed
    const save = (): string => run(`${TOOLS[family]}-save`, [])
    const compiled = ({ rule }: WrittenRule) => compileRule(rule, family, names.indexOf)

    test('there are rules of every kind', () => {
      expect(written.length).toBeGreaterThan(150)
    })

    test('ours have the bytes that the tool gives the kernel, addresses before the protocol, are read back, and printed as it prints them', async () => {
      run(`${TOOLS[family]}-restore`, [], restoreText(written))
      const observed = await list()
      const saved = linesOf(save())
      const bytes = bytesOf(observed)
      for (const [place, rules] of byPlace(written)) {
        const theirs = bytes.get(place) ?? []
        expect(rules.map(one => `${one.words}: ${hex(compiled(one).compiled)}`)).toEqual(
          rules.map((one, at) => `${one.words}: ${hex(inOurOrder(theirs[at] ?? '', one.rule, family))}`),
        )
        expect(theirs.map(each => readRule(each, family, names.nameOf))).toEqual(
          rules.map(one => asRead(one.rule)),
        )
        expect(rules.map(one => `-A ${one.chain} ${printRule(one.rule, family)}`.trim())).toEqual(
          saved.get(place),
        )
      }
    })

    test('what we write over netlink, the tool prints as its own', async () => {
      const before = save()
      run('nft', ['flush', 'ruleset'])
      const result = await client.commit(transactionOf(family, written, compiled))
      expect(result.outcome).toBe('committed')
      expect(withoutDates(save())).toBe(withoutDates(before))
      const bytes = bytesOf(await list())
      for (const [place, rules] of byPlace(written))
        expect(bytes.get(place)).toEqual(rules.map(one => compiled(one).compiled))
      // It takes them for its own: it finds them, and deletes them.
      const tool = TOOLS[family]
      for (const { table, chain, words } of written.slice(0, 40))
        run('sh', [
          '-c',
          `${tool} -t ${table} -C ${chain} ${words} && ${tool} -t ${table} -D ${chain} ${words}`,
        ])
      expect(run(tool, ['-S', 'FORWARD']).split('\n').length).toBeLessThan(written.length)
    })

    test('what asks of IPVS, which not every kernel has, is sent as the tool sends it', () => {
      const ip = family === 'ip' ? '10.0.0.1' : 'fd00::1'
      const words = ['-A', 'INPUT', '-m', 'ipvs', '--vaddr', ip, '--vproto', 'tcp', '--vport', '80']
      const { stderr } = spawnSync('strace', [
        '-e',
        'trace=sendmsg',
        '-xx',
        '-s',
        '9999',
        TOOLS[family],
        ...words,
      ])
      const sent = stderr.toString().replaceAll('\\x', '')
      const vaddr = address(ip, family === 'ip' ? 32 : 128)
      const match = { kind: 'ipvs', vproto: 6, vaddr, vport: 80 } as const
      const { compiled } = compileRule({ matches: [match], target: undefined }, family)
      expect(infoIn(hex(compiled))).toMatch(/^2c000300/)
      expect(infoIn(sent)).toBe(infoIn(hex(compiled)))
    })

    test('chains that packets enter are made as the tool makes them', async () => {
      run('nft', ['flush', 'ruleset'])
      for (const table of TABLES)
        for (const chain of builtinChains(table)) run(TOOLS[family], ['-t', table, '-A', chain])
      const observed = await list()
      for (const table of TABLES) {
        const chains = observed.get(`${family} ${table}`)?.chains
        expect([...(chains?.keys() ?? [])].toSorted()).toEqual(builtinChains(table).toSorted())
        for (const chain of builtinChains(table))
          expect(chains?.get(chain)?.hook, `${table} ${chain}`).toEqual(builtinHook(table, chain))
      }
    })
  })
}

const IPVS_INFO_BYTES = 40

/** In hexadecimal: what follows the name, the revision and the structure's length. */
function infoIn(text: string): string | undefined {
  return new RegExp(`6970767300(?:00)*0800020000000000(2c000300[0-9a-f]{${IPVS_INFO_BYTES * 2}})`).exec(
    text,
  )?.[1]
}

function placeOf({ table, chain }: WrittenRule): string {
  return `${table} ${chain}`
}

function byPlace(written: readonly WrittenRule[]): ReadonlyMap<string, readonly WrittenRule[]> {
  return grouped(written, placeOf)
}

function grouped(
  written: readonly WrittenRule[],
  keyOf: (one: WrittenRule) => string,
): ReadonlyMap<string, readonly WrittenRule[]> {
  const groups = new Map<string, WrittenRule[]>()
  for (const one of written) groups.set(keyOf(one), [...(groups.get(keyOf(one)) ?? []), one])
  return groups
}

function restoreText(written: readonly WrittenRule[]): string {
  return [...grouped(written, ({ table }) => table)]
    .flatMap(([table, rules]) => [
      `*${table}`,
      ...JUMPED_TO.map(chain => `:${chain} - [0:0]`),
      ...rules.map(({ chain, words }) => `-A ${chain} ${words}`),
      'COMMIT',
      '',
    ])
    .join('\n')
}

/** Rules as they are saved, by table and chain. */
function linesOf(text: string): ReadonlyMap<string, readonly string[]> {
  const lines = new Map<string, string[]>()
  let table = ''
  for (const line of text.split('\n')) {
    if (line.startsWith('*')) table = line.slice(1)
    const chain = /^-A (\S+)/.exec(line)?.[1]
    if (chain === undefined) continue
    const place = `${table} ${chain}`
    lines.set(place, [...(lines.get(place) ?? []), line.trim()])
  }
  return lines
}

function bytesOf(observed: Observed): ReadonlyMap<string, readonly string[]> {
  const bytes = new Map<string, readonly string[]>()
  for (const [table, { chains }] of observed)
    for (const [chain, { rules }] of chains)
      bytes.set(
        `${table.split(' ')[1]} ${chain}`,
        rules.map(rule => rule.compiled),
      )
  return bytes
}

function withoutDates(text: string): string {
  return text
    .split('\n')
    .filter(line => !line.startsWith('#'))
    .join('\n')
}

function transactionOf(
  family: NftFamily,
  written: readonly WrittenRule[],
  compiled: (one: WrittenRule) => ReturnType<typeof compileRule>,
): readonly Operation[] {
  const used: readonly XtTableName[] = ['filter', 'nat']
  const chains = used.flatMap((table): readonly Operation[] => [
    { family, table, verb: 'add-table', flags: 0, comment: undefined },
    ...[...builtinChains(table), ...JUMPED_TO].map(
      (name): Operation => ({
        family,
        table,
        verb: 'add-chain',
        chain: { name, hook: builtinHook(table, name), rules: [] },
      }),
    ),
  ])
  const rules = written.map(
    (one): Operation => ({
      family,
      table: one.table,
      verb: 'add-rule',
      chain: one.chain,
      rule: compiled(one),
    }),
  )
  return [...chains, ...rules]
}
