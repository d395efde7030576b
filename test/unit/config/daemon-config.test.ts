import { describe, expect, it } from 'vitest'
import type { Config } from '../../../src/config/config.ts'
import { modelFlags } from '../../../src/config/daemon-config.ts'
import { MODEL_FLAGS } from '../../../src/config/flags.ts'
import { configFrom } from '../../support/parse-flags.ts'

function again(config: Config): Config {
  const texts = Object.entries(modelFlags(config)).filter(([, text]) => text !== '')
  return configFrom(texts.map(([flag, text]) => `--${flag}=${text}`))
}

/** Flags of the model that modelFlags leaves out: where objects are read, and another name of --masquerade-bit. */
const NOT_GIVEN = [
  'config',
  'iptables-masquerade-bit',
  'kubeconfig',
  'master',
  'relay-fallback',
  'relay-tls-ca',
  'relay-tls-cert',
  'relay-tls-key',
  'relay-tls-server-name',
  'relay-token-file',
  'relay-zone',
  'source',
]

describe('modelFlags', () => {
  it.each([
    [],
    ['--cluster-cidr=10.244.0.0/16,fd00::/48', '--masquerade-all', '--masquerade-bit=7'],
    ['--detect-local-mode=BridgeInterface', '--pod-bridge-interface=cni0', '--bind-address=192.0.2.7'],
    ['--detect-local-mode=InterfaceNamePrefix', '--pod-interface-name-prefix=veth', '--bind-address=::1'],
    ['--detect-local-mode=NodeCIDR', '--service-proxy-name=mesh', '--hostname-override=Other'],
    ['--nodeport-addresses=192.0.2.0/24,127.0.0.0/8', '--feature-gates=AllowServiceExternalIPs=false'],
    [
      '--nodeport-addresses=primary,localhost,192.0.2.0/24',
      '--feature-gates=KubeProxyNFTablesLocalhostNodePorts=false',
    ],
    ['--allowed-external-cidrs=1.0.0.0/8,2.0.0.0/8', '--allowed-load-balancer-cidrs=fd01::/64'],
    ['--connection-metrics-max=100'],
    ['--proxy-mode=userspace'],
    ['--proxy-mode=iptables', '--iptables-localhost-nodeports=false', '--iptables-optimize'],
    ['--proxy-mode=iptables', '--iptables-masquerade-bit=9'],
    [
      '--proxy-mode=ipvs',
      '--ipvs-scheduler=wlc',
      '--ipvs-exclude-cidrs=10.9.0.0/16',
      '--ipvs-strict-arp',
      '--ipvs-tcp-timeout=5m',
      '--ipvs-tcpfin-timeout=10s',
      '--ipvs-udp-timeout=1500ms',
      '--ipvs-rules=iptables',
      '--ipvs-drain-timeout=1s',
      '--ipvs-digest-period=250ms',
    ],
  ])('give the same configuration again: %j', (...argv) => {
    const config = configFrom(argv)
    expect(again(config)).toEqual(config)
  })

  it('has every flag that decides what the kernel should hold', () => {
    const modes = ['nftables', 'ipvs', 'iptables', 'userspace']
    const written = modes.flatMap(mode => Object.keys(modelFlags(configFrom([`--proxy-mode=${mode}`]))))
    const names = MODEL_FLAGS.map(({ name }) => name).filter(name => !name.startsWith('kube-api-'))
    expect(new Set([...written, ...NOT_GIVEN])).toEqual(new Set(names))
  })
})
