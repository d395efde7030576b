import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import type { Config } from '../../../src/config/config.ts'
import { tuneMode } from '../../../src/daemon/tune.ts'
import { iptablesOptions } from '../../../src/modes/iptables/settings.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { configFrom } from '../../support/parse-flags.ts'

let root: string
const LOCALNET = 'proc/sys/net/ipv4/conf/all/route_localnet'

beforeEach(() => {
  root = `${temporaryFolder()}/`
})

function put(path: string, text: string): void {
  mkdirSync(dirname(root + path), { recursive: true })
  writeFileSync(root + path, text)
}

function configOf(...argv: readonly string[]): Config {
  return configFrom(argv)
}

describe('route_localnet', () => {
  it('is set where NodePorts answer at 127.0.0.1', async () => {
    put(LOCALNET, '0\n')
    const { written, failed } = await tuneMode(configOf('--proxy-mode=iptables'), { root })
    expect(written.map(({ name, before, value }) => [name, before, value])).toEqual([
      ['net/ipv4/conf/all/route_localnet', 0, 1],
    ])
    expect(failed).toEqual([])
    expect(readFileSync(root + LOCALNET, 'utf8')).toBe('1')
  })

  it.each([
    [['--proxy-mode=iptables', '--iptables-localhost-nodeports=false']],
    [['--proxy-mode=iptables', '--nodeport-addresses=10.0.0.0/8']],
    [['--proxy-mode=nftables']],
    [['--proxy-mode=userspace']],
  ])('is left alone with %j', async argv => {
    put(LOCALNET, '0\n')
    expect(await tuneMode(configOf(...argv), { root })).toEqual({ written: [], left: [], failed: [] })
    expect(readFileSync(root + LOCALNET, 'utf8')).toBe('0\n')
  })

  it('that is not there is more than left as it is', async () => {
    const { failed, left } = await tuneMode(configOf('--proxy-mode=iptables'), { root })
    expect(left).toEqual([])
    expect(failed.map(({ name }) => name)).toEqual(['net/ipv4/conf/all/route_localnet'])
  })
})

describe('packets in state INVALID', () => {
  const liberal = (setting: number | undefined, ...argv: readonly string[]) =>
    iptablesOptions(configOf('--proxy-mode=iptables', ...argv), { setting: () => setting }).tcpBeLiberal

  it('are dropped unless connection tracking is liberal, or will be', () => {
    expect(liberal(0)).toBe(false)
    expect(liberal(undefined)).toBe(false)
    expect(liberal(1)).toBe(true)
    expect(liberal(0, '--conntrack-tcp-be-liberal')).toBe(true)
  })
})
