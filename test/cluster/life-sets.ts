import type { RunningProxy } from './proxies.ts'

/** One run of `life`: a proxy, and the pattern of the events that it gets. */
export interface LifeRun extends RunningProxy {
  readonly only: string | undefined
}

/** Events of `life` with the proxies that they need, one after the other in one cluster. */
export interface LifeSet {
  readonly name: string
  readonly what: string
  readonly runs: readonly LifeRun[]
}

const MODE = { mode: 'nftables' } as const

export const LIFE_SETS: readonly LifeSet[] = [
  {
    name: 'migrate',
    what: "kubectl kprobe migrate moves each node from kubeadm's kube-proxy to kprobe",
    runs: [{ proxy: 'kube-proxy', form: 'kubeadm', ...MODE, only: '^migrate$' }],
  },
  {
    name: 'beside',
    what: 'a kube-proxy starts beside kprobe, which reports it and serves on',
    runs: [{ proxy: 'kprobe', form: 'daemonset', ...MODE, only: '^beside$' }],
  },
  {
    name: 'upgrade',
    what: 'daemon, relay, chart and saved state between the release before (--previous) and this checkout',
    runs: [
      { proxy: 'kprobe', form: 'relay', ...MODE, only: '^upgrade$' },
      { proxy: 'kprobe', form: 'chart', ...MODE, only: '^upgrade-chart$' },
      { proxy: 'kprobe', form: 'process', ...MODE, only: '^saved-state$' },
    ],
  },
  {
    name: 'balance',
    what: 'maglev and weights by zone: the same endpoint through each node',
    runs: [{ proxy: 'kprobe', form: 'process', ...MODE, only: '^balance$' }],
  },
]
