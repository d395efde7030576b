import type { Daemon, Daemons } from './daemon.ts'
import { eventually } from './patience.ts'

/* A daemon that proves the rules of the real kernel, and what it says of them. */

export const HEALTH = 'http://127.0.0.1:10256/healthz'
export const DIFFERS = 'treats packets differently from what Kubernetes specifies'
export const AGAIN = 'as Kubernetes specifies again'

export function proving(
  daemons: Daemons,
  source: string,
  { mode = 'nftables', more = [] }: { readonly mode?: string; readonly more?: readonly string[] } = {},
): Promise<Daemon> {
  const args = [
    '--hostname-override=example-node',
    '--cluster-cidr=10.244.0.0/16,fd00:10:244::/64',
    '--prove',
    `--proxy-mode=${mode}`,
    ...more,
  ]
  return daemons.running({ source, args })
}

export async function metric(name: string): Promise<number> {
  const text = await (await fetch('http://127.0.0.1:10249/metrics')).text()
  const line = text.split('\n').find(each => each.startsWith(`kprobe_proof_${name} `))
  return Number(line?.slice(line.lastIndexOf(' ')) ?? 0)
}

export const proofs = (): Promise<number> => metric('duration_seconds_count')

/** Waits for a number of the metrics. */
export async function until(isSo: () => Promise<boolean>): Promise<void> {
  let isNow = false
  let isAsking = false
  await eventually(() => {
    if (!isAsking && !isNow) {
      isAsking = true
      // A busy daemon may close the connection, or answer late: the next look asks again.
      void isSo()
        .catch(() => false)
        .then(now => {
          isNow = now
          isAsking = false
        })
    }
    return isNow
  })
}

export const verbose = async (): Promise<string> => await (await fetch(`${HEALTH}?verbose`)).text()

/** A Service more, whose endpoint is 10.244.9.`last`. */
export const moreObjects = (last: number): string => `
apiVersion: v1
kind: Service
metadata: { name: more, namespace: default }
spec: { clusterIP: 10.96.77.7, clusterIPs: [10.96.77.7], ports: [{ port: 80 }] }
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: more-1, namespace: default, labels: { kubernetes.io/service-name: more } }
addressType: IPv4
endpoints: [{ addresses: ['10.244.9.${last}'] }]
ports: [{ name: '', port: 8080, protocol: TCP }]
`
