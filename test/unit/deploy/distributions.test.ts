import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { parseRequest } from '../../../src/config/load-config.ts'

const read = (path: string) =>
  readFileSync(fileURLToPath(new URL(`../../../${path}`, import.meta.url)), 'utf8')

interface Start {
  readonly argv: readonly string[]
  /** Of the file that `--config` names. */
  readonly file?: string
}

/** What k3s 1.36 gives its kube-proxy, sorted by name; RKE2 starts a pod with the same, with paths of its own. */
const flagsOf = (name: string, { podCidr = '10.42.0.0/16', local = '127.0.0.1' } = {}): Start => ({
  argv: [
    `--cluster-cidr=${podCidr}`,
    '--conntrack-max-per-core=0',
    '--conntrack-tcp-timeout-close-wait=0s',
    '--conntrack-tcp-timeout-established=0s',
    `--healthz-bind-address=${local}`,
    '--hostname-override=node-1',
    `--kubeconfig=/var/lib/rancher/${name}/agent/kubeproxy.kubeconfig`,
    '--proxy-mode=iptables',
  ],
})

/** The command of kubeadm's DaemonSet, with a ConfigMap of its own. */
const kubeadm = (file: string): Start => ({
  argv: ['--config=/var/lib/kube-proxy/config.conf', '--hostname-override=node-1'],
  file,
})

const KUBEADM = read('test/unit/config/kubeadm-config.yaml')
const IPTABLES = KUBEADM.replace('mode: ""', 'mode: iptables')

function requestOf({ argv, file }: Start) {
  const config = file === undefined ? undefined : { path: 'config.conf', text: file }
  const parsed = parseRequest(argv, { hostName: 'host' }, config)
  if (parsed.kind === 'errors') throw new Error(JSON.stringify(parsed.errors))
  return parsed.value
}

/** Names as on docs/hand-over.md, with the mode that its row names. */
const STARTS: readonly (readonly [string, string, Start])[] = [
  ['kubeadm to 1.36', 'nftables', kubeadm(KUBEADM)],
  ['kubeadm from 1.37', 'iptables', kubeadm(IPTABLES)],
  ['RKE2', 'iptables', flagsOf('rke2')],
  ['k3s', 'iptables', flagsOf('k3s')],
]

describe("kube-proxy's start in distributions", () => {
  it.each(STARTS)('%s is taken as it is, without a warning', (name, mode, start) => {
    const { config, warnings } = requestOf(start)
    expect(warnings).toEqual([])
    expect(config).toMatchObject({
      proxyMode: mode,
      nodeName: 'node-1',
      detectLocal: { kind: 'ClusterCIDR' },
    })
    expect(read('docs/hand-over.md')).toContain(`\n| ${name} | `)
  })

  it('leaves the connection table of k3s and RKE2 to the node, and health to the node itself', () => {
    const { config } = requestOf(flagsOf('rke2'))
    expect(config.conntrack).toMatchObject({
      maxPerCore: 0,
      tcpEstablishedTimeoutMs: undefined,
      tcpCloseWaitTimeoutMs: undefined,
    })
    expect(config.healthzBindAddress).toMatchObject({ port: 10_256 })
  })

  it('takes two ranges of pods, and IPv6', () => {
    const podCidr = '10.42.0.0/16,2001:cafe:42::/56'
    expect(requestOf(flagsOf('k3s', { podCidr, local: '::1' })).warnings).toEqual([])
  })

  it("takes kubeadm's file of 1.30, which has no logging.options.text", () => {
    const older = KUBEADM.replace('    text:\n      infoBufferSize: "0"\n', '')
    expect(older).not.toBe(KUBEADM)
    expect(requestOf(kubeadm(older))).toMatchObject({ warnings: [], config: { proxyMode: 'nftables' } })
  })

  it('makes the admin socket at the default path for all of them', () => {
    for (const [, , start] of STARTS)
      expect(requestOf(start).config.adminSocket).toBe('/run/kprobe/admin.sock')
  })

  it.each<[string, string, string]>([
    [
      '1.30, with gates that are gone or locked since',
      'featureGates: { KubeProxyDrainingTerminatingNodes: true, NFTablesProxyMode: false }\n',
      'no effect in kprobe: feature gates "KubeProxyDrainingTerminatingNodes", "NFTablesProxyMode"',
    ],
    [
      '1.38, with a gate and a field that are new',
      'featureGates: { KubeProxyFlowOffload: true }\nflowOffload: { enabled: true }\n',
      [
        'config.conf:69:1: flowOffload: unknown field ignored',
        'no effect in kprobe: feature gates "KubeProxyFlowOffload"',
      ].join('\n'),
    ],
  ])('starts with the file of %s, and names what has no effect', (_, more, expected) => {
    const { config, warnings } = requestOf(kubeadm(KUBEADM + more))
    expect(config.proxyMode).toBe('nftables')
    expect(warnings.join('\n')).toBe(expected)
  })

  it('still refuses a gate that it reads, misspelled', () => {
    const file = `${KUBEADM}featureGates: { AllowServiceExternalIP: false }\n`
    expect(() => requestOf(kubeadm(file))).toThrow('did you mean AllowServiceExternalIPs?')
  })

  it('would warn of a flag that does nothing, and refuse one that kube-proxy does not have', () => {
    const { argv } = flagsOf('k3s')
    const doubtful = requestOf({ argv: [...argv, '--machine-id-file=/etc/machine-id'] })
    expect(doubtful.warnings).toEqual(['no effect in kprobe: --machine-id-file'])
    expect(() => requestOf({ argv: [...argv, '--node-ip=192.0.2.1'] })).toThrow('no such flag')
  })
})
