import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { systemClock } from '../../../src/base/clock.ts'
import { command, type InitMachine, initCommand } from '../../../src/cli/init.ts'
import { SYSCTLS } from '../../../src/kernel/sysctl/sysctls.ts'
import { SystemError, type Transport } from '../../../src/netlink/transport.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { FakeKernel } from '../../support/fake-kernel/kernel.ts'
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
  root = `${mkdtempSync(join(tmpdir(), 'init-'))}/`
  put('sys/devices/system/cpu/online', '0-1\n')
  put(SYSCTLS.max.path, '65536\n')
  put(SYSCTLS.hashSize.path, '16384\n')
  put(SYSCTLS.tcpEstablished.path, '432000\n')
  put(SYSCTLS.tcpCloseWait.path, '7200\n')
  io = new FakeIo()
})

afterEach(() => {
  rmSync(root, { recursive: true })
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

const refusing: () => Transport = () => {
  throw new SystemError('socket(AF_NETLINK, 12)', 1, 'EPERM')
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

  it('takes the flags of kube-proxy', async () => {
    expect(
      await init('--init-only', '--conntrack-max-per-core=100000', '--conntrack-tcp-timeout-established=1h'),
    ).toBe(0)
    expect(readFileSync(root + SYSCTLS.max.path, 'utf8')).toBe('200000')
    expect(readFileSync(root + SYSCTLS.tcpEstablished.path, 'utf8')).toBe('3600')
  })

  it('takes the configuration file of kube-proxy', async () => {
    put(
      'config.yaml',
      'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nconntrack: { min: 500000 }\n',
    )
    expect(await init(`--config=${root}config.yaml`)).toBe(0)
    expect(readFileSync(root + SYSCTLS.max.path, 'utf8')).toBe('500000')
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

  it('fails when the kernel cannot be spoken with, and has set what it could', async () => {
    expect(await initCommand(machineOf(refusing)).run([], io)).toBe(1)
    expect(io.stdout).toMatch(/^nf_tables +- +failed +.*EPERM.*CAP_NET_ADMIN/m)
    expect(io.stdout).toMatch(/^conntrack +- +failed +.*EPERM.*CAP_NET_ADMIN/m)
    expect(readFileSync(root + SYSCTLS.max.path, 'utf8')).toBe('131072')
  })

  it('sets what IPVS mode needs, which is there once its module has been asked for', async () => {
    const conntrack = 'proc/sys/net/ipv4/vs/conntrack'
    const loading = () => {
      put(conntrack, '0\n')
      return refusing()
    }
    const sockets = { netfilter: () => new FakeKernel().open(), generic: loading, route: refusing }
    await initCommand({ root, clock: systemClock, sockets }).run(['--proxy-mode=ipvs'], io)
    expect(readFileSync(root + conntrack, 'utf8')).toBe('1')
    expect(io.stdout).toMatch(/^net\/ipv4\/vs\/expire_nodest_conn +1 +failed +.*no such sysctl/m)
  })

  it('refuses what it does not know, and touches nothing', async () => {
    expect(await init('--conntrack-min=-1', '--nonsense', '-o', 'xml')).toBe(2)
    expect(io.stderr).toContain('--nonsense')
    expect([io.stdout, readFileSync(root + SYSCTLS.max.path, 'utf8')]).toEqual(['', '65536\n'])
  })

  it('tells what it does', () => {
    expect(command.help()({ all: true })).toContain('kprobe init [flags]')
    expect(command.help()({ all: true })).toContain('--conntrack-max-per-core')
  })
})
