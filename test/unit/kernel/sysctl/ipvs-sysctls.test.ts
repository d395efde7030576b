import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ipvsSysctls, planSysctls, tuneIpvs } from '../../../../src/kernel/sysctl/sysctls.ts'

function namesOf(release: string, strictArp = false): readonly string[] {
  return ipvsSysctls({ strictArp }, release).map(({ sysctl, value }) => `${sysctl.name}=${value}`)
}

describe('ipvsSysctls', () => {
  const always = [
    'net/ipv4/vs/conntrack=1',
    'net/ipv4/vs/expire_nodest_conn=1',
    'net/ipv4/vs/expire_quiescent_template=1',
    'net/ipv4/ip_forward=1',
  ]

  it.each(['6.1.0-42-amd64', '5.9.0', '5.10.0-8', '4.0.0', ''])('leaves ports alone on %s', release => {
    expect(namesOf(release)).toEqual(always)
  })

  it.each(['4.1.0', '4.19.0-27', '5.8.18'])('lets ports be used again on %s', release => {
    expect(namesOf(release)).toEqual([always[0], 'net/ipv4/vs/conn_reuse_mode=0', ...always.slice(1)])
  })

  it('is strict with ARP only when asked', () => {
    expect(namesOf('6.1.0', true)).toEqual([
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
  const { writes, left } = planSysctls(ipvsSysctls({ strictArp: false }, '6.1'), values)
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
    put('proc/sys/kernel/osrelease', '4.19.0-27-amd64\n')
    put('proc/sys/net/ipv4/vs/conntrack', '0\n')
    put('proc/sys/net/ipv4/vs/conn_reuse_mode', '1\n')
    put('proc/sys/net/ipv4/ip_forward', 'perhaps\n')
    const { written, left, failed } = await tuneIpvs({ strictArp: false }, { root })
    expect(written.map(({ name, before, value }) => [name, before, value])).toEqual([
      ['net/ipv4/vs/conntrack', 0, 1],
      ['net/ipv4/vs/conn_reuse_mode', 1, 0],
    ])
    expect(readFileSync(`${root}proc/sys/net/ipv4/vs/conntrack`, 'utf8')).toBe('1')
    expect(left.map(({ reason }) => reason)).toEqual(['missing', 'missing'])
    expect(failed).toEqual([
      { name: 'net/ipv4/ip_forward', value: undefined, error: expect.objectContaining({}) },
    ])
    expect(failed[0]?.error.message).toMatch(/ip_forward: not a number: "perhaps/)
  })
})
