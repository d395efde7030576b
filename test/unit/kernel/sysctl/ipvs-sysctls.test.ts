import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ipvsSysctls, planSysctls, tuneIpvs } from '../../../../src/kernel/sysctl/sysctls.ts'

function namesOf(strictArp: boolean): readonly string[] {
  return ipvsSysctls({ strictArp }).map(({ sysctl, value }) => `${sysctl.name}=${value}`)
}

describe('ipvsSysctls', () => {
  const always = [
    'net/ipv4/vs/conntrack=1',
    'net/ipv4/vs/expire_nodest_conn=1',
    'net/ipv4/vs/expire_quiescent_template=1',
    'net/ipv4/ip_forward=1',
  ]

  it('is strict with ARP only when asked', () => {
    expect(namesOf(false)).toEqual(always)
    expect(namesOf(true)).toEqual([
      ...always,
      'net/ipv4/conf/all/arp_ignore=1',
      'net/ipv4/conf/all/arp_announce=2',
    ])
  })
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

describe('tuneIpvs', () => {
  let root: string

  beforeEach(() => {
    root = `${mkdtempSync(join(tmpdir(), 'kprobe-sysctls-'))}/`
  })

  afterEach(() => {
    rmSync(root, { recursive: true })
  })

  function put(path: string, text: string): void {
    mkdirSync(dirname(root + path), { recursive: true })
    writeFileSync(root + path, text)
  }

  it('brings files to what is wanted, and names what it cannot read', async () => {
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
})
