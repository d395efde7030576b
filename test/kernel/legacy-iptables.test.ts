import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { beforeEach, expect, it } from 'vitest'
import { kubeProxyChains, readLegacyTables } from '../../src/modes/foreign/legacy-iptables.ts'
import { freshNetns } from '../support/lab/netns.ts'

const RULES = (net: string, host: number): string => `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ABCDEFGHIJKLMNOP - [0:0]
:KUBE-FIREWALL - [0:0]
:MINE - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d ${net}1/${host} -j KUBE-SVC-ABCDEFGHIJKLMNOP
-A KUBE-SERVICES -d ${net}2/${host} -p tcp -m tcp --dport 80 -j KUBE-SVC-ABCDEFGHIJKLMNOP
-A KUBE-SVC-ABCDEFGHIJKLMNOP -m statistic --mode random --probability 0.5 -j MINE
COMMIT
*filter
-A INPUT -i lo -j ACCEPT
COMMIT
`

/** Of this thread, which is in a network namespace of its own. */
const readLines = async (path: string): Promise<readonly string[]> => {
  const file = path.replace('/proc/net/', '/proc/thread-self/net/')
  return existsSync(file)
    ? readFileSync(file, 'utf8')
        .split('\n')
        .filter(line => line !== '')
    : []
}

function restore(program: string, input: string): boolean {
  return spawnSync(program, [], { input }).status === 0
}

beforeEach(() => freshNetns())

const HAS =
  existsSync('/usr/sbin/iptables-legacy-restore') && existsSync('/usr/sbin/ip6tables-legacy-restore')
if (!HAS) console.log('skipped: tables of legacy iptables, whose tools are not installed here')

it.skipIf(!HAS)(
  'finds the chains of kube-proxy in tables of legacy iptables, and counts their rules',
  async () => {
    if (!restore('/usr/sbin/iptables-legacy-restore', RULES('10.0.0.', 32)))
      return console.log('skipped: this kernel has no legacy iptables')
    expect(restore('/usr/sbin/ip6tables-legacy-restore', RULES('fd00::', 128))).toBe(true)
    const tables = await readLegacyTables(readLines)
    expect(tables.map(({ family, name }) => `${family} ${name}`).sort()).toEqual([
      'ip filter',
      'ip nat',
      'ip6 filter',
      'ip6 nat',
    ])
    for (const family of ['ip', 'ip6'] as const) {
      const [filter, nat] = ['filter', 'nat'].map(name =>
        tables.find(table => table.family === family && table.name === name),
      )
      expect(filter?.chains).toEqual([])
      expect(nat?.chains).toHaveLength(4)
      expect(nat && kubeProxyChains(nat)).toEqual([
        { name: 'KUBE-SERVICES', rules: 2 },
        { name: 'KUBE-SVC-ABCDEFGHIJKLMNOP', rules: 1 },
      ])
    }
  },
)

it('makes no table by looking for one', async () => {
  expect(await readLegacyTables(readLines)).toEqual([])
  expect(await readLines('/proc/net/ip_tables_names')).toEqual([])
})

it.skipIf(!HAS)('says why it could not look', async () => {
  if (!restore('/usr/sbin/iptables-legacy-restore', RULES('10.0.0.', 32))) return
  const names = async (path: string) => (path.endsWith('ip_tables_names') ? ['nat', 'no-such-table'] : [])
  const [nat, other] = await readLegacyTables(names)
  expect(nat?.chains).toHaveLength(4)
  expect(other?.chains).toBe('cannot read its size: errno 2')
})
