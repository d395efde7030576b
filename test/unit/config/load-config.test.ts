import { readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { outputFlag } from '../../../src/cli/document.ts'
import { ConfigFileError, readConfigFile } from '../../../src/config/config-document.ts'
import { KUBE_PROXY_FLAGS, RUN_FLAGS } from '../../../src/config/flags.ts'
import { loadConfig, parseRequest } from '../../../src/config/load-config.ts'
import { MODE_NAMES } from '../../../src/config/modes.ts'
import { cidr, ip } from '../../support/addresses.ts'
import { configFrom, errorsFrom, parsedOf, requestFrom } from '../../support/parse-flags.ts'

const KUBEADM = fileURLToPath(new URL('kubeadm-config.yaml', import.meta.url))
const at = (address: string, port: number) => ({ ip: ip(address), port })

describe("kubeadm's file", () => {
  it('means the defaults of flags, but for what kubeadm fills in', async () => {
    const text = await readFile(KUBEADM, 'utf8')
    const { config, warnings } = parsedOf(parseRequest([], { hostName: 'node' }, { path: KUBEADM, text }))
    expect(warnings).toEqual([])
    expect(config).toEqual(
      configFrom(['--cluster-cidr=10.244.0.0/16', '--kubeconfig=/var/lib/kube-proxy/kubeconfig.conf']),
    )
    expect(config).toMatchObject({
      proxyMode: 'nftables',
      minSyncPeriodMs: 20,
      syncPeriodMs: 600_000,
      oomScoreAdj: -999,
      healthzBindAddress: at('0.0.0.0', 10_256),
      metricsBindAddress: at('127.0.0.1', 10_249),
      client: { contentType: 'application/vnd.kubernetes.protobuf', qps: 5, burst: 10 },
      conntrack: {
        maxPerCore: 32_768,
        min: 131_072,
        tcpEstablishedTimeoutMs: 86_400_000,
        tcpCloseWaitTimeoutMs: 3_600_000,
        udpTimeoutMs: undefined,
      },
    })
  })
})

describe('loadConfig', () => {
  it('reads the file that --config names, and the last of several', async () => {
    const argv = ['--config=other', '--config', KUBEADM]
    const parsed = await loadConfig(argv, { hostName: 'Host', readFile: readConfigFile })
    expect(parsed.kind === 'ok' && parsed.value.configFile?.path).toBe(KUBEADM)
  })

  it('says why a file cannot be read', async () => {
    const parsed = await loadConfig(['--config=/nowhere'], { hostName: 'Host', readFile: readConfigFile })
    expect(parsed).toMatchObject({
      kind: 'errors',
      errors: [{ path: '--config /nowhere', message: 'cannot be read (ENOENT)' }],
    })
  })
})

describe('flags beside a file', () => {
  it('lets only those of logging, of the name and of ours count', () => {
    const body = 'clusterCIDR: 10.0.0.0/8\nhostnameOverride: of-the-file\nlogging: { verbosity: 1 }\n'
    const argv = [
      '--cluster-cidr=192.168.0.0/16',
      '--kube-api-qps=99',
      '-v3',
      '--logging-format=json',
      '--hostname-override= Of-The-Flag ',
      '--master=https://192.0.2.1',
      '--sync-period=1h',
      '--masquerade-bit=20',
      '--conntrack-lower',
    ]
    const { config, warnings } = requestFrom(argv, body)
    expect(config).toMatchObject({
      nodeName: 'of-the-flag',
      verbosity: 3,
      logFormat: 'json',
      syncPeriodMs: 3_600_000,
      masqueradeBit: 20,
      client: { qps: 5, master: 'https://192.0.2.1' },
      conntrack: { lower: true },
      detectLocal: { kind: 'ClusterCIDR', cidrs: [cidr('10.0.0.0/8')] },
    })
    expect(warnings).toEqual(['ignored because --config is given: --cluster-cidr, --kube-api-qps'])
  })

  const TIMEOUTS = 'conntrack: { tcpFinWaitTimeout: 20s, tcpTimeWaitTimeout: 30s }\n'
  const OF_NODE = 'stateDir: /var/lib/a\nnodeCondition: example.com/ProxyReady\n'
  const IPTABLES = 'iptables: { masqueradeAll: true, masqueradeBit: 5, syncPeriod: 9s, minSyncPeriod: 2s }\n'

  it.each<[readonly string[], string | undefined, object]>([
    [[], undefined, { syncShare: 0.025, stateDir: '', nodeCondition: '', prove: 'off' }],
    [[], undefined, { conntrack: { tcpFinWaitTimeoutMs: undefined, tcpTimeWaitTimeoutMs: undefined } }],
    [[], TIMEOUTS, { conntrack: { tcpFinWaitTimeoutMs: 20_000, tcpTimeWaitTimeoutMs: 30_000 } }],
    [['--conntrack-tcp-timeout-fin-wait=1m'], TIMEOUTS, { conntrack: { tcpFinWaitTimeoutMs: 60_000 } }],
    // Zero leaves the kernel alone.
    [['--conntrack-tcp-timeout-time-wait=0'], TIMEOUTS, { conntrack: { tcpTimeWaitTimeoutMs: undefined } }],
    [[], 'conntrack: { tcpEstablishedTimeout: 0s }\n', { conntrack: { tcpEstablishedTimeoutMs: undefined } }],
    [[], 'conntrack: { maxPerCore: 0 }\n', { conntrack: { maxPerCore: 0 } }],
    // A rate of zero to the API server means what client-go makes of it.
    [['--kube-api-qps=0', '--kube-api-burst=0'], undefined, { client: { qps: 5, burst: 10 } }],
    [['--kube-api-qps=-1'], undefined, { client: { qps: 0 } }],
    [[], 'syncShare: 5\n', { syncShare: 0.05 }],
    [['--sync-share=0.5'], 'syncShare: 5\n', { syncShare: 0.005 }],
    [['--sync-share=0'], undefined, { syncShare: 0.025 }],
    [['--sync-share=100', '--log-rejects=65535'], undefined, { syncShare: 1, logRejects: 65_535 }],
    [[], OF_NODE, { stateDir: '/var/lib/a', nodeCondition: 'example.com/ProxyReady' }],
    [['--state-dir=/b', '--node-condition'], OF_NODE, { stateDir: '/b', nodeCondition: 'ServiceProxyReady' }],
    [['--node-condition=a'], OF_NODE, { nodeCondition: 'a' }],
    [['--node-condition=false'], OF_NODE, { nodeCondition: '' }],
    [[], 'prove: full\n', { prove: 'full' }],
    [[], 'prove: off\n', { prove: 'off' }],
    [[], 'prove: false\n', { prove: 'off' }],
    [['--prove'], 'prove: off\n', { prove: 'full' }],
    [['--prove=false'], 'prove: full\n', { prove: 'off' }],
    [['--prove=full', '--proxy-mode=ipvs'], undefined, { prove: 'full' }],
    [['--prove=off', '--proxy-mode=userspace'], undefined, { prove: 'off' }],
    // An empty mode reads the section of iptables, as in kube-proxy, unless the section of nftables says more.
    [[], IPTABLES, { masqueradeAll: true, masqueradeBit: 5, syncPeriodMs: 9_000, minSyncPeriodMs: 2_000 }],
    [[], `${IPTABLES}nftables: { masqueradeBit: 6 }\n`, { masqueradeBit: 6 }],
    [[], `${IPTABLES}mode: nftables\n`, { masqueradeAll: false, masqueradeBit: 14, syncPeriodMs: 600_000 }],
    [['--iptables-masquerade-bit=5'], undefined, { masqueradeBit: 5 }],
    [['--iptables-masquerade-bit=5', '--proxy-mode=nftables'], undefined, { masqueradeBit: 14 }],
    // Addresses of a file follow the family of bindAddress. All get ports, and empty ones their defaults.
    [
      [],
      'bindAddress: "::"\n',
      { bindAddress: undefined, healthzBindAddress: at('::', 10_256), metricsBindAddress: at('::1', 10_249) },
    ],
    [
      [],
      'bindAddress: 192.0.2.1\nhealthzBindAddress: fd00::1\n',
      { bindAddress: ip('192.0.2.1'), healthzBindAddress: at('fd00::1', 10_256) },
    ],
    [
      ['--bind-address=fd00::1', '--metrics-bind-address=192.0.2.1', '--healthz-bind-address='],
      undefined,
      {
        bindAddress: ip('fd00::1'),
        healthzBindAddress: at('0.0.0.0', 10_256),
        metricsBindAddress: at('192.0.2.1', 10_249),
      },
    ],
    [['--healthz-bind-address=[::1]:99'], undefined, { healthzBindAddress: at('::1', 99) }],
    [['--healthz-port=0'], undefined, { healthzBindAddress: undefined }],
    // A deprecated port counts where the address has none.
    [
      ['--healthz-port=99', '--healthz-bind-address=192.0.2.1'],
      undefined,
      { healthzBindAddress: at('192.0.2.1', 99) },
    ],
    [
      ['--feature-gates=AllowServiceExternalIPs=false'],
      undefined,
      { allowServiceExternalIps: false, featureGates: {} },
    ],
    [
      ['--feature-gates=NativeHistograms=true'],
      undefined,
      { allowServiceExternalIps: true, featureGates: { NativeHistograms: true } },
    ],
  ])('%j beside %j means %j', (flags, file, wanted) => {
    expect(requestFrom(flags, file).config).toMatchObject(wanted)
  })

  it.each<[readonly string[], string | undefined, string]>([
    [['--conntrack-tcp-timeout-fin-wait=-1s'], undefined, '-fin-wait: cannot be negative'],
    [[], 'conntrack: { tcpTimeWaitTimeout: -1s }\n', 'conntrack.tcpTimeWaitTimeout: cannot be negative'],
    [['--sync-share=101'], undefined, '--sync-share: 101 is not from 0 to 100'],
    [[], 'syncShare: -1\n', 'syncShare: -1 is not from 0 to 100'],
    [['--log-rejects=65536'], undefined, '--log-rejects: "65536" is not a whole number from 0 to 65535'],
    [['--state-dir=b'], undefined, '--state-dir: "b" is not an absolute path'],
    [[], 'stateDir: here\n', 'stateDir: "here" is not an absolute path'],
    [['--node-condition=Ready'], undefined, '--node-condition: "Ready" is a condition that kubelet or a'],
    [['--node-condition=NetworkUnavailable'], undefined, '"NetworkUnavailable" is a condition that kubelet'],
    [['--node-condition=with blank'], undefined, '"with blank" is not the type of a condition'],
    [['--node-condition=/x'], undefined, '"/x" is not the type of a condition'],
    [['--node-condition=x/'], undefined, '"x/" is not the type of a condition'],
    [[`--node-condition=${'x'.repeat(317)}`], undefined, 'is not the type of a condition'],
    [['--prove=changes'], undefined, '--prove: "changes" is not one of off, full'],
    [
      ['--prove=full', '--proxy-mode=userspace'],
      undefined,
      '--prove: userspace mode has no evaluator; nftables, IPVS and iptables mode have one',
    ],
    [['--metrics-port=0'], undefined, '--metrics-port: "" is not written IP:PORT or [IP]:PORT'],
    [['--healthz-bind-address=192.0.2.1:0'], undefined, '"0" is not a port from 1 to 65535'],
    [['--healthz-bind-address=host:80'], undefined, '"host" is not an IP address'],
    [['--metrics-bind-address=nonsense'], undefined, '"nonsense" is not an IP address'],
    [['--bind-address=192.0.2.1:80'], undefined, '"192.0.2.1:80" is not an IP address'],
    [['--version=new'], undefined, '--version: "new" is not true, false or raw'],
  ])('%j beside %j is refused: %s', (flags, file, message) => {
    expect(errorsFrom(flags, file)).toEqual([expect.stringContaining(message)])
  })

  it('names the settings that need the API server where there is none', () => {
    const flags = ['--state-dir=/b', '--node-condition']
    expect(requestFrom(flags).warnings).toEqual([])
    expect(requestFrom([...flags, '--source=file:/x', '--once']).warnings).toEqual([
      'no effect with --source=file, --once: --state-dir, --node-condition',
    ])
    expect(requestFrom(['--prove=full', '--source=file:/x']).warnings).toEqual([])
    expect(requestFrom(['--prove=full', '--source=file:/x', '--once']).warnings).toEqual([
      'no effect with --once: --prove',
    ])
  })

  it('checks their texts, not their values', () => {
    expect(errorsFrom(['--conntrack-min=-1', '--cluster-cidr=nonsense'], '')).toEqual([])
    expect(errorsFrom(['--conntrack-min=many', '--bind-address=nonsense'], '')).toHaveLength(2)
  })

  it('puts module levels of flags before those of the file', () => {
    const { settings } = requestFrom(
      ['--vmodule=a=1'],
      'logging: { vmodule: [{ filePattern: b, verbosity: 2 }] }\n',
    )
    expect(settings.vmodule()).toEqual([
      { filePattern: 'a', verbosity: 1 },
      { filePattern: 'b', verbosity: 2 },
    ])
  })
})

describe('errors of flags', () => {
  it('are all reported in one round', () => {
    const argv = [
      '--cluster-cidr=10.0.0.0/33',
      '--detect-local-mode=pods',
      '--proxy-mode=nft',
      '--nodeport-addresses=everywhere',
      '--v=loud',
      '--sorce=kube',
    ]
    expect(errorsFrom(argv).map(text => text.replace(/[[:].*/, ''))).toEqual(
      expect.arrayContaining(argv.map(flag => flag.split('=')[0])),
    )
  })

  it('stand beside a file that cannot be read', async () => {
    const readFile = () => Promise.reject(new ConfigFileError('cannot be read (ENOENT)'))
    const options = { hostName: 'Host', readFile, extra: [outputFlag(['text', 'json'])] }
    const parsed = await loadConfig(['--config=c', '--backend=x', '--output=xml', '--v=z'], options)
    expect(parsed.kind === 'errors' && parsed.errors.map(({ path }) => path)).toEqual([
      '--config c',
      '--output',
      '--backend',
      '--v',
    ])
  })

  it('guess what a wrong --source means', () => {
    const hintOf = (text: string) =>
      errorsFrom([`--source=${text}`])
        .join()
        .replace(/.*did you mean /, '')
    expect(hintOf('deploy/examples')).toBe('file:deploy/examples?')
    expect(hintOf('kub')).toBe('kube?')
  })
})

describe('errors of a file', () => {
  it('stand at line and column, all at once, with those of flags', () => {
    const body =
      'mode: kernelspace\nconntrack:\n  min: -1\n  udpTimeout: -1s\nnodePortAddresses: [10.0.0.0/8, nonsense]\n' +
      'clusterCIDR: 10.0.0.0/8,11.0.0.0/8\noomScoreAdj: 1001\nmetricsBindAddress: "foo"\n' +
      'nftables: { masqueradeBit: 32, syncPeriod: 1s, minSyncPeriod: 2s }\nfeatureGates: { ComponentFlags: true }\n' +
      'logging: { format: xml, flushFrequency: nonsense }\n'
    expect(errorsFrom(['--backend=x'], body)).toEqual([
      '--backend: "x" is not one of netlink, dry-run',
      expect.stringMatching(/^c\.yaml:13:41: logging\.flushFrequency: "nonsense" is not a duration/),
      'c.yaml:5:8: conntrack.min: cannot be negative',
      'c.yaml:11:28: nftables.masqueradeBit: 32 is not from 0 to 31',
      'c.yaml:9:14: oomScoreAdj: 1001 is not from -1000 to 1000',
      'c.yaml:6:15: conntrack.udpTimeout: cannot be negative',
      'c.yaml:11:63: nftables.minSyncPeriod: cannot be longer than c.yaml:11:44: nftables.syncPeriod',
      'c.yaml:12:33: featureGates: "ComponentFlags": unrecognized feature gate; did you mean ComponentFlagz?',
      `c.yaml:3:7: mode: "kernelspace" is not one of ${MODE_NAMES.join(', ')}`,
      'c.yaml:8:14: clusterCIDR: takes one CIDR, or one per IP family',
      expect.stringMatching(/^c\.yaml:7:33: nodePortAddresses\[1\]: "nonsense" is not a CIDR/),
      'c.yaml:13:20: logging.format: "xml" is not one of text, json',
      'c.yaml:10:21: metricsBindAddress: "foo" is not written IP:PORT or [IP]:PORT',
    ])
  })

  it('come with the unknown names', () => {
    expect(errorsFrom([], 'bindAdress: 10.0.0.1\nmode: other\n')).toEqual([
      `c.yaml:4:7: mode: "other" is not one of ${MODE_NAMES.join(', ')}`,
      'warning: c.yaml:3:1: bindAdress: unknown field ignored; did you mean bindAddress?',
    ])
  })

  it('end after a hundred', () => {
    const fields = Array.from({ length: 150 }, (_, index) => `f${index}: { }`)
    const { warnings } = requestFrom([], `${fields.join('\n')}\n`)
    expect(warnings).toHaveLength(101)
    expect(warnings.at(-1)).toBe('and 50 more of this kind')
    const errors = errorsFrom([], `${fields.join('\n')}\nmode: other\n`)
    expect(errors).toHaveLength(101)
    expect(errors.at(-1)).toBe('and: 51 more of this kind')
  })
})

it('reports a deprecated port that is ignored', () => {
  const { config, warnings } = requestFrom(['--healthz-port=99'])
  expect(config.healthzBindAddress?.port).toBe(10_256)
  expect(warnings).toEqual([
    '--healthz-port is ignored: the address has a port already; --healthz-bind-address sets both',
  ])
})

describe('the request', () => {
  it.each([
    [[], 'run'],
    [['--init-only'], 'init'],
    [['--cleanup', '--init-only'], 'cleanup'],
    [['--write-config-to=f', '--cleanup'], 'write-config'],
    [['--version', '--write-config-to=f'], 'version'],
    [['--version=false'], 'run'],
  ] as const)('of %j is to %s', (argv, action) => {
    expect(requestFrom(argv).action).toBe(action)
  })

  it('knows the raw version', () => {
    expect(requestFrom(['--version=raw'])).toMatchObject({ action: 'version', rawVersion: true })
  })

  it('has every flag as text, with what was given or its default', () => {
    const flags = requestFrom([
      '--nodeport-addresses=10.0.0.0/8',
      '--nodeport-addresses=fd00::/8',
      '-v2',
    ]).extra.effective(RUN_FLAGS)
    expect(flags.get('nodeport-addresses')).toBe('10.0.0.0/8,fd00::/8')
    expect(flags.get('v')).toBe('2')
    expect(flags.get('conntrack-min')).toBe('131072')
    for (const name of KUBE_PROXY_FLAGS) expect(flags.has(name), name).toBe(true)
  })

  it('names what is set and means nothing here in one warning', () => {
    const body = 'portRange: 5-6\nwinkernel: { enableDSR: true }\nipvs: { scheduler: lc }\n'
    expect(requestFrom(['--boot-id-file=x', '--vmodule=a=1'], body).warnings).toEqual([
      'no effect in kprobe: --vmodule, c.yaml:3:12: portRange, c.yaml:4:25: winkernel.enableDSR, --boot-id-file',
    ])
    expect(requestFrom(['--profiling']).warnings).toEqual(['no effect in kprobe: --profiling'])
    expect(requestFrom(['--ipvs-scheduler=lc', '--iptables-localhost-nodeports=false']).warnings).toEqual([])
  })

  it('passes over empty arguments', () => {
    expect(errorsFrom([''])).toEqual([])
  })
})

it('names feature gates that kprobe does not read', () => {
  const gates =
    '--feature-gates=KubeProxyNFTablesLocalhostNodePorts=false,AllBeta=true,NodeSwap=true,Odd=false'
  expect(requestFrom([gates]).warnings).toEqual(['no effect in kprobe: feature gates "NodeSwap", "Odd"'])
})
