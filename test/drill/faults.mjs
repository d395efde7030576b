/* The faults of `npm run drill`. Each breaks one node, and `told` matches the screen of `kprobe status` there, and no other. */
import { execFileSync, spawn } from 'node:child_process'
import { copyFileSync, rmSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'

const nft = script => execFileSync('nft', ['-f', '-'], { input: script })
const jwt = claims => ['{"alg":"none"}', JSON.stringify(claims), 'x'].map(base64url).join('.')
const base64url = text => Buffer.from(text).toString('base64url')

/** A kubeconfig of an API server that does not answer, as the daemon's source. */
function kubeconfig(folder, token) {
  const cluster = { server: 'http://127.0.0.1:1' }
  const config = {
    clusters: [{ name: 'it', cluster }],
    users: [{ name: 'it', user: { token } }],
    contexts: [{ name: 'it', context: { cluster: 'it', user: 'it' } }],
    'current-context': 'it',
  }
  writeFileSync(`${folder}/kubeconfig`, JSON.stringify(config))
  return [`--kubeconfig=${folder}/kubeconfig`]
}

/** `source` gives the flags of the daemon's source, `around` a program that starts it, `break` acts once it serves. */
export const FAULTS = [
  {
    name: 'the daemon was killed',
    told: /no daemon runs: the last one started .* and was killed later/,
    break: ({ daemon }) => daemon.kill('SIGKILL'),
  },
  {
    name: 'the process of the daemon is stopped',
    told: /the daemon does not answer/,
    break: ({ daemon }) => daemon.kill('SIGSTOP'),
  },
  {
    name: 'another program flushes the rules',
    told: /another program changed kprobe's rules; repaired/,
    break: () => nft('flush chain ip kube-proxy services'),
  },
  {
    name: 'rules of kube-proxy were left behind',
    told: /warning {2}.*KUBE-|warning {2}.*iptables mode/,
    break: () => nft('add table ip nat\nadd chain ip nat KUBE-SERVICES'),
  },
  {
    name: 'the kernel does not forward packets',
    told: /net\/ipv4\/ip_forward: 0/,
    break: () => writeFileSync('/proc/sys/net/ipv4/ip_forward', '0'),
  },
  {
    name: 'the objects cannot be read',
    told: /the source fails: .*(YAML|objects)/,
    break: ({ folder }) => writeFileSync(`${folder}/objects/broken.yaml`, 'kind: [Service'),
  },
  {
    name: 'a Service has an external IP that is none',
    told: /refused: .*spec\.externalIPs/,
    break: ({ folder }) =>
      writeFileSync(
        `${folder}/objects/refused.yaml`,
        `{apiVersion: v1, kind: Service, metadata: {name: wrong, namespace: shop},
          spec: {clusterIP: 10.96.9.9, externalIPs: [192.0.2.999], ports: [{port: 80}]}}`,
      ),
  },
  {
    name: 'an endpoint answers no connection',
    told: /\d+ of \d+ connections to 10\.244\.0\.1[12]:8080 \(pod shop\/cart-[ab]\) had no reply/,
    break() {
      // The next hop exists, and drops all.
      for (const address of ['10.244.0.11', '10.244.0.12'])
        execFileSync('ip', ['neighbour', 'add', address, 'lladdr', '02:00:00:00:00:01', 'dev', 'node0'])
      for (const range of ['10.244.0.0/24', '10.96.0.0/16'])
        execFileSync('ip', ['route', 'add', range, 'dev', 'node0'])
      for (let left = 20; left > 0; left--) connect(80, '10.96.1.1').on('error', () => undefined)
    },
  },
  {
    name: 'kube-proxy runs beside kprobe',
    told: /kube-proxy runs in this network namespace/,
    break({ folder }) {
      copyFileSync('/bin/sleep', `${folder}/kube-proxy`)
      spawn(`${folder}/kube-proxy`, ['infinity'], { stdio: 'ignore' })
    },
  },
  {
    name: 'the daemon lacks the privilege to write rules',
    told: /EPERM|operation not permitted/i,
    around: ['setpriv', '--bounding-set=-net_admin', '--inh-caps=-net_admin'],
  },
  {
    name: 'the daemon has no objects',
    told: /nothing is programmed yet: (?!.*ECONNREFUSED)/,
    source({ folder }) {
      rmSync(`${folder}/objects`, { recursive: true })
      return [`--source=file:${folder}/objects`]
    },
  },
  {
    name: 'the API server does not answer',
    told: /nothing is programmed yet: .*ECONNREFUSED(?![\s\S]*the token .* expired)/,
    source: ({ folder }) => kubeconfig(folder, 'opaque'),
  },
  {
    name: 'the token for the API server is over',
    told: /the token for the API server expired/,
    source: ({ folder }) => kubeconfig(folder, jwt({ exp: 1_700_000_000 })),
  },
]
