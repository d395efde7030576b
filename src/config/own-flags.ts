import type { Cidr } from '../base/cidr.ts'
import { nearest } from '../base/nearest.ts'
import type { Config, SourceConfig } from './config.ts'
import { type FlagReader, quote, readCidrs } from './flag-reader.ts'
import { readInstanceName } from './instance-name.ts'
import { readApi } from './read-api.ts'

/** Settings that only flags set. All but --master are kprobe's own. They have effect with --config, too. */
export type OwnSettings = Pick<
  Config,
  | 'backend'
  | 'source'
  | 'once'
  | 'serviceProxyName'
  | 'allowedExternalCidrs'
  | 'allowedLoadBalancerCidrs'
  | 'adminSocket'
  | 'connectionMetricsMax'
  | 'api'
> & {
  readonly conntrackLower: boolean
  readonly master: string
}

/** Maximum number of time series that suits one scrape. */
const CONNECTION_METRICS_MAX = 1_000_000

/** Size of sun_path without the final zero. */
const SOCKET_PATH_BYTES_MAX = 107

export function readOwnSettings(reader: FlagReader): OwnSettings {
  return {
    backend: reader.oneOf('backend', ['netlink', 'dry-run'], 'netlink'),
    source: readSource(reader),
    once: reader.bool('once'),
    serviceProxyName: readInstanceName(reader),
    allowedExternalCidrs: cidrsOf(reader, 'allowed-external-cidrs'),
    allowedLoadBalancerCidrs: cidrsOf(reader, 'allowed-load-balancer-cidrs'),
    adminSocket: readSocketPath(reader),
    connectionMetricsMax: reader.integer('connection-metrics-max', {
      min: 0,
      max: CONNECTION_METRICS_MAX,
      fallback: 0,
    }),
    api: readApi(reader),
    conntrackLower: reader.bool('conntrack-lower'),
    master: reader.text('master') ?? '',
  }
}

function readSource(reader: FlagReader): SourceConfig {
  const text = reader.text('source') ?? 'kube'
  if (text === 'kube') return { kind: 'kube' }
  const path = text.startsWith('file:') ? text.slice('file:'.length) : ''
  if (path !== '') return { kind: 'file', path }
  if (text === 'file:') reader.fail('--source', 'file: needs a path')
  else {
    const near = nearest(text, ['kube']) ?? `file:${text}`
    reader.fail('--source', `${quote(text)} is neither kube nor file:PATH; did you mean ${near}?`)
  }
  return { kind: 'kube' }
}

function readSocketPath(reader: FlagReader): string {
  const path = reader.text('admin-socket') ?? ''
  if (path !== '' && !path.startsWith('/'))
    reader.fail('--admin-socket', `${quote(path)} is not an absolute path`)
  else if (Buffer.byteLength(path) > SOCKET_PATH_BYTES_MAX)
    reader.fail(
      '--admin-socket',
      `is longer than the ${SOCKET_PATH_BYTES_MAX} bytes that a socket's name may have`,
    )
  return path
}

function cidrsOf(reader: FlagReader, flag: string): readonly Cidr[] {
  return readCidrs(reader.list(flag), (index, message) => reader.fail(`--${flag}[${index}]`, message))
}
