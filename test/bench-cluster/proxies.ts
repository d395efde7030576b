import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { type MeasuredProxy, proxyFlags } from '../bench/proxy-flags.ts'
import { requireBinaries } from '../support/reference/binaries.ts'
import { Program } from '../support/reference/process.ts'

/** A proxy in one of its modes. */
export interface Contender {
  /** `kprobe`, or `kube-proxy` with its version. */
  readonly name: string
  readonly mode: 'nftables' | 'iptables'
  /** Of kube-proxy; kprobe is the build of this repository. */
  readonly program?: string
}

/** kprobe and the kube-proxy that is the reference; `baseline` is the program of another kube-proxy. */
export function findContenders(baseline?: string): readonly Contender[] {
  const programs = [requireBinaries().kubeProxy, ...(baseline === undefined ? [] : [baseline])]
  const proxies = [
    { name: 'kprobe' },
    ...programs.map(program => ({ name: `kube-proxy ${versionOf(program)}`, program })),
  ]
  return (['nftables', 'iptables'] as const).flatMap(mode => proxies.map(proxy => ({ ...proxy, mode })))
}

/** Of `Kubernetes v1.37.2`. */
function versionOf(program: string): string {
  const text = execFileSync(program, ['--version'], { encoding: 'utf8' })
  const version = /v(\S+)/.exec(text)?.[1]
  if (version === undefined) throw new Error(`${program} --version printed ${JSON.stringify(text)}`)
  return version
}

export function contenderText({ name, mode }: Contender): string {
  return `${name}, ${mode}`
}

export interface ProxyOptions extends MeasuredProxy {
  readonly name: string
  readonly program?: string
  readonly log: string
}

export function startProxy(options: ProxyOptions): Program {
  const { name, program, log } = options
  const [file, ...args] = [...(program === undefined ? ownCommand() : [program]), ...proxyFlags(options)]
  if (file === undefined) throw new Error('no command')
  return new Program({ name, file, args, log, environment: {} })
}

function ownCommand(): readonly string[] {
  const root = process.env.KPROBE_ROOT ?? '.'
  return [
    process.execPath,
    process.env.KPROBE_COMMAND ?? join(root, 'dist/kprobe.mjs'),
    'run',
    '--admin-socket=',
  ]
}
