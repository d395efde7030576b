import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import {
  BY_KUBEADM,
  CLUSTER_STARTS,
  type ClusterStart,
  KUBEADM,
  requestOf,
} from '../../support/cluster-starts.ts'

const PAGE = readFileSync(fileURLToPath(new URL('../../../docs/hand-over.md', import.meta.url)), 'utf8')

type Start = Pick<ClusterStart, 'argv' | 'file'>

const kubeadm = (file: string): Start => ({ argv: BY_KUBEADM, file })
const startOf = (page: string): Start => CLUSTER_STARTS.find(each => each.page === page) ?? expect.fail(page)
const K3S = startOf('k3s')

/** Names as on docs/hand-over.md, with the mode that its row names. */
const STARTS: readonly (readonly [string, string, Start])[] = [
  ['kubeadm to 1.36', 'nftables', kubeadm(KUBEADM)],
  ['kubeadm from 1.37', 'iptables', kubeadm(KUBEADM.replace('mode: ""', 'mode: iptables'))],
  ['RKE2', 'iptables', startOf('rke2')],
  ['k3s', 'iptables', K3S],
]

describe("kube-proxy's start in distributions", () => {
  it.each(STARTS)('%s is taken as it is, without a warning', (name, mode, start) => {
    const { config, warnings } = requestOf(start)
    expect(warnings).toEqual([])
    expect(config).toMatchObject({
      proxyMode: mode,
      nodeName: 'node-1',
      detectLocal: { kind: 'ClusterCIDR' },
      adminSocket: '/run/kprobe/admin.sock',
    })
    expect(PAGE).toContain(`\n| ${name} | `)
  })

  it('leaves the connection table of k3s and RKE2 to the node, and health to the node itself', () => {
    const { config } = requestOf(startOf('rke2'))
    expect(config.conntrack).toMatchObject({
      maxPerCore: 0,
      tcpEstablishedTimeoutMs: undefined,
      tcpCloseWaitTimeoutMs: undefined,
    })
    expect(config.healthzBindAddress).toMatchObject({ port: 10_256 })
  })

  it('takes two ranges of pods, and IPv6', () => {
    const argv = ['--cluster-cidr=10.42.0.0/16,2001:cafe:42::/56', '--healthz-bind-address=::1']
    expect(requestOf({ argv }).warnings).toEqual([])
  })

  it("takes kubeadm's file of 1.30, which has no logging.options.text", () => {
    const older = KUBEADM.replace('    text:\n      infoBufferSize: "0"\n', '')
    expect(older).not.toBe(KUBEADM)
    expect(requestOf(kubeadm(older))).toMatchObject({ warnings: [], config: { proxyMode: 'nftables' } })
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
    const { argv } = K3S
    const doubtful = requestOf({ argv: [...argv, '--machine-id-file=/etc/machine-id'] })
    expect(doubtful.warnings).toEqual(['no effect in kprobe: --machine-id-file'])
    expect(() => requestOf({ argv: [...argv, '--node-ip=192.0.2.1'] })).toThrow('no such flag')
  })
})
