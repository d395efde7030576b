import { describe, expect, it } from 'vitest'
import { formatCidr } from '../../../src/base/ip.ts'
import { MODE_NAMES } from '../../../src/config/modes.ts'
import { configFrom, errorsFrom, parseFlags } from '../../support/parse-flags.ts'

const configOf = (...argv: string[]) => configFrom(argv, undefined, 'Node-A')
const errorsOf = (...argv: string[]) => errorsFrom(argv)

describe('parseFlags', () => {
  it('gives the documented defaults that a file of kubeadm does not have', () => {
    expect(configOf()).toMatchObject({ backend: 'netlink', once: false, nodeName: 'node-a' })
  })

  it('takes the name of a proxy where the mode has tables for each name', () => {
    expect(configOf('--service-proxy-name=mesh')).toMatchObject({ serviceProxyName: 'mesh' })
    expect(configOf('--service-proxy-name=').serviceProxyName).toBeUndefined()
    expect(configOf('--service-proxy-name=mesh', '--proxy-mode=userspace').proxyMode).toBe('userspace')
  })

  it.each([
    [['--service-proxy-name=Mesh'], '"Mesh" is not a DNS label'],
    [['--service-proxy-name=a.b'], '"a.b" is not a DNS label'],
    [['--service-proxy-name=-a'], '"-a" is not a DNS label'],
    [[`--service-proxy-name=${'a'.repeat(64)}`], 'is not a DNS label'],
    [['--service-proxy-name=ipvs'], '"ipvs" is reserved'],
    [['--service-proxy-name=userspace'], '"userspace" is reserved'],
    [
      ['--service-proxy-name=a', '--proxy-mode=ipvs'],
      'cannot be used in IPVS mode: a network namespace has one list of virtual servers',
    ],
  ])('refuses %j', (flags, message) => {
    expect(errorsOf(...flags)).toEqual([
      expect.stringMatching(new RegExp(`^--service-proxy-name: .*${message}`)),
    ])
  })

  it('takes any name in any mode for a command that programs nothing', () => {
    const argv = ['--service-proxy-name=ipvs', '--proxy-mode=iptables']
    expect(parseFlags(argv, { hostName: 'a', modeless: true })).toMatchObject({ kind: 'ok' })
    expect(parseFlags([...argv, '--service-proxy-name=A'], { hostName: 'a', modeless: true })).toMatchObject({
      kind: 'errors',
    })
  })

  it('freezes the configuration', () => {
    expect(Object.isFrozen(configOf())).toBe(true)
  })

  it.each([['--cluster-cidr=10.0.0.0/8,192.168.0.0/16'], ['--cluster-cidr=10.0.0.0/8,fd00::/8,fd01::/16']])(
    'refuses %s, which has two ranges of one family or three ranges',
    flag => {
      expect(errorsOf(flag)).toEqual(['--cluster-cidr: takes one CIDR, or one per IP family'])
    },
  )

  it('reports a placeholder once, and other values of its flag as usual', () => {
    expect(errorsOf('--cluster-cidr=REPLACE_ME_A', '--allowed-external-cidrs=REPLACE_ME_B,x')).toEqual([
      '--cluster-cidr: REPLACE_ME_A is a placeholder of the manifest; replace it with the real value',
      '--allowed-external-cidrs: REPLACE_ME_B is a placeholder of the manifest; replace it with the real value',
      expect.stringMatching(/^--allowed-external-cidrs\[1\]: "x" is not a CIDR/),
    ])
  })

  it.each([
    ['BridgeInterface', 'pod-bridge-interface'],
    ['InterfaceNamePrefix', 'pod-interface-name-prefix'],
  ])('needs an interface name for --detect-local-mode=%s', (mode, flag) => {
    expect(errorsOf(`--detect-local-mode=${mode}`)).toEqual([
      `--${flag}: is required with detectLocalMode ${mode}`,
    ])
    expect(errorsOf(`--detect-local-mode=${mode}`, `--${flag}=sixteen-letters1`)).toHaveLength(1)
    expect(errorsOf(`--detect-local-mode=${mode}`, `--${flag}=cni0`)).toEqual([])
  })

  it.each([
    ['primary,192.0.2.0/24', true, ['192.0.2.0/24']],
    ['primary,localhost', true, ['127.0.0.0/8', '::1/128']],
    ['localhost', false, ['127.0.0.0/8', '::1/128']],
    ['localhost,127.0.0.0/8,localhost', false, ['127.0.0.0/8', '::1/128']],
    ['all', false, ['0.0.0.0/0', '::/0']],
    ['all,localhost,primary', true, ['0.0.0.0/0', '::/0', '127.0.0.0/8', '::1/128']],
  ])('KEP-6032: takes keywords and ranges in any mixture: %s', (text, primary, cidrs) => {
    const { nodePortAddresses } = configOf(`--nodeport-addresses=${text}`)
    expect(nodePortAddresses.primary).toBe(primary)
    expect(nodePortAddresses.cidrs.map(formatCidr)).toEqual(cidrs)
  })

  it('KEP-6032: names each entry that is neither a keyword nor a range', () => {
    const errors = errorsOf('--nodeport-addresses=primary,Localhost,192.0.2.1')
    expect(errors).toEqual([
      expect.stringMatching(
        /^--nodeport-addresses\S*: "Localhost" is .*; keywords are primary, localhost and all$/,
      ),
      expect.stringMatching(
        /^--nodeport-addresses\S*: "192\.0\.2\.1" is .*; keywords are primary, localhost and all$/,
      ),
    ])
  })

  it('KEP-6032: refuses --once beside a relay, and not where nothing is relayed', () => {
    const relayed = ['--once', '--nodeport-addresses=primary,localhost']
    expect(errorsOf(...relayed)).toEqual([
      '--once: cannot be combined with localhost in nodePortAddresses: its node ports are relayed only while kprobe runs',
    ])
    const off = '--feature-gates=KubeProxyNFTablesLocalhostNodePorts=false'
    for (const more of [['--proxy-mode=iptables'], [off]])
      expect(configOf(...relayed, ...more).once, more.join()).toBe(true)
    expect(configOf('--once', '--nodeport-addresses=all').once).toBe(true)
  })

  it('refuses two names of one period that disagree', () => {
    expect(errorsOf('--min-sync-period=1s', '--iptables-min-sync-period=2s')).toEqual([
      '--min-sync-period: means the same as --iptables-min-sync-period and differs from it',
    ])
    expect(errorsOf('--min-sync-period=1s', '--iptables-min-sync-period=1000ms')).toEqual([])
  })

  it.each([
    [['--sync-period=0'], '--sync-period: must be longer than 0'],
    [['--min-sync-period=-1s'], '--min-sync-period: cannot be negative'],
    [['--min-sync-period=20m'], '--min-sync-period: cannot be longer than --sync-period'],
    [['--sync-period=3 hours'], '--sync-period: "3 hours" is not a duration such as 30s, 1m30s or 20ms'],
    [['--masquerade-bit=32'], '--masquerade-bit: 32 is not from 0 to 31'],
    [['--backend=iptables'], '--backend: "iptables" is not one of netlink, dry-run'],
    [['--logging-format=xml'], '--logging-format: "xml" is not one of text, json'],
    [['--proxy-mode=bpf'], `--proxy-mode: "bpf" is not one of ${MODE_NAMES.join(', ')}`],
    [['--once=maybe'], '--once: "maybe" is not true or false'],
    [['--hostname-override'], '--hostname-override: needs a value'],
    [['extra'], '"extra": no such argument; flags begin with --'],
    [['--masqerade-all'], '--masqerade-all: no such flag; did you mean --masquerade-all?'],
    [['--hostname=a'], '--hostname: no such flag; did you mean --hostname-override?'],
    [['--once-per-start'], '--once-per-start: no such flag; did you mean --once?'],
    [['--iptables'], '--iptables: no such flag'],
    [['--nonsense'], '--nonsense: no such flag'],
  ])('refuses %s', (argv, error) => {
    expect(errorsOf(...argv)).toEqual([error])
  })

  it('watches the API server unless it is given files', () => {
    expect(configOf().source).toEqual({ kind: 'kube' })
    expect(configOf('--source=kube').source).toEqual({ kind: 'kube' })
    expect(errorsOf('--source=file:')).toEqual(['--source: file: needs a path'])
  })
})
