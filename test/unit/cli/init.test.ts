import { mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import { systemClock } from '../../../src/base/clock.ts'
import { command, type InitMachine, initCommand } from '../../../src/cli/init.ts'
import { SYSCTLS } from '../../../src/kernel/sysctl/sysctls.ts'
import type { Transport } from '../../../src/netlink/transport.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { FakeKernel } from '../../support/fake-kernel/kernel.ts'
import { temporaryFolder } from '../../support/folder.ts'
import {
  attribute,
  be32,
  datagram,
  doneMessage,
  message,
  ScriptedTransport,
  sequenceOf,
  typeOf,
} from '../../support/scripted-transport.ts'

let root: string
let io: FakeIo

beforeEach(() => {
  root = `${temporaryFolder()}/`
  put('sys/devices/system/cpu/online', '0-1\n')
  put(SYSCTLS.max.path, '65536\n')
  put(SYSCTLS.hashSize.path, '16384\n')
  put(SYSCTLS.tcpEstablished.path, '432000\n')
  put(SYSCTLS.tcpCloseWait.path, '7200\n')
  io = new FakeIo()
})

function put(path: string, text: string): void {
  mkdirSync(dirname(root + path), { recursive: true })
  writeFileSync(root + path, text)
}

const CT_STATS_CPU = 0x104
const CT_STATS = 0x105

/** nf_tables in memory on one socket, and conntrack's statistics on the next. */
function machine(): InitMachine {
  const kernel = new FakeKernel()
  let opened = 0
  const conntrack = () =>
    new ScriptedTransport(sent => {
      const sequence = sequenceOf(sent)
      const counts = `\0\0\0\0${attribute(1, be32(12))}${attribute(2, be32(262_144))}`
      if (typeOf(sent) === CT_STATS) return [datagram(message({ type: CT_STATS, sequence, payload: counts }))]
      if (typeOf(sent) === CT_STATS_CPU) return [datagram(doneMessage(sequence))]
      throw new Error(`unexpected request ${typeOf(sent)}`)
    })
  return machineOf(() => (opened++ === 0 ? kernel.open() : conntrack()))
}

function machineOf(netfilter: () => Transport): InitMachine {
  const unused = () => {
    throw new Error('no other part of the kernel is asked')
  }
  return { root, clock: systemClock, sockets: { netfilter, generic: unused, route: unused } }
}

const init = (...argv: string[]) => initCommand(machine()).run(argv, io)

describe('kprobe init', () => {
  it('sets what the configuration asks for, and tells all of it', async () => {
    expect(await init()).toBe(0)
    expect(io.stdout.replaceAll(/ +/g, ' ')).toBe(
      [
        'WHAT VALUE RESULT WHY',
        'nf_conntrack_max 131072 set was 65536',
        'hashsize 32768 set was 16384',
        'nf_conntrack_tcp_timeout_established 86400 set was 432000',
        'nf_conntrack_tcp_timeout_close_wait 7200 left larger than the configured 3600; --conntrack-lower lowers it',
        'nf_tables - ok answers; the rules are at generation 1',
        'conntrack - ok answers; 12 of 262144 entries',
        '',
      ].join('\n'),
    )
    expect(readFileSync(root + SYSCTLS.max.path, 'utf8')).toBe('131072')
  })

  it('prints the same for machines', async () => {
    expect(await init('-o', 'json')).toBe(0)
    const document = JSON.parse(io.stdout)
    expect(document.settings[0]).toEqual({
      setting: 'nf_conntrack_max',
      value: 131_072,
      result: 'set',
      text: 'was 65536',
    })
    expect(document.kernel.map((each: { answers: boolean }) => each.answers)).toEqual([true, true])
  })

  it('I-23 names what the kernel lacks or refuses, and does not fail for it', async () => {
    rmSync(root + SYSCTLS.max.path)
    rmSync(root + SYSCTLS.hashSize.path)
    mkdirSync(root + SYSCTLS.hashSize.path)
    expect(await init()).toBe(0)
    expect(io.stdout).toMatch(/^nf_conntrack_max +- +left +this kernel has no such sysctl; wanted 131072$/m)
    expect(io.stdout).toMatch(/^hashsize +- +failed +EISDIR/m)
  })

  it('says how a sysctl is set that this process may not write', async () => {
    const path = root + SYSCTLS.tcpEstablished.path
    rmSync(path)
    // Nobody may write it, root neither.
    symlinkSync('/proc/sys/kernel/cap_last_cap', path)
    expect(await init()).toBe(0)
    expect(io.stdout).toMatch(
      /^nf_conntrack_tcp_timeout_established +86400 +failed +E(ACCES|ROFS).*; run `kprobe init` as root/m,
    )
  })

  it('tells what it does', () => {
    expect(command.help()({ all: true })).toContain('kprobe init [flags]')
    expect(command.help()({ all: true })).toContain('--conntrack-max-per-core')
  })
})
