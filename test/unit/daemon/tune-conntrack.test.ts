import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { ConntrackConfig } from '../../../src/config/config.ts'
import { tuneConntrack } from '../../../src/daemon/tune.ts'
import { SYSCTLS } from '../../../src/kernel/sysctl/sysctls.ts'

const SETTINGS: ConntrackConfig = {
  maxPerCore: 100_000,
  min: 1,
  tcpEstablishedTimeoutMs: 60_000,
  tcpCloseWaitTimeoutMs: undefined,
  tcpFinWaitTimeoutMs: undefined,
  tcpTimeWaitTimeoutMs: undefined,
  tcpBeLiberal: false,
  udpTimeoutMs: undefined,
  udpStreamTimeoutMs: undefined,
  lower: false,
}

let root: string

beforeEach(() => {
  root = `${mkdtempSync(join(tmpdir(), 'sysctls-'))}/`
  put('sys/devices/system/cpu/online', '0-1,4\n')
  for (const { path } of Object.values(SYSCTLS)) put(path, '1\n')
})

afterEach(() => {
  rmSync(root, { recursive: true })
})

function put(path: string, text: string): void {
  mkdirSync(dirname(root + path), { recursive: true })
  writeFileSync(root + path, text)
}

const content = (path: string) => readFileSync(root + path, 'utf8')

describe('tuneConntrack', () => {
  it('writes what differs, for the processors of the machine', async () => {
    const { written, failed } = await tuneConntrack(SETTINGS, { root })
    expect(written.map(({ name, value, before }) => [name, value, before])).toEqual([
      ['nf_conntrack_max', 300_000, 1],
      ['hashsize', 75_000, 1],
      ['nf_conntrack_tcp_timeout_established', 60, 1],
    ])
    expect(failed).toEqual([])
    expect(content(SYSCTLS.max.path)).toBe('300000')
    expect(content(SYSCTLS.udp.path)).toBe('1\n')
  })

  it('writes nothing the second time', async () => {
    await tuneConntrack(SETTINGS, { root })
    const { written, left } = await tuneConntrack(SETTINGS, { root })
    expect([written, left.length]).toEqual([[], 3])
  })

  it('counts the processors itself where the kernel does not list them', async () => {
    rmSync(`${root}sys/devices`, { recursive: true })
    const { written } = await tuneConntrack(SETTINGS, { root })
    expect(written[0]?.value).toBeGreaterThanOrEqual(100_000)
  })

  it('I-23 goes on without what is missing', async () => {
    rmSync(root + SYSCTLS.max.path)
    const { written, left, failed } = await tuneConntrack(SETTINGS, { root })
    expect(left.map(({ name, reason }) => [name, reason])).toEqual([['nf_conntrack_max', 'missing']])
    expect([written.length, failed]).toEqual([2, []])
  })

  it('tells what cannot be read or written, and goes on', async () => {
    rmSync(root + SYSCTLS.max.path)
    mkdirSync(root + SYSCTLS.max.path)
    put(SYSCTLS.hashSize.path, 'many\n')
    put(SYSCTLS.udp.path, 'unread, since nothing is wanted of it')
    const { written, left, failed } = await tuneConntrack(SETTINGS, { root })
    expect(failed.map(({ name, error }) => `${name} ${error.message}`)).toEqual([
      expect.stringContaining('nf_conntrack_max EISDIR'),
      expect.stringContaining('not a number: "many\\n"'),
    ])
    expect([written.length, left]).toEqual([1, []])
  })
})
