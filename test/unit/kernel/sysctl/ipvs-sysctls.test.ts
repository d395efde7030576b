import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { expect, it } from 'vitest'
import { ipvsSysctls, planSysctls, tuneIpvs } from '../../../../src/kernel/sysctl/sysctls.ts'
import { temporaryFolder } from '../../../support/folder.ts'

const ALWAYS = [
  'net/ipv4/vs/conntrack=1',
  'net/ipv4/vs/expire_nodest_conn=1',
  'net/ipv4/vs/expire_quiescent_template=1',
  'net/ipv4/ip_forward=1',
]

it.each([
  [false, ALWAYS],
  [true, [...ALWAYS, 'net/ipv4/conf/all/arp_ignore=1', 'net/ipv4/conf/all/arp_announce=2']],
])('is strict with ARP only when asked: %s', (strictArp, wanted) => {
  const names = ipvsSysctls({ strictArp }).map(({ sysctl, value }) => `${sysctl.name}=${value}`)
  expect(names).toEqual(wanted)
})

it('writes what differs and leaves what is so already, or is not there', () => {
  const values = new Map<string, number | undefined>([
    ['net/ipv4/vs/conntrack', 0],
    ['net/ipv4/vs/expire_nodest_conn', 1],
    ['net/ipv4/vs/expire_quiescent_template', undefined],
    ['net/ipv4/ip_forward', 1],
  ])
  const { writes, left } = planSysctls(ipvsSysctls({ strictArp: false }), values)
  expect(writes).toEqual([
    { name: 'net/ipv4/vs/conntrack', path: 'proc/sys/net/ipv4/vs/conntrack', value: 1, before: 0 },
  ])
  expect(left.map(({ name, reason }) => `${name} ${reason}`)).toEqual([
    'net/ipv4/vs/expire_nodest_conn equal',
    'net/ipv4/vs/expire_quiescent_template missing',
    'net/ipv4/ip_forward equal',
  ])
})

it('brings files to what is wanted, and names what it cannot read', async () => {
  const root = `${temporaryFolder()}/`
  const put = (path: string, text: string): void => {
    mkdirSync(dirname(root + path), { recursive: true })
    writeFileSync(root + path, text)
  }
  put('proc/sys/net/ipv4/vs/conntrack', '0\n')
  put('proc/sys/net/ipv4/ip_forward', 'perhaps\n')
  const { written, left, failed } = await tuneIpvs({ strictArp: false }, { root })
  expect(written.map(({ name, before, value }) => [name, before, value])).toEqual([
    ['net/ipv4/vs/conntrack', 0, 1],
  ])
  expect(readFileSync(`${root}proc/sys/net/ipv4/vs/conntrack`, 'utf8')).toBe('1')
  expect(left.map(({ reason }) => reason)).toEqual(['missing', 'missing'])
  expect(failed).toEqual([
    { name: 'net/ipv4/ip_forward', value: undefined, error: expect.objectContaining({}) },
  ])
  expect(failed[0]?.error.message).toMatch(/ip_forward: not a number: "perhaps/)
})
