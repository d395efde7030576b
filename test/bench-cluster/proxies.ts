import { join } from 'node:path'
import { type MeasuredProxy, proxyFlags } from '../bench/proxy-flags.ts'
import { requireBinaries } from '../support/reference/binaries.ts'
import { Program } from '../support/reference/process.ts'

export type ProxyName = 'kube-proxy' | 'kprobe'

/** A proxy in one of its modes. */
export interface Contender {
  readonly name: ProxyName
  readonly mode: 'nftables' | 'iptables'
}

export const CONTENDERS: readonly Contender[] = [
  { name: 'kprobe', mode: 'nftables' },
  { name: 'kube-proxy', mode: 'nftables' },
  { name: 'kprobe', mode: 'iptables' },
  { name: 'kube-proxy', mode: 'iptables' },
]

export function contenderText({ name, mode }: Contender): string {
  return `${name}, ${mode}`
}

export interface ProxyOptions extends MeasuredProxy {
  readonly name: ProxyName
  readonly log: string
}

export function startProxy(options: ProxyOptions): Program {
  const { name, log } = options
  const [file, ...args] = [...command(name), ...proxyFlags(options)]
  if (file === undefined) throw new Error('no command')
  return new Program({ name, file, args, log, environment: {} })
}

function command(name: ProxyName): readonly string[] {
  if (name === 'kube-proxy') return [requireBinaries().kubeProxy]
  const root = process.env.KPROBE_ROOT ?? '.'
  return [
    process.execPath,
    process.env.KPROBE_COMMAND ?? join(root, 'dist/kprobe.mjs'),
    'run',
    '--admin-socket=',
  ]
}
